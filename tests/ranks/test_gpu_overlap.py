"""Exchanges between GPUs run beside the compute stream, and what touches their bytes later waits for them."""

import random
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from fake_cuda import WatchedCuda
from fake_nccl import FakeNccl
from gpu_bench import Bench, Operand, gpu
from races import Violation
from rank_programs import together, train

from minidl import Runtime, nn, optim
from minidl.device.beside import BESIDE, EXCHANGES
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.cuda.group import Group
from minidl.device.in_use import InUse
from minidl.meta import Cost, float32, meta
from minidl.parts.slicing.buckets import Buckets
from minidl.parts.slicing.exchange import GATHER_RANKS, SUM_RANKS
from minidl.view.recorder import StepRecorder
from minidl.view.recording import EventKind

pytestmark = pytest.mark.usefixtures("one_thread")
HOST, SIZE, RANKS = -1, 640, 2


# What touches the bytes of an exchange ----------------------------------------------------------------------------
def launch(bench, op_name, output, *inputs, workspace=(0, 0)):
    device = bench.device
    cost, metas = Cost(0.0, 0.0, "elementwise"), tuple([x.meta for x in inputs])
    (algorithm,) = device.algorithms(op_name, metas, (output.meta,), {}, cost)
    object.__setattr__(algorithm, "workspace", workspace[1])
    device.launch(op_name, algorithm, (output,), inputs, {}, workspace[0])


TOUCHES = {  # by name: (the stream that must wait, what it does on a bench with x, the tensor of an exchange)
    "a kernel that reads": (COMPUTE, lambda bench, x: launch(bench, "relu", bench.empty(x.meta), x)),
    "a kernel that writes": (COMPUTE, lambda bench, x: launch(bench, "relu", x, bench.put(x.meta, 1.0))),
    "a kernel with its workspace there": (COMPUTE, lambda bench, x: launch(
        bench, "relu", bench.empty(x.meta), bench.put(x.meta, 1.0), workspace=(x.block.offset, 256))),
    "a kernel on a part of the bytes": (COMPUTE, lambda bench, x: launch(
        bench, "relu", Operand(x.block.offset + x.block.size - 256, 256, meta((8,), float32)),
        bench.put(meta((8,), float32), 1.0))),
    "a kernel in the workspace of the exchange": (COMPUTE, lambda bench, x: launch(
        bench, "relu", Operand(bench.scratch, 256, meta((8,), float32)), bench.put(meta((8,), float32), 1.0))),
    "a move from there": (COMPUTE, lambda bench, x: bench.device.move(bench.free, x.block.offset, x.block.size)),
    "a move to there": (COMPUTE, lambda bench, x: bench.device.move(x.block.offset, bench.free, x.block.size)),
    "a copy to the host": (COPY_OUT, lambda bench, x: bench.device.copy_out(((0, 256),), x.block.offset, 256)),
    "a copy from the host": (COPY_IN, lambda bench, x: bench.device.copy_in(x.block.offset, ((0, 256),), 256)),
    "the host that reads": (HOST, lambda bench, x: bench.device.read(x)),
    "another library that reads a copy": (HOST, lambda bench, x: bench.device.share(x)),
    "another library that reads": (HOST, lambda bench, x: bench.device.interface(x)),
}


def known(device, stream):
    """How far the stream, or the host, knows the exchanges to be."""
    fake = device.fake
    return (fake.host_known if stream == HOST else fake.before(stream))[device.group.number]


def exchange(bench, op=SUM_RANKS, timed=None):
    """Issue an exchange of a tensor; return an input, an output, and the position of the exchange on its stream."""
    device, x = bench.device, bench.put(meta((SIZE,), float32), 1.0)
    attrs = {"ranks": bench.ranks, "turn": "a test"} | ({"each": 1} if op is SUM_RANKS else {"rows": (SIZE,) * RANKS})
    (made,) = op.describe((x.meta,), attrs)
    y = bench.empty(made)
    (algorithm,) = device.algorithms(op.name, (x.meta,), (made,), attrs, Cost(0.0, 0.0, "exchange"))
    bench.scratch = bench.free
    bench.free += algorithm.workspace
    device.launch(op.name, algorithm, (y,), (x,), attrs, bench.scratch, timed)
    return x, y, device.fake.streams[device.group.number].known[device.group.number]


def touch(kind, of=None):
    """Issue an exchange and then what touches bytes of its output (of=1) or input (of=0), or others (None); return by
    how much the stream, or the host, knows less than that the exchange has ended: before, and after."""
    stream, act = TOUCHES[kind]

    def work(ranks):
        bench = Bench(network, ranks)
        *operands, position = exchange(bench)
        other = bench.put(meta((SIZE,), float32), 2.0)
        before = position - known(bench.device, stream)
        act(bench, other if of is None else operands[of])
        after = position - known(bench.device, stream)
        bench.device.vendor.free(bench.device._arena)
        return before, after
    network = FakeNccl(late=True)
    found, *others = together(RANKS, work)
    assert all(other == found for other in others)
    return found


@pytest.mark.parametrize("kind", TOUCHES)
def test_what_touches_the_bytes_of_an_exchange_waits_for_it(kind):
    for of in (0, 1):
        before, after = touch(kind, of)
        assert before > 0 and after <= 0


@pytest.mark.parametrize("kind", [kind for kind in TOUCHES if "workspace of" not in kind])
def test_what_touches_other_bytes_does_not_wait(kind):
    before, after = touch(kind)
    assert before == after > 0


@patch("fake_nccl.LINK", 1e6)
def test_a_tensor_that_is_needed_at_once_takes_the_time_of_its_call_and_a_sum_takes_none():
    def work(ranks):
        bench, seconds = Bench(network, ranks), []
        device = bench.device
        *_, position = exchange(bench, SUM_RANKS, seconds.append)
        assert known(device, COMPUTE) < position
        *_, position = exchange(bench, GATHER_RANKS, seconds.append)
        assert known(device, COMPUTE) >= position
        device.streams.settle()
        device.vendor.free(device._arena)
        return seconds
    network = FakeNccl()
    for of_sum, of_gather in together(RANKS, work):
        assert of_sum < 1e-5 and of_gather > 2 * 4 * SIZE / 1e6


# A training -------------------------------------------------------------------------------------------------------
def trained(**options):
    network = FakeNccl(late=True)

    def work(ranks):
        device = gpu(network, ranks.rank, WatchedCuda)
        train("lstm", ranks=ranks, device=device, budget=1 << 22, host=1 << 12, batches=(4,), **options)
        device.close()
    together(RANKS, work)


def not_after_compute(self):
    """Let an exchange begin before its inputs are there."""


def not_held(self, stream, start, stop):
    """Let no stream wait for an exchange."""


def one_too_early(self, stream, start, stop, right=InUse.needed):
    """Wait for the exchange before the right one."""
    return max(0, right(self, stream, start, stop) - 1)


@pytest.mark.parametrize("owner, name, bug, told", [
    (Group, "wait_for_compute", not_after_compute, r"does not wait until .* (written|read) by compute"),
    (Group, "hold", not_held, r"does not wait until .* (written|read) by exchange"),
    (InUse, "needed", one_too_early, r"does not wait until .* (written|read) by exchange")],
    ids=["before an exchange", "after an exchange", "for the exchange before"])
def test_a_missing_wait_is_found(owner, name, bug, told):
    with patch.object(owner, name, bug), pytest.raises(Violation, match=told):
        trained()


def test_a_training_waits_where_it_must():
    trained()


@contextmanager
def six_layers(network, ranks):
    """Yield a rank's device and runtime, a model of six layers, and a function that returns its loss."""
    device = gpu(network, ranks.rank)
    with Runtime(device, memory_budget=1 << 24, policy="none", ranks=ranks) as runtime:
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        yield device, runtime, model, lambda: model(runtime.tensor(np.ones((8, 64), "float32"))).sum()


@patch.object(Buckets, "full_bytes", 1)
def test_sums_of_gradients_run_beside_the_backward_pass():
    """The compute stream is told to wait for a sum by the optimizer, not before."""
    def work(ranks):
        with six_layers(network, ranks) as (device, _, model, loss):
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            loss().backward()
            issued, waited = device.group.in_use.latest, device.group.in_use.waited[COMPUTE]
            optimizer.step()
            return issued, waited, device.group.in_use.waited[COMPUTE]
    network = FakeNccl()
    for issued, waited, later in together(RANKS, work):
        assert issued >= 6 and waited <= 1 and later == issued


@patch.object(Buckets, "full_bytes", 1)
def test_the_page_shows_when_exchanges_ran():
    def work(ranks):
        with six_layers(network, ranks) as (_, runtime, _, loss):
            recorder = StepRecorder(runtime)
            with recorder.recording(), runtime.iteration():
                loss().backward()
        return recorder.recorded
    network = FakeNccl()
    for recorded in together(RANKS, work):
        calls = [event for event in recorded.events if event.kind is EventKind.CALL]
        sums = [event for event in calls if event.op in BESIDE]
        assert len(sums) > 6 and all(event.end_s > event.start_s for event in sums)
        assert all(event.start_s >= max(call.end_s for call in calls[:n] if call.op not in BESIDE)
                   for n, event in enumerate(calls) if event.op in BESIDE and n)  # its inputs are there
        beside = sum(max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s))
                     for a in sums for b in calls if b.op not in EXCHANGES)
        assert beside > 0.0


# Ranges of bytes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_ranges_in_use_are_those_of_a_list_of_bytes(seed):
    draw, in_use, bytes_ = random.Random(seed), InUse(), [0] * 40
    waited = [0, 0, 0]
    for _ in range(200):
        start, stop = sorted(draw.sample(range(41), 2))
        verb = draw.choice(["use", "use", "needed", "forget"])
        if verb == "use":
            in_use.latest += draw.choice([0, 1])
            in_use.use(start, stop)
            bytes_[start:stop] = [in_use.latest] * (stop - start)
        elif verb == "forget" and draw.random() < 0.2:
            number = draw.randint(0, in_use.latest)
            in_use.forget(number)
            bytes_ = [0 if each <= number else each for each in bytes_]
        else:
            stream = draw.randrange(3)
            right = max(bytes_[start:stop])
            assert in_use.needed(stream, start, stop) == (right if right > waited[stream] else 0)
            waited[stream] = max(waited[stream], right)
        assert len(in_use) <= 40 and in_use.waited == waited
