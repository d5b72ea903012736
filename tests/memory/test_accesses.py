"""Accesses are counted from the log when asked: ``Accesses``."""

import minidl
import minidl.executor as executor
from minidl import Runtime, ones
from minidl.memory.accesses import Accesses
from minidl.ops.elementwise import add, relu


def test_a_question_counts_the_calls_since_the_last_one_each_tensor_once_a_call():
    log = [(None, None, (-1, -1), (0,))]
    accesses = Accesses(log)
    assert (accesses.count(-1), accesses.first(-1)) == (1, 0)  # read twice by one call
    log += [(None, None, (0,), (1,)), (None, None, (-1, 1), (2,))]
    assert [accesses.count(i) for i in (-1, 0, 1, 2, 3)] == [2, 2, 2, 1, 0]
    assert [accesses.first(i) for i in (-1, 0, 1, 2, 3)] == [0, 0, 1, 2, -1]
    log.clear()
    accesses.clear()
    assert (accesses.count(0), accesses.first(0)) == (0, -1)


def test_accesses_go_on_counting_after_the_log_was_given_up(monkeypatch):
    monkeypatch.setattr(executor, "LONGEST", 4)
    with Runtime("sim:p100", policy="passive") as runtime, runtime.iteration():
        x = ones((4,))  # call 1
        values = [relu(x) for _ in range(7)]  # calls 2 to 8; after the fifth the log is given up
        y = add(values[0], x)
        assert runtime.tracker.too_long and not runtime.tracker.log
        assert [x.access_count, values[0].access_count, values[6].access_count, y.access_count] == [9, 2, 1, 1]
        start = runtime.tracker.iteration_start
        assert [t.storage.first_access - start for t in (x, values[0], values[6], y)] == [0, 1, 7, 8]


def test_a_dry_run_changes_no_count_and_no_last_access():
    with Runtime("sim:p100", policy="passive") as runtime, runtime.iteration():
        x = ones((4,))
        y = relu(x)
        before = [(t.access_count, t.storage.first_access, t.storage.last_access) for t in (x, y)]
        runtime.dry_run(lambda: minidl.add(x, y))
        assert before == [(t.access_count, t.storage.first_access, t.storage.last_access) for t in (x, y)]
        relu(y)
        assert (x.access_count, y.access_count) == (2, 2)
