"""Workers: what a fork says and how it ends, and that a cell's end is not the worker's."""

import json
import os
import signal
import time

import pytest

from minidl.lab import cell, grid, kept, worker
from minidl.lab.cell import Machine
from minidl.lab.grid import CellLimits, Worker
from minidl.lab.training_step import trace_of
from minidl.planning import bound as bounds


@pytest.fixture
def asking(monkeypatch):
    """The end of a pipe that stands for whoever asks: as long as it is open there may be another cell."""
    reading, writing = os.pipe()
    monkeypatch.setattr(worker, "INPUT", reading)
    ends = [writing]
    yield ends
    for end in (reading, *ends):
        os.close(end)


def raising():
    raise ValueError("no such luck")


def exiting():
    raise SystemExit(7)


def killed():
    os.kill(os.getpid(), signal.SIGTERM)
    return "never said"


@pytest.mark.parametrize(("work", "said", "code"), [
    (lambda: "a" * 100_000, "a" * 100_000, 0),  # more than a pipe holds
    (raising, f"ValueError: no such luck at {__file__}:29", 1),
    (exiting, f"SystemExit: 7 at {__file__}:33", 1), (killed, "", -signal.SIGTERM)])
def test_a_fork_says_what_came_of_its_work_or_how_it_ended(work, said, code, asking):
    ended = worker.forked(work, CellLimits())
    assert (ended.said, os.waitstatus_to_exitcode(ended.status), ended.late) == (said, code, False)


def test_a_fork_is_ended_for_its_time_and_when_nobody_asks_any_more(asking):
    ended = worker.forked(lambda: time.sleep(60) or "", CellLimits(seconds=0.01))
    assert ended.late and os.waitstatus_to_exitcode(ended.status) == -signal.SIGKILL
    os.close(asking.pop())
    ended = worker.forked(lambda: time.sleep(60) or "", CellLimits())
    assert not ended.late and os.waitstatus_to_exitcode(ended.status) == -signal.SIGKILL


@pytest.mark.slow
def test_a_cell_that_dies_or_takes_too_long_is_a_row_and_the_next_one_runs_in_the_same_worker():
    one, other = kept.cells(["lenet:8"], [Machine()], [0.9], ["passive", "lru"], steps=1)
    with Worker() as working:
        assert working.carry_out(one, CellLimits(seconds=1e-4)).status == "time: more than 0.0001 s"
        process = working._process
        row = working.carry_out(other)
        assert row.status == "ok" and row.cpu_s > 0 and working._process is process
        process.kill()
        assert working.carry_out(one).status == "died: of signal 9"
        assert working.carry_out(one).status == "ok"  # by another process
    assert working._process is None


def test_what_cells_have_in_common_is_made_once(monkeypatch, asking):
    asked = []
    found = bounds.bound
    monkeypatch.setattr(bounds, "bound", lambda *words, **more: asked.append(words) or found(*words, **more))
    wanted = kept.cells(["lenet:12"], [Machine()], [0.9], ["passive", "lru"], steps=1, instants=3)
    rows = [worker.carried_out(one, CellLimits()) for one in wanted]
    assert len(asked) == 1 and rows[0].bound_s == rows[1].bound_s > 0
    assert worker.trace_of("", "lenet:12", "p100", True, 1) is worker.trace_of("", "lenet:12", "p100", True, 1)
    unknown = worker.carried_out(kept.Cell("lenat:12", Machine(), "lru", 0.9), CellLimits())
    assert unknown.status.startswith("cannot: ") and json.loads(json.dumps(unknown.values()))


def test_a_plan_that_stays_is_run_no_longer_than_it_takes_to_see_that_times_take_turns():
    trace = trace_of("vgg11_bn", 8)
    row = cell.run("noisy", trace, Machine(noise=0.2), "g10", 0.9)  # no two steps take the same time
    assert row.status == "ok" and row.steps <= 3 + cell.MOST_UNCHANGED


def test_who_wants_no_more_rows_waits_for_no_other_cell_of_the_worker(monkeypatch):
    carried_out = []

    def carry_out(self, wanted, limits):
        carried_out.append(wanted.policy)
        while len(carried_out) > 1 and not self.stopped:
            time.sleep(0.001)
        return wanted.failed("died: of nothing")

    monkeypatch.setattr(Worker, "carry_out", carry_out)
    cells = kept.cells(["lenet:1"], [Machine()], [0.5], ["passive", "lru", "capuchin"])
    rows = grid._on_this_machine(cells, 1, CellLimits())
    next(rows)
    rows.close()
    assert carried_out == ["passive", "lru"]


def test_without_forks_a_cell_has_the_same_row_and_limits_are_refused(monkeypatch, asking):
    one = kept.Cell("lenet:12", Machine(), "capuchin", 0.9, steps=3)
    forked = worker.carried_out(one, CellLimits())
    monkeypatch.delattr(os, "fork")  # as on Windows
    alone = worker.carried_out(one, CellLimits())
    assert alone.settled_s == forked.settled_s is not None and alone.status == forked.status
    limited = worker.carried_out(one, CellLimits(seconds=60))
    assert limited.status.startswith("cannot: limits of time and memory need os.fork")
