"""What pages compute from rows and speeds, worked out by hand."""

from dataclasses import replace
from math import inf

from bench.papers import grid_page, speeds
from bench.papers.page import Content
from minidl.lab.row import CellResult


def row(policy, budget, seconds, bound=1.25, status="ok"):
    return CellResult("net:1", "p100", policy, 100, budget, 1.0, settled_s=seconds, bound_s=bound, status=status,
               steps=7, cpu_s=2.0)


def page_of(rows, wanted, steps, **options):
    content = Content(name="grid")
    grid_page.speeds(content, False, rows, wanted, steps, **options)
    return "\n".join([*content.parts, *content.tables.values()])


def test_a_grid_s_page_tells_the_fastest_the_share_of_the_bound_and_who_is_first():
    """Unmanaged 1 s. At 90% the bound is 1.25 s: 80%. `a` takes 2 s, 50%, which is 62.5% of the bound; `b` 4 s."""
    text = page_of([row("a", 0.9, 2.0), row("b", 0.9, 4.0), row("a", 0.5, None, bound=2.0, status="no room: need 3 B"),
                    row("b", 0.5, 2.005, bound=2.0)], 5, 6)
    assert "4 cells of 5; the others were not run" in text
    assert "8 s of processor time, bounds included. A cell took 2.0 s on average: none under `auto`" in text
    assert "| trace | device | 90% | 50% |\n|---|--:|--:|--:|\n| net:1 | p100 | 62.5% `a` | 99.8% `b` |" in text
    assert "| `a` | 1 of 2 | 50.0% | 62.5% | 62.5% | 1 |" in text
    assert "| `b` | 2 of 2 | 37.4% | 65.5% | 31.2% | 1 |" in text  # (25 + 49.9) / 2; (31.25 + 99.8) / 2
    assert "All cells are in [grid.csv](grid.csv)" in text
    assert text.endswith("trace,device,policy,90%,50%\nnet:1,p100,bound,80.0%,50.0%\nnet:1,p100,a,62.5%,no room\n"
                         "net:1,p100,b,31.2%,99.8%\n")


def test_a_grid_s_page_names_the_fastest_where_auto_is_behind_and_what_a_hundred_cells_take():
    slow = replace(row("capuchin", 0.9, 2.5), trace="other:1", cpu_s=9.0)
    text = page_of([row("auto", 0.9, 1.255), row("a", 0.9, 1.25), row("auto", 0.5, 2.5), row("a", 0.5, 1.25), slow],
                   5, 6)
    assert "| net:1 | p100 | 99.6% | 100.0% `a` |\n| other:1 | p100 | 50.0% `capuchin` | - |" in text
    assert "The speed of `capuchin`, as a percentage of the same bound:" in text
    assert "| net:1 | p100 | - | - |\n| other:1 | p100 | 50.0% | - |" in text
    assert "A cell took 3.4 s on average: 2.0 s under `auto`, 4.3 s under all other policies; 9.0 s on other:1" in text
    text = page_of([slow] * 100, 100, 6)
    assert "A hundred cells took 900 s on average: none under `auto`, 900 s under" in text


def test_without_bounds_a_grid_s_page_has_speeds():
    text = page_of([row("a", 0.9, 2.0, bound=None)], 1, None)
    assert "How far" not in text and text.endswith("90%\nnet:1,p100,a,50.0%\n")


def test_where_nothing_fits_the_page_says_so():
    rows = [row("a", budget, None, bound=bound, status="no room: x") for budget, bound in ((0.5, 2.0), (0.3, inf))]
    text = page_of(rows, 2, None)
    assert "| net:1 | p100 | none runs | nothing fits |" in text
    assert "net:1,p100,bound,50.0%,nothing fits\nnet:1,p100,a,no room,nothing fits\n" in text


def test_where_auto_is_not_first_the_page_says_why():
    beaten = {"promised": replace(row("auto", 0.9, 2.0), predicted_s=1.25), "none": row("auto", 0.7, 2.0),
              "kept": replace(row("auto", 0.5, 2.0), predicted_s=2.0),
              "failed": row("auto", 0.3, None, status="time: 9 s"), "near": row("auto", 0.2, 1.255)}
    rows = [*beaten.values(), *(row("a", share, 1.25) for share in (0.9, 0.7, 0.5, 0.3, 0.2, 0.1))]
    text = page_of(rows, 11, None, note="As said.")
    assert "`auto` was run in 5 cells. In 4 of them another policy is more than 0.5% faster." in text
    assert "As said." in text
    for budget, ours, reason in (("90%", "50.0%", "its plan promises 80.0%, after 7 iterations"),
                                 ("70%", "50.0%", "it follows no plan, after 7 iterations"),
                                 ("50%", "50.0%", "its search has found no better plan, after 7 iterations"),
                                 ("30%", "0.0%", "time: 9 s")):
        assert f"| net:1 | p100 | {budget} | `a` | 80.0% | {ours} | {reason} |" in text


def test_the_page_says_where_plans_are_not_kept():
    """Of a plan that promises 80% and one that promises 50% of the speed, 50% are observed: 60% longer, and as said."""
    rows = [replace(row("auto", 0.9, 2.0), predicted_s=1.25), replace(row("auto", 0.7, 2.0), predicted_s=1.999),
            row("auto", 0.5, 2.0), row("a", 0.9, 2.0)]
    text = page_of(rows, 4, None)
    assert "In 2 of 3 cells the last iteration of `auto` follows a plan. In 1 of these it takes" in text
    assert "| net:1 | p100 | 90% | 80.0% | 50.0% | +60.0% |\n" in text + "\n" and text.count("| +") == 1
    assert "Predicted and observed" not in page_of([row("a", 0.9, 2.0), row("auto", 0.9, 2.0)], 2, None)


SPEEDS = {"unmanaged": {10: 100.0, 20: 100.0, 40: 100.0}, "capuchin": {10: 100.0, 20: 90.0, 40: 80.0},
          "openai-memory": {10: 70.0, 20: 70.0}, "openai-speed": {10: 92.0, 20: 92.0},
          "vdnn-dyn": {10: 50.0, 20: 30.0, 40: 25.0}}


def test_figure_9_s_summary_compares_at_batches_that_both_can_run():
    assert speeds._loses(SPEEDS, "vdnn-dyn") == "75.0%" and speeds._loses(SPEEDS, "none") == "cannot"
    assert speeds._lead(SPEEDS, ("vdnn-dyn",)) == "3.20 (at 40)"
    assert speeds._lead(SPEEDS, ("openai-memory", "openai-speed")) == "1.09 (at 10)"
    assert speeds._order(SPEEDS) == "not at 20 (Capuchin leads by -2.2%)"  # 90 against 92
    assert speeds._order({**SPEEDS, "openai-speed": {}}) == "always"
