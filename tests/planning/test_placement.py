"""Placement strategies on small logs worked out by hand, on random ones, and from the command line."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.support.strips import cut
from minidl.cli.lab import placement
from minidl.cli.lab.placement import main
from minidl.errors import OutOfMemory, UserError
from minidl.lab.inferred import live_bytes
from minidl.lab.lifetimes import Lifetime, events, lower_bound, read_log
from minidl.lab.placement import PlacedBuffers, check, lifetimes_of, over_time, strategies
from minidl.lab.training_step import trace_of
from minidl.memory.bytes.host_pool import HostPool
from minidl.outside.tables import table
from minidl.placements import PLACEMENTS

STRATEGIES = strategies()

# time   0   1   2   3   4          b dies at 1, where d is born: d may take its place.
# a 4    #########                  Live: 4+2 = 6, then a, c, d = 4+1+3 = 8, then c, d, e = 1+3+5 = 9.
# b 2    #####
# c 1        #############
# d 3        #############
# e 5            #########
LOG = [Lifetime("a", 0, 2, 4), Lifetime("b", 0, 1, 2), Lifetime("c", 1, 4, 1), Lifetime("d", 1, 4, 3),
       Lifetime("e", 2, 4, 5)]


@st.composite
def logs(draw):
    row = st.tuples(st.integers(-3, 12), st.integers(1, 8), st.integers(1, 20))
    rows = draw(st.lists(row, min_size=1, max_size=25))
    return [Lifetime(str(i), lower, lower + length, size) for i, (lower, length, size) in enumerate(rows)]


def test_the_lower_bound_is_the_largest_sum_of_live_bytes():
    assert lower_bound(LOG) == 9


@pytest.mark.parametrize(("name", "offsets", "peak"), [
    # b frees 4..6 beside the untouched end, so after a 0..4 comes one hole: c 4, d 5..8; e (5) not in 0..4: 8..13.
    ("best-fit", {"a": 0, "b": 4, "c": 4, "d": 5, "e": 8}, 13),
    ("first-fit", {"a": 0, "b": 4, "c": 4, "d": 5, "e": 8}, 13),
    # Rests are always worth a chunk where memory has no end, until b's hole of 2 beside it has been united with it.
    ("bfc", {"a": 0, "b": 4, "c": 4, "d": 5, "e": 8}, 13),
    # Rounded up to 512 bytes, all in one small segment: b's piece goes to c; d and e come behind, and e into a's hole.
    ("caching", {"a": 0, "b": 512, "c": 512, "d": 1024, "e": 0}, 1027),
    # e 0..5; a never meets e: 0..4; d meets both: 5..8; b meets only a: 4..6; c meets all but b: 8..9.
    ("greedy-by-size", {"e": 0, "a": 0, "d": 5, "b": 4, "c": 8}, 9),
    # d 0..3 and c 3..4 live three steps, then e 4..9, a 4..8 (they never meet), and b meets a only: 0..2.
    ("greedy-by-duration", {"d": 0, "c": 3, "e": 4, "a": 4, "b": 0}, 9),
    # By bytes x steps: d 9, e 10, a 8, c 3, b 2. e 0..5, d 5..8, a 0..4, c 8..9, b 4..6.
    ("planned", {"e": 0, "d": 5, "a": 0, "c": 8, "b": 4}, 9),
])
def test_each_strategy_on_a_log_worked_out_by_hand(name, offsets, peak):
    result = STRATEGIES[name](LOG, None)
    assert result == PlacedBuffers(offsets, peak)
    assert list(result.offsets) == [e.id for e in LOG]  # in the order of the log
    check(result, LOG)


def test_best_fit_takes_the_smallest_hole_and_first_fit_the_lowest():
    log = [Lifetime("big", 0, 1, 3), Lifetime("w1", 0, 9, 1), Lifetime("small", 0, 1, 2), Lifetime("w2", 0, 9, 1),
           Lifetime("new", 2, 3, 2)]  # holes 0..3 and 4..6
    assert STRATEGIES["best-fit"](log, None).offsets["new"] == 4
    assert STRATEGIES["first-fit"](log, None).offsets["new"] == 0


@settings(max_examples=100, deadline=None, database=None)
@given(log=logs())
def test_best_fit_places_as_the_host_pool_does_which_takes_the_smallest_range_too(log):
    pool, pieces, offsets = HostPool(1 << 20), {}, {}
    for lifetime, birth in events(log):
        if birth:
            pieces[lifetime.id] = pool.allocate(lifetime.size)
            offsets[lifetime.id] = pieces[lifetime.id][0][0]
        else:
            pool.free(pieces.pop(lifetime.id))
    assert STRATEGIES["best-fit"](log, None).offsets == offsets


def test_columns_are_as_wide_as_their_widest_word_and_two_spaces_apart():
    rows = [("strategy", "peak MiB", "seconds"), ("a-strategy-of-a-package-with-a-long-name", "123456789.00", "0.1"),
            ("b", "does not fit")]
    first, second, third = table(rows)
    assert second == "a-strategy-of-a-package-with-a-long-name  123456789.00      0.1"
    assert first == f"{'strategy':<40}{'peak MiB':>14}{'seconds':>9}" and third == f"{'b':<40}  does not fit"
    assert table([("1e3", "0.50"), ("20", "1.5")], left=()) == ["1e3  0.50", " 20   1.5"]  # words, not numbers
    longest = "x" * 500  # wider than any terminal
    assert table([(longest, longest)]) == [f"{longest}  {longest}"]


def test_every_placement_of_the_engine_is_a_strategy():
    assert set(STRATEGIES) == {*PLACEMENTS, "greedy-by-size", "greedy-by-duration", "planned"}


def test_without_a_capacity_best_fit_fills_holes_before_the_untouched_end():
    # 12 bytes in all: were there no more, the hole at 11..12 would be a better fit for new than 0..10.
    log = [Lifetime("big", 0, 1, 10), Lifetime("w", 0, 9, 1), Lifetime("new", 1, 2, 1)]
    assert STRATEGIES["best-fit"](log, None).offsets["new"] == 0
    assert STRATEGIES["best-fit"](log, 12).offsets["new"] == 11


def test_an_offline_strategy_fills_a_hole_exactly():
    # a 0..5, b above it at 5..9; c meets only b: 0..3; d meets b and c, and just fits between them.
    log = [Lifetime("a", 0, 1, 5), Lifetime("b", 0, 2, 4), Lifetime("c", 1, 2, 3), Lifetime("d", 1, 2, 2)]
    assert STRATEGIES["greedy-by-size"](log, None).offsets == {"a": 0, "b": 5, "c": 0, "d": 3}


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=100, deadline=None, database=None)
@given(log=logs())
def test_every_placement_is_valid_fits_its_own_peak_and_no_less(name, log):
    result = STRATEGIES[name](log, None)
    check(result, log)
    assert lower_bound(log) <= result.peak_bytes
    if name != "caching":  # which rounds what is this small up to 512 bytes
        assert result.peak_bytes <= sum(e.size for e in log)
    # With the peak as capacity the untouched end is no longer the largest hole, so what looks for a best fit may choose
    # differently.
    if name in ("first-fit", "greedy-by-size", "greedy-by-duration"):
        assert STRATEGIES[name](log, result.peak_bytes) == result
        with pytest.raises(OutOfMemory, match="do not suffice"):
            STRATEGIES[name](log, result.peak_bytes - 1)


@settings(max_examples=200, deadline=None, database=None)
@given(log=logs())
def test_the_lower_bound_is_the_sum_at_some_moment_and_never_less_than_at_any(log):
    moments = range(min(e.lower for e in log), max(e.upper for e in log))
    assert lower_bound(log) == max(sum(e.size for e in log if e.lower <= t < e.upper) for t in moments)


def test_a_buffer_of_first_fit_is_never_split_over_two_holes():
    log = [Lifetime("x", 0, 1, 2), Lifetime("w", 0, 9, 1), Lifetime("y", 0, 1, 2), Lifetime("z", 2, 3, 4)]
    with pytest.raises(OutOfMemory, match="no room for 'z' of 4 B at time 2: 5 B do not suffice"):  # .. w ..
        STRATEGIES["first-fit"](log, 5)


@pytest.mark.parametrize(("offsets", "peak", "message"), [
    ({"a": 0, "b": 3, "c": 8, "d": 5, "e": 0}, 9, "'a' at 0..4 and 'b' at 3..5 are both live at time 0"),
    ({"a": 0, "b": 4, "c": 2, "d": 5, "e": 0}, 9, "'a' at 0..4 and 'c' at 2..3 are both live at time 1"),
    ({"a": 0, "b": 4, "c": 8, "d": 4, "e": 0}, 9, "'e' at 0..5 and 'd' at 4..7 are both live at time 2"),
    ({"a": 0, "b": 4, "c": 8, "d": 5, "e": -1}, 9, "'e' has no place: -1"),
    ({"a": 0, "b": 4, "c": 8, "d": 5}, 9, "'e' has no place: None"),
    ({"a": 0, "b": 4, "c": 8, "d": 5, "e": 0}, 8, "ends at 9, the peak says 8"),
])
def test_check_sees_each_wrong_placement(offsets, peak, message):
    with pytest.raises(AssertionError, match=message):
        check(PlacedBuffers(offsets, peak), LOG)


@settings(max_examples=200, deadline=None, database=None)
@given(log=logs(), data=st.data())
def test_check_agrees_with_comparing_every_pair(log, data):
    offsets = {e.id: data.draw(st.integers(0, 60)) for e in log}
    peak = max(offsets[e.id] + e.size for e in log)
    clash = any(a.lower < b.upper and b.lower < a.upper and offsets[a.id] < offsets[b.id] + b.size
                and offsets[b.id] < offsets[a.id] + a.size for i, a in enumerate(log) for b in log[:i])
    if clash:
        with pytest.raises(AssertionError, match="are both live"):
            check(PlacedBuffers(offsets, peak), log)
    else:
        check(PlacedBuffers(offsets, peak), log)


# Logs and the command line


def written(tmp_path, text: str) -> str:
    path = tmp_path / "log.csv"
    path.write_text(text)
    return str(path)


def log_text() -> str:
    return "id,lower,upper,size\n" + "".join(f"{e.id},{e.lower},{e.upper},{e.size}\n" for e in LOG)


def test_a_log_is_read_as_it_was_written(tmp_path):
    assert read_log(written(tmp_path, log_text())) == LOG
    assert read_log(written(tmp_path, log_text().replace("\n", "\n\n"))) == LOG  # empty lines are skipped


@pytest.mark.parametrize(("text", "message"), [
    ("", "line 1: the header is ''"),
    ("id,lower,size,upper\na,0,1,2\n", "line 1: the header is 'id,lower,size,upper', not 'id,lower,upper,size'"),
    ("id,lower,upper,size\n", "has no rows"),
    ("id,lower,upper,size\na,0,1,2\nb,0,1\n", "line 3: 3 values instead of 4: 'b,0,1'"),
    ("id,lower,upper,size\na,0,1.5,2\n", "line 2: upper must be a whole number, not 1.5"),
    ("id,lower,upper,size\na,0,1,2kB\n", "line 2: size must be a whole number, not 2kB"),
    ("id,lower,upper,size\na,5,5,2\n", "line 2: upper 5 is not after lower 5"),
    ("id,lower,upper,size\na,0,5,0\n", "line 2: size is 0, not at least 1"),
    ("id,lower,upper,size\na,0,5,1\nb,0,5,1\na,7,8,1\n", "line 4: the id 'a' appears twice"),
])
def test_a_bad_log_is_an_error_that_names_file_line_and_value(tmp_path, capsys, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_log(path)
    assert path in str(error.value) and message in str(error.value)
    assert main([path]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == f"minidl lab placement: error: {error.value}\n"


def test_files_that_cannot_be_read_or_written_are_one_line(tmp_path, capsys):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    path = written(tmp_path, log_text())
    for arguments, message in [([str(tmp_path / "none.csv")], "cannot read"), ([str(tmp_path)], "cannot read"),
                               ([str(binary)], "not UTF-8 at byte 0"),
                               ([path, "--save", str(tmp_path / "none" / "out.csv")], "cannot write")]:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("minidl lab placement: error: ")
        assert captured.err.count("\n") == 1
        assert message in captured.err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--strategy", "bestfit"], "there is no strategy 'bestfit'; did you mean best-fit or first-fit or bfc?"),
    (["--capacity", "16G"], "'16G' is not a size in bytes"),
    (["--capacity", "8"], "log.csv does not fit 8 B: up to 9 B are live at once"),
    (["--capacity", "12", "--strategy", "best-fit"], "does not fit with best-fit: no room for 'e' of 5 B at time 2"),
])
def test_wrong_arguments_exit_with_2_and_one_line(tmp_path, capsys, arguments, message):
    assert main([written(tmp_path, log_text()), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and captured.err.count("\n") == 1


def test_the_table_shows_every_strategy_and_saves_the_best(tmp_path, capsys):
    path = written(tmp_path, log_text())
    saved = tmp_path / "offsets.csv"
    assert main([path, "--save", str(saved)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:-1]}
    assert list(rows) == list(STRATEGIES)
    # 13 / 9 and 1027 / 9, less 1
    assert [rows[name][1] for name in STRATEGIES] == ["44.44", "44.44", "44.44", "11311.11", "0.00", "0.00",
                                                         "0.00"]
    assert lines[-1] == f"offsets of greedy-by-size saved to {saved}"
    assert saved.read_text().splitlines()[:3] == ["id,lower,upper,size,offset", "a,0,2,4,0", "b,0,1,2,4"]
    assert read_log(str(saved)) == LOG  # what was saved is a log again


def test_a_strategy_that_does_not_fit_is_a_row_when_another_does(tmp_path, capsys):
    assert main([written(tmp_path, log_text()), "--capacity", "12"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.endswith("does not fit") for row in rows] == [True, True, True, True, False, False, False]


def test_a_log_of_events_is_placed_as_the_program_that_it_shows(tmp_path, capsys):
    """`a` and `b` are live together: 12 bytes."""
    path = tmp_path / "x.log"
    path.write_text("malloc a 8\nwrite a\nmalloc b 4\nread a\nwrite b\nfree a\nread b\nfree b\n")
    assert main([str(path), "--strategy", "best-fit"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: 2 buffers, lower bound {12 / 2**20:.2f} MiB")
    path.write_text("malloc a\n")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.endswith("x.log, line 1: malloc has an id and bytes\n")


def test_a_strategy_that_places_wrongly_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    wrong = {"mine": lambda lifetimes, capacity: PlacedBuffers({e.id: 0 for e in lifetimes}, 4)}
    monkeypatch.setattr(placement, "strategies", lambda: wrong)
    assert main([written(tmp_path, log_text())]) == 2
    assert capsys.readouterr().err == \
        "minidl lab placement: error: mine places wrongly: 'b' at 0..2 and 'a' at 0..4 are both live at time 0\n"


def test_the_command_runs_as_a_program(tmp_path):
    done = subprocess.run([sys.executable, "-m", "minidl", "lab", "placement", written(tmp_path, log_text()),
                           "--strategy", "x"],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("minidl lab placement: error: there is no strategy 'x'")


def test_the_buffers_of_a_trace_have_its_peak_and_can_be_placed_and_drawn(tmp_path, capsys):
    trace = trace_of("lenet", 64)
    lifetimes = lifetimes_of(trace)
    assert max(e.upper for e in lifetimes) == len(trace.calls)
    during = zip(live_bytes(trace), trace.calls, strict=True)
    assert lower_bound(lifetimes) == max(live + call.algorithms[0].workspace for live, call in during)
    placed = STRATEGIES["best-fit"](lifetimes, None)
    times = over_time(placed, lifetimes)
    assert [time for time, *_ in times] == sorted({time for e in lifetimes for time in (e.lower, e.upper)})
    assert max(height for _, height, _ in times) == placed.peak_bytes and min(holes for *_, holes in times) == 0
    saved, heights = str(tmp_path / "a.png"), str(tmp_path / "a.csv")
    assert main(["--from", "lenet:64", "--strategy", "best-fit", "--over-time", heights]) == 0
    with open(heights, encoding="utf-8") as file:
        assert file.readline() == "strategy,time,height,holes\n"
    assert "lower bound" in capsys.readouterr().out
    assert main([]) == 2 and main(["x.csv", "--from", "lenet:64"]) == 2
    pytest.importorskip("matplotlib")
    assert main(["--from", "lenet:64", "--strategy", "best-fit", "--picture", saved]) == 0


def _random(count):
    """Lifetimes that begin anywhere and last about a fiftieth of it all, of 256 B to 16 MiB."""
    rng = np.random.default_rng(0)
    begins, lasts = rng.integers(0, 10**6, count), rng.exponential(20_000, count).astype(int) + 1
    sizes = (2 ** rng.uniform(8, 24, count)).astype(int)
    return [Lifetime(str(n), int(a), int(a + d), int(size))
            for n, (a, d, size) in enumerate(zip(begins, lasts, sizes, strict=True))]


def _stacked(copies):
    """A strip that is full, so many times one on the other."""
    that = cut(3, 300, "mosaic")
    rectangles = list(zip(that.first.tolist(), that.last.tolist(), that.size.tolist(), strict=True))
    return [Lifetime(f"{copy} {n}", first, last + 1, size) for copy in range(copies)
            for n, (first, last, size) in enumerate(rectangles)]


@pytest.mark.default(count=[4000])
@pytest.mark.parametrize(("lifetimes", "count"), [(_random, 4000), (_stacked, 10), (_random, 20_000)])
def test_what_is_planned_is_never_higher_than_the_best_greedy_order_however_many_there_are(lifetimes, count):
    log = lifetimes(count)
    placed = STRATEGIES["planned"](log, None)
    check(placed, log)
    others = [name for name in ("best-fit", "first-fit", "greedy-by-size", "greedy-by-duration")
              if count < 10_000 or not name.startswith("greedy")]
    best = min(STRATEGIES[name](log, None).peak_bytes for name in others)
    assert placed.peak_bytes <= best, placed.peak_bytes / lower_bound(log)
