"""What pages compute from rows and speeds, worked out by hand."""

from dataclasses import replace

from minidl.lab.cell import Row
from minidl.lab.papers import grids, speeds
from minidl.lab.papers.page import Content


def row(policy, budget, seconds, bound=1.25, status="ok"):
    return Row("net:1", "p100", policy, 100, budget, 1.0, settled_s=seconds, bound_s=bound, status=status, cpu_s=2.0)


def test_a_grid_s_page_tells_the_fastest_the_share_of_the_bound_and_who_is_first():
    """Unmanaged 1 s. At 90% the bound is 1.25 s: 80%. `a` takes 2 s, 50%, which is 62.5% of the bound; `b` 4 s."""
    rows = [row("a", 0.9, 2.0), row("b", 0.9, 4.0), row("a", 0.5, None, bound=2.0, status="no room: need 3 B"),
            row("b", 0.5, 2.005, bound=2.0)]
    content = Content()
    grids.speeds(content, False, rows, 5, 6)
    text = "\n".join(content.parts)
    assert "4 cells of 5; the others were not run" in text and "8 s of processor time, 200 s a hundred" in text
    assert "| net:1 | p100 | 90% | 80.0% | `a` | 50.0% | 62.5% | - | - |" in text
    assert "| net:1 | p100 | 50% | 50.0% | `b` | 49.9% | 99.8% | - | - |" in text
    assert "| `a` | 1 of 2 | 50.0% | 62.5% | 62.5% | 1 |" in text
    assert "| `b` | 2 of 2 | 37.4% | 65.5% | 31.2% | 1 |" in text  # (25 + 49.9) / 2; (31.25 + 99.8) / 2
    assert content.parts[-1].splitlines()[2:] == [
        "| bound | 80.0% | 50.0% |", "| `a` | 50.0% / 62.5% | no room |", "| `b` | 25.0% / 31.2% | 49.9% / 99.8% |"]


def test_where_nothing_fits_the_page_says_so():
    content = Content()
    grids.speeds(content, False, [row("a", 0.3, None, bound=float("inf"), status="no room: x")], 1, None)
    assert "| net:1 | p100 | 30% | nothing fits | no policy runs | - | - | - | - |" in "\n".join(content.parts)


def test_where_auto_is_not_first_the_page_says_why():
    beaten = {"promised": replace(row("auto", 0.9, 2.0), predicted_s=1.25), "none": row("auto", 0.7, 2.0),
              "kept": replace(row("auto", 0.5, 2.0), predicted_s=2.0),
              "failed": row("auto", 0.3, None, status="time: 9 s"), "near": row("auto", 0.2, 1.255)}
    rows = [*beaten.values(), *(row("a", share, 1.25) for share in (0.9, 0.7, 0.5, 0.3, 0.2, 0.1))]
    content = Content()
    grids.speeds(content, False, rows, 11, None, note="As said.")
    text = "\n".join(content.parts)
    assert "Of 5 cells that it was run in, 4 have a policy that is more than 0.5% faster." in text
    assert "As said." in text
    for budget, ours, reason in (("90%", "50.0%", "its plan promises 80.0%"), ("70%", "50.0%", "it follows no plan"),
                                 ("50%", "50.0%", "its search has found no better plan"), ("30%", "0.0%", "time")):
        assert f"| net:1 | p100 | {budget} | `a` | 80.0% | {ours} | {reason} |" in text


SPEEDS = {"unmanaged": {10: 100.0, 20: 100.0, 40: 100.0}, "capuchin": {10: 100.0, 20: 90.0, 40: 80.0},
          "openai-memory": {10: 70.0, 20: 70.0}, "openai-speed": {10: 92.0, 20: 92.0},
          "vdnn-dyn": {10: 50.0, 20: 30.0, 40: 25.0}}


def test_figure_9_s_summary_compares_at_batches_that_both_can_run():
    assert speeds._loses(SPEEDS, "vdnn-dyn") == "75.0%" and speeds._loses(SPEEDS, "none") == "cannot"
    assert speeds._lead(SPEEDS, ("vdnn-dyn",)) == "3.20 (at 40)"
    assert speeds._lead(SPEEDS, ("openai-memory", "openai-speed")) == "1.09 (at 10)"
    assert speeds._order(SPEEDS) == "not at 20: -2.2%"  # 90 against 92
    assert speeds._order({**SPEEDS, "openai-speed": {}}) == "always"
