"""Kernels timed one by one (CUPTI) instead of by events: on the fake vendor, whose host can be late, and with a CUPTI
whose records are invented."""

import importlib
import sys
from enum import IntEnum
from types import SimpleNamespace

import fake_cuda
import pytest
from fake_cuda import KERNEL_S, FakeCuda, WatchedCuda
from networks import Training

import minidl
from minidl import device as devices
from minidl.device import profiles
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.cuda import missing
from minidl.device.cuda.kernel_times import busy_seconds
from minidl.device.cuda.seam import TimedWork
from minidl.device.cuda.streams import EventStreams
from minidl.errors import DeviceError, UserError

LATE = 1e-3  # seconds that the host takes between two pieces of work, where it is late
WORK = 1_000_000  # bytes that the fake fills in a microsecond


# Spans ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("spans", "seconds"), [
    ([(0, 1), (3, 5)], 3),  # a gap is not counted
    ([(3, 5), (0, 1)], 3),  # in any order
    ([(0, 4), (2, 6)], 6),  # an overlap once
    ([(0, 9), (2, 3), (4, 5)], 9),  # one within another
    ([(0, 9), (2, 3), (8, 10)], 10),
    ([(5, 5)], 0),
])
def test_a_piece_of_work_takes_as_long_as_any_of_its_kernels_runs(spans, seconds):
    assert busy_seconds([TimedWork(7, *span) for span in spans]) == {7: seconds}


def test_each_piece_of_work_has_its_own_kernels():
    spans = [TimedWork(2, 4, 5), TimedWork(1, 0, 1), TimedWork(2, 1, 2), TimedWork(1, 2, 4)]
    assert busy_seconds(spans) == {1: 3, 2: 2}
    assert busy_seconds([]) == {}


# Streams ----------------------------------------------------------------------------------------------------------
class Bench:
    """Streams on a fake, and what they have told."""

    def __init__(self, *, depth=64, on=True):
        self.fake = FakeCuda()
        self.address = self.fake.allocate(10 * WORK)
        self.host = self.fake.allocate_host(WORK)
        self.streams = EventStreams(self.fake, depth=depth)
        self.told = []
        self.streams.measure_exactly(on)

    def fill(self, *microseconds, late=0.0):
        """One piece of work with these kernels; before each the host is late."""
        self.streams.begin()
        for each in microseconds:
            self.fake.host_time += late
            self.fake.fill(self.address, 0, each * WORK, self.streams.handles[COMPUTE])
        return self.streams.mark(COMPUTE, self.told.append)

    def copy(self, stream):
        ends = (self.host, self.address) if stream == COPY_OUT else (self.address, self.host)
        self.fake.copy(*ends, WORK, self.streams.handles[stream])
        return self.streams.mark(stream)


def microseconds(seconds):
    return pytest.approx([1e-6 * each for each in seconds], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("on", [False, True])
def test_what_the_host_takes_is_not_counted_when_kernels_are_noted(on):
    bench = Bench(on=on)
    bench.fill(2, late=LATE)
    bench.fill(1, 3, late=LATE)
    bench.streams.settle()
    if on:
        assert bench.told == microseconds([2, 4])
    else:
        assert bench.told[0] > LATE and bench.told[1] > 2 * LATE


def test_other_streams_work_is_not_counted():
    bench = Bench()
    bench.fill(2)
    bench.copy(COPY_OUT)
    bench.copy(COPY_IN)
    bench.fill(3)
    bench.streams.settle()
    assert bench.told == microseconds([2, 3])


def test_a_wait_for_a_copy_is_a_stall_as_before_and_no_work():
    stalls = []
    for on in (False, True):
        bench = Bench(on=on)
        bench.fill(1)
        bench.streams.wait(COMPUTE, COPY_IN, bench.copy(COPY_IN))
        bench.fill(4)
        bench.streams.settle()
        assert not on or bench.told == microseconds([1, 4])
        stalls.append((bench.streams.stall, bench.streams.stood))
    assert stalls[0][0] == pytest.approx(stalls[1][0], abs=3e-6) and stalls[0][0] > 20e-6
    assert stalls[0][1].keys() == stalls[1][1].keys() == {(COPY_IN, 1)}


def test_what_was_not_noted_keeps_the_time_between_its_events():
    bench = Bench()
    for each in (1, 2, 3):
        bench.fill(each, late=LATE)
    # Positions 1, 2 and 3; nothing is known of the second.
    bench.fake.recorder_now.distort = lambda spans: [span for span in spans if span.tag != 2]
    bench.streams.settle()
    assert [bench.told[0], bench.told[2]] == microseconds([1, 3])
    assert bench.told[1] > LATE


def test_if_notes_were_lost_events_tell_all_times():
    bench = Bench()
    bench.fill(1, late=LATE)
    bench.fake.recorder_now.distort = lambda spans: None
    bench.streams.settle()
    assert bench.told[0] > LATE


def test_noting_ends_and_may_begin_again():
    bench = Bench()
    bench.fill(1, late=LATE)
    bench.streams.measure_exactly(False)
    assert bench.told == microseconds([1]) and bench.fake.recorder_now is None
    bench.fill(1, late=LATE)
    bench.streams.settle()
    bench.streams.measure_exactly(False)
    bench.streams.measure_exactly(True)
    bench.streams.measure_exactly(True)
    bench.fill(5, late=LATE)
    bench.streams.settle()
    assert bench.told[1] > LATE and [bench.told[2]] == microseconds([5])
    assert bench.fake.counts["recorder"] == 2


@pytest.mark.parametrize("depth", [4, 5, 16])
def test_more_work_than_the_ring_has_events_is_told_exactly_once_each_in_order(depth):
    bench = Bench(depth=depth)
    for each in range(50):
        bench.fill(1 + each % 5, 1, late=LATE)
    bench.streams.settle()
    assert bench.told == microseconds([2 + each % 5 for each in range(50)])


def test_noting_may_begin_when_the_ring_is_full():
    for earlier in range(5):
        bench = Bench(depth=4, on=False)
        for _ in range(earlier):
            bench.fill(1, late=LATE)
        bench.streams.measure_exactly(True)
        bench.fill(1, 1, late=LATE)
        bench.streams.settle()
        assert bench.told[earlier:] == microseconds([2])


def test_a_copy_that_is_under_way_is_waited_for_but_is_no_stall():
    bench = Bench()
    bench.fill(1)
    bench.copy(COPY_OUT)
    bench.streams.settle()  # else the judge says that something was at work
    bench.fill(1)
    bench.streams.settle()
    assert bench.streams.stall == 0.0 and bench.told == microseconds([1, 1])


# The whole manager ------------------------------------------------------------------------------------------------
class Trained:
    """A few iterations of a small network."""

    def __init__(self, policy, *, iterations, cupti=True, budget=1 << 26):
        self.device = WatchedCuda(profiles.get("cpu"), cupti=cupti)
        # Calls' times are scaled to what an iteration takes: by the fake's clock, like them, not by this machine's.
        self.device.streams.now = lambda: self.device.fake.host_time
        self.noted = []  # after each iteration: whether the next one is noted
        with minidl.Runtime(self.device, memory_budget=budget + (1 << 16), host_memory="4MiB",
                            policy=policy) as runtime:
            training = Training(runtime, "vgg", "momentum")
            for number in range(iterations):
                runtime.keeps_trace = policy == "dtr" and number == iterations - 1
                before, self.replays = runtime.stats(), 0
                replaying = runtime.memory.replaying
                replay = replaying.replay_call

                def counted(*args, replay=replay):
                    self.replays += 1
                    replay(*args)
                replaying.replay_call = counted
                training.iterate()
                replaying.replay_call = replay
                self.noted.append(self.device.fake.recorder_now is not None)
            self.stats, self.grown = runtime.stats(), runtime.stats().since(before)
            self.trace = runtime.last_trace or runtime.guide.entries[0].trace


@pytest.fixture
def slow_host(monkeypatch):
    """A call of the vendor takes longer than any kernel of these small networks."""
    monkeypatch.setattr(fake_cuda, "CALL_S", 10 * KERNEL_S)


def launches(call):
    """How many kernels of the fake a call is, where that is simple."""
    return {"relu": 1, "max_pool2d": 1, "relu_grad": 1, "linear": 2, "conv2d": 2, "conv2d_dgrad": 1}.get(call.op)


def test_times_line_up_with_their_calls_though_a_value_is_read_before_they_are_known():
    for cupti in (False, True):
        trace = Trained("capuchin", iterations=5, cupti=cupti).trace
        assert trace.calls[-1].op == "read"
        known = [call for call in trace.calls if launches(call)]
        assert len(known) > 20 and all(call.seconds == pytest.approx(launches(call) * KERNEL_S, rel=0.2)
                                       for call in known)


def test_the_trace_that_plans_are_made_from_has_exact_times(slow_host):
    exact, events = Trained("capuchin", iterations=3).trace, Trained("capuchin", iterations=5, cupti=False).trace
    assert [call.op for call in events.calls] == [call.op for call in exact.calls]
    assert all(call.seconds == pytest.approx(launches(call) * KERNEL_S) for call in exact.calls if launches(call))
    assert all(0 < call.seconds < 4 * KERNEL_S for call in exact.calls)
    assert events.seconds > 9 * KERNEL_S * len(events.calls) > 5 * exact.seconds


def test_one_iteration_is_noted_and_those_under_a_plan_are_not():
    run = Trained("capuchin", iterations=6)
    # Before the first iteration come the parameters, a sequence that is not seen again; the first one warms up, and the
    # second is measured. The plan is followed from the third one on.
    assert run.noted == [True, False, False, False, False, False]
    assert run.device.fake.counts["recorder"] == 1 and run.device.measured_iterations == 1


def test_replays_are_timed_exactly_and_are_not_in_the_trace(slow_host):
    free = Trained("capuchin", iterations=2)
    run = Trained("dtr", iterations=2, budget=int(0.7 * free.stats.peak_bytes))
    assert run.replays > 0 and run.grown.recomputed_bytes > 0
    assert run.replays * KERNEL_S <= run.grown.recompute_seconds * 1.001 < 3 * run.replays * KERNEL_S
    # How many parameters one update takes follows from the budget.
    ours, theirs = ([call for call in each.trace.calls if not call.op.endswith("_")] for each in (run, free))
    assert [call.op for call in ours] == [call.op for call in theirs]
    assert [call.seconds for call in ours] == pytest.approx([call.seconds for call in theirs])


def test_without_the_switch_nothing_is_ever_noted():
    run = Trained("capuchin", iterations=5, cupti=False)
    assert "recorder" not in run.device.fake.counts and run.device.measured_iterations == 3


def test_where_cupti_cannot_be_one_line_says_why(monkeypatch):
    for name in ("cpu", "cpu:virtual", "sim:h200"):
        with pytest.raises(UserError, match=f"{name}: CUPTI times kernels on a GPU only"):
            devices.create(name, cupti=True)
    monkeypatch.setattr(missing, "message", lambda: None)
    monkeypatch.setattr(missing, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"timing by CUPTI needs cupti-python: pip install 'minidl\[cupti\]'"):
        devices.create("cuda", cupti=True)


# CUPTI ------------------------------------------------------------------------------------------------------------
class Kind(IntEnum):
    CONCURRENT_KERNEL, MEMCPY, MEMSET, DRIVER, RUNTIME, EXTERNAL_CORRELATION = range(1, 7)


class External(IntEnum):
    CUSTOM0, CUSTOM1 = 1, 2


class FakeCupti:
    """The names of cupti-python that are used, and what would be told at the next flush."""

    ActivityKind, ExternalCorrelationKind, cuptiError = Kind, External, RuntimeError

    def __init__(self):
        self.enabled, self.stack, self.flushes, self.registered = set(), [], [], 0
        self.waiting, self.dropped, self.refuses = [], 0, False

    def activity_register_callbacks(self, requested, completed):
        assert requested() == (8 << 20, 0)
        self.registered += 1
        self.completed = completed

    def activity_enable(self, kind):
        if self.refuses:
            raise RuntimeError("INSUFFICIENT_PRIVILEGES")
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.remove(kind)

    def get_stream_id_ex(self, context, stream, per_thread):
        assert (context, per_thread) == (11, 0)
        return stream + 100

    def activity_push_external_correlation_id(self, kind, number):
        self.stack.append((kind, number))

    def activity_pop_external_correlation_id(self, kind):
        assert self.stack.pop()[0] == kind

    def activity_flush_all(self, flag):
        self.flushes.append(flag)
        for batch in self.waiting:
            self.completed(batch)
        self.waiting = []

    def activity_get_num_dropped_records(self, context, stream, address):
        import ctypes
        ctypes.c_size_t.from_address(address).value, self.dropped = self.dropped, 0


@pytest.fixture
def cupti(monkeypatch):
    """The module over an invented CUPTI."""
    fake = FakeCupti()
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=fake))
    monkeypatch.delitem(sys.modules, "minidl.device.cuda.cupti_recorder", raising=False)
    module = importlib.import_module("minidl.device.cuda.cupti_recorder")
    yield fake, module.CuptiRecorder
    sys.modules.pop("minidl.device.cuda.cupti_recorder", None)


def kernel(correlation, start, end, *, stream=103, kind=Kind.CONCURRENT_KERNEL):
    return SimpleNamespace(kind=kind, correlation_id=correlation, stream_id=stream, start=start, end=end)


def whose(correlation, tag, *, kind=External.CUSTOM0):
    return SimpleNamespace(kind=Kind.EXTERNAL_CORRELATION, external_kind=kind, correlation_id=correlation,
                           external_id=tag)


def call(correlation):
    return SimpleNamespace(kind=Kind.DRIVER, correlation_id=correlation, start=0, end=10**9)


def test_records_become_spans_of_their_tags_in_whatever_order_they_come(cupti):
    fake, recorder = cupti
    notes = recorder(11, 3)
    fake.waiting = [[kernel(1, 1000, 3000), call(1), kernel(2, 5000, 6000, kind=Kind.MEMCPY)],  # before their tags
                    [whose(2, 8), whose(1, 7), whose(3, 8), kernel(3, 6500, 7000, kind=Kind.MEMSET)]]
    assert sorted(notes.spans(), key=lambda s: s.start) == [
        TimedWork(7, pytest.approx(1e-6), pytest.approx(3e-6)), TimedWork(8, pytest.approx(5e-6), pytest.approx(6e-6)),
        TimedWork(8, pytest.approx(6.5e-6), pytest.approx(7e-6))]
    assert fake.flushes == [1] and notes.spans() == []


def test_work_of_other_streams_of_others_tags_and_of_nobody_is_left_out(cupti):
    fake, recorder = cupti
    notes = recorder(11, 3)
    fake.waiting = [[whose(1, 7), whose(2, 7, kind=External.CUSTOM1), kernel(1, 0, 1, stream=104), kernel(2, 0, 1),
                     kernel(3, 0, 1)]]
    assert notes.spans() == []


def test_what_was_told_before_is_not_this_recorders(cupti):
    fake, recorder = cupti
    first = recorder(11, 3)
    first.close()
    fake.completed([whose(1, 7), kernel(1, 0, 1)])
    assert recorder(11, 3).spans() == []


def test_if_cupti_dropped_records_it_says_so_once(cupti):
    fake, recorder = cupti
    fake.dropped = 5  # of others, before
    notes = recorder(11, 3)
    fake.waiting = [[whose(1, 7), kernel(1, 0, 1)]]
    assert len(notes.spans()) == 1
    fake.dropped = 1
    fake.waiting = [[whose(2, 7), kernel(2, 0, 1)]]
    assert notes.spans() is None and notes.spans() == []


def test_one_tag_is_in_force_at_a_time_and_none_afterwards(cupti):
    fake, recorder = cupti
    notes = recorder(11, 3)
    for number in (1, 2, 3):
        notes.tag(number)
        assert fake.stack == [(External.CUSTOM0, number)]
    assert set(Kind) == fake.enabled
    notes.close()
    assert fake.stack == [] and fake.enabled == set()
    recorder(11, 3).close()
    assert fake.registered == 1 and fake.stack == []


def test_a_refusal_of_cupti_is_an_error_with_its_words(cupti):
    fake, recorder = cupti
    fake.refuses = True
    with pytest.raises(DeviceError, match="CUPTI cannot record: INSUFFICIENT_PRIVILEGES"):
        recorder(11, 3)
