"""No command is silent: the line about its stages, on a clock that the test moves, and the stages of each long work.

The clock of the commands' test moves with work: each call that an engine runs takes a hundredth of a second, and each
plan five seconds, so what is printed and when depends on no machine.
"""

import io
import sys

import pytest

import train
from minidl.__main__ import main
from minidl.cli.app import slices
from minidl.cli.console import Printed, StageLine, printing
from minidl.executor import Executor
from minidl.kernels.cpu import KERNELS
from minidl.kernels.cpu.compiled import kernels_used
from minidl.outside import stages
from minidl.outside.numba_cache import event
from minidl.outside.stages import EVERY_VARIABLE, Teller, stage, telling
from minidl.policies.auto import Auto
from minidl.policies.capuchin import Capuchin

CALL_SECONDS, PLAN_SECONDS, LONGEST_SILENCE = 0.01, 5.0, 2.0
SMALL = ["--model", "lenet", "--device", "sim:p100", "--memory-budget", "3MiB", "--steps", "6"]


class WorkClock:
    """Seconds that pass as the test says, and the lines that a teller says meanwhile."""

    def __init__(self):
        self.now, self.lines = 0.0, []
        self.teller = Teller(lambda line: self.lines.append((self.now, line)), lambda: self.now)

    def passes(self, seconds):
        steps = max(1, round(seconds / stages.TICK))
        for _ in range(steps):
            self.now += seconds / steps
            self.teller.tick()


def test_a_line_follows_a_second_and_a_half_without_output_and_says_how_long_it_will_last():
    clock = WorkClock()
    with telling(clock.teller, ticks=False), stage("reading", 4, "files") as reading:
        clock.passes(1.25)
        assert clock.lines == []
        reading.done = 1
        clock.passes(0.25)
        assert clock.lines == [(1.5, "reading: 1 of 4 files; 2 s so far, about 5 s more")]  # 1.5 s a file, 3 left
        clock.passes(1.0)
        clock.teller.heard()  # something else is printed
        with stage(lambda: "sorting"):
            clock.passes(1.75)
    assert clock.lines[1:] == [(4.0, "reading: 1 of 4 files; sorting; 4 s so far, about 12 s more")]


def test_work_that_was_done_before_is_expected_to_take_as_long_again():
    clock = WorkClock()
    with telling(clock.teller, ticks=False):
        for seconds in (8.0, 3.0):
            with stage("planning"):
                clock.passes(seconds)
        clock.passes(2.0)
    # From 8 s on the second one: at 9 and 10.5 s it has taken 1 and 2.5 s of 8.
    assert [line for _, line in clock.lines][5:] == [
        "planning; 9 s so far, about 7 s more", "planning; 11 s so far, about 6 s more", "working; 12 s so far"]


@pytest.mark.parametrize("words", [
    ["train", *SMALL, "--batch", "max", "--policy", "passive"],
    ["train", *SMALL, "--batch", "90", "--policy", "capuchin"],
    ["train", *SMALL, "--batch", "max", "--slices", "1"],
    ["train", *SMALL[:4], "--memory-budget", "1MiB", "--batch", "4000", "--slices", "1"],  # refused, with what would do
    ["fit", "lenet:8", "--policies", "none,capuchin"],
    ["lab", "trace", "replay", "lenet:64", "--policy", "capuchin", "--budget", "90%", "--bound", "4"],
    ["view", *SMALL, "--batch", "90", "-o", "OUT/page.html"]], ids=lambda words: " ".join(words[:2] + words[-2:]))
def test_no_long_work_of_a_command_is_silent_or_nameless(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(slices, "MOST", 8)
    clock, ran, plans = WorkClock(), Executor.run, []

    def run(self, *arguments, **named):
        clock.passes(CALL_SECONDS)
        return ran(self, *arguments, **named)

    def slow(planned):
        def plan(*arguments):
            clock.passes(PLAN_SECONDS)
            plans.append("planning" in clock.lines[-1][1].split("; "))
            return planned(*arguments)

        return plan

    monkeypatch.setattr(Executor, "run", run)
    for policy in (Auto, Capuchin):
        monkeypatch.setattr(policy, "plan", slow(policy.plan))
    with telling(clock.teller, ticks=False):
        assert main([word.replace("OUT", str(tmp_path)) for word in words]) == (2 if "4000" in words else 0)
    assert all(plans) and (plans or "capuchin" not in words)
    times = [0.0, *(time for time, _ in clock.lines), clock.now]
    assert max(after - before for before, after in zip(times, times[1:], strict=False)) <= LONGEST_SILENCE
    assert len(clock.lines) > 1 and not [line for _, line in clock.lines if line.startswith("working")]


def test_on_a_terminal_the_line_is_rewritten_in_place_and_makes_way_for_other_text(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "13")
    out, err = Printed(screen, keeps="\n"), Printed(screen, keeps="\n\r")
    out.line = err.line = line = StageLine(err)
    line._say("a line of 21 letters.")
    line._say("short")
    out.write("text\n")
    out.write("more\n")
    assert screen.getvalue() == "\ra line of 21\rshort       \r            \rtext\nmore\n"


def test_a_command_in_a_pipe_writes_lines_and_a_quiet_one_none(monkeypatch, capsys):
    monkeypatch.setenv(EVERY_VARIABLE, "0.01")
    monkeypatch.setattr(stages, "TICK", 0.01)
    assert train.main([*SMALL, "--batch", "max", "--slices", "1", "--policy", "passive"]) == 0
    told = capsys.readouterr().err
    assert "searching the largest batch" in told and "\r" not in told
    assert train.main([*SMALL, "--batch", "80", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_nothing_is_told_where_the_environment_says_so_and_by_code_that_no_command_runs(monkeypatch, capsys):
    monkeypatch.setenv(EVERY_VARIABLE, "0")
    with printing() as (out, err):
        assert out.line is None and err.line is None
    with stage("nothing") as alone:
        assert alone.described() == "nothing"
    assert sys.stderr is not err


def test_while_a_function_is_compiled_the_line_says_so_with_about_their_number(monkeypatch):
    """Softmax needs kernels that ReLU does not; what is no function of minidl needs none."""
    assert 0 < kernels_used([KERNELS["relu"]]) < kernels_used([KERNELS["relu"], KERNELS["softmax"]]) < 20
    assert kernels_used([None, len]) == 0
    monkeypatch.setattr(stages.COMPILATION, "count", 0)
    monkeypatch.setattr(stages.COMPILATION, "total", 3)
    clock = WorkClock()
    event.start_event("numba:compile")
    number = stages.COMPILATION.count
    with telling(clock.teller, ticks=False):
        clock.passes(1.5)
        event.end_event("numba:compile")
        clock.passes(1.5)
    assert [line for _, line in clock.lines] == [
        f"compiling function {number} of about {max(number, 3)}, once on this machine; 2 s so far",
        "working; 3 s so far"]
