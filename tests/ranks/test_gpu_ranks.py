"""Ranks on GPUs, over a vendor that judges each call and CuPy's calls of NCCL between threads (``fake_nccl``).

No GPU is needed: the bits of slices on one device, whichever layout and order of arrival; planted bugs; and the ends.
"""

import random
import sys
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from fake_cuda import JudgedCuda, WatchedCuda
from fake_nccl import FakeNccl
from gpu_bench import PROFILE, Bench, gpu
from races import Violation
from rank_programs import NETWORKS, Outcome, outcomes, together, train

from minidl import Runtime, nn
from minidl import device as devices
from minidl.device.clock import COPY_IN
from minidl.device.cpu import exchange as cpu_exchange
from minidl.device.cuda import device as cuda_device
from minidl.device.cuda import exchange, memory_format, missing, nccl
from minidl.device.cuda.exchange import Copied, Sent
from minidl.device.cuda.group import Group
from minidl.errors import DeviceError, UserError
from minidl.kernels.cpu import KERNELS
from minidl.meta import float32, meta
from minidl.parts.slice_rules import sizes_of
from minidl.parts.slicing.exchange import GATHER_RANKS, GATHER_ROWS, SUM_RANKS, SUM_ROWS
from minidl.ranks import Ranks, RanksDiverged, modelled, threads
from minidl.ranks.mpi import MpiRanks

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT, LONGER, AMPLE = (10, 7), (10, 10, 10, 10, 7), 1 << 28


# Training ---------------------------------------------------------------------------------------------------------
@cache
def slices(network: str, count: int, batches=SHORT) -> Outcome:
    """The outcome of slices on one such GPU."""
    device = gpu()
    found = train(network, slices=count, device=device, batches=batches, budget=AMPLE)
    device.close()
    return found


def on_gpus(name, count, *, late=True, seed=0, divide="nothing", made=JudgedCuda, share=1.0, **options):
    """The outcomes of the ranks, and how many groups of messages they issued."""
    network = FakeNccl(late=late, seed=seed)

    def work(ranks):
        device = gpu(network, ranks.rank, made)
        budget = AMPLE if share == 1.0 else _budget(name, ranks, share)
        found = train(name, ranks=ranks, device=device, budget=budget, **options)
        device.close()
        return found
    return together(count, work, divide), network.groups


def _budget(name, ranks, share):
    """A share of what a step on this GPU needs unmanaged, on the rank that needs most."""
    make, loss, optimizer_of = NETWORKS[name]
    device = JudgedCuda(PROFILE, network=FakeNccl())
    alone = modelled(ranks.count)
    with Runtime(device.dry_twin(), memory_budget=AMPLE, policy="none", ranks=alone, seed=11) as runtime:
        model = make()
        optimizer = optimizer_of(model.parameters())

        def step():
            optimizer.zero_grad()
            loss(runtime, model, 10, 0).backward()
            optimizer.step()
        demand = runtime.dry_run(step)
    return max(int(share * demand.unmanaged_peak_bytes), demand.largest_op_bytes) + device.reserved_bytes


@pytest.mark.default(name=["lstm"], count=[3])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_ranks_on_gpus_have_the_bits_of_slices_on_one(name, count):
    found, groups = on_gpus(name, count, seed=count, batches=SHORT)
    assert found == [slices(name, count)] * count and groups >= 2 * count


@pytest.mark.default(divide=["gradients"])
@pytest.mark.parametrize("divide", ["states", "gradients"])
def test_gpus_that_divide_states_and_gradients_keep_the_bits(divide):
    assert on_gpus("bert-tiny", 3, divide=divide, batches=SHORT)[0] == [slices("bert-tiny", 3)] * 3


@pytest.mark.slow
def test_two_gpus_hold_two_of_four_slices_each():
    assert on_gpus("bert-tiny", 2, slices=4, batches=SHORT)[0] == [slices("bert-tiny", 4)] * 2


@pytest.mark.default(policy=["passive"])
@pytest.mark.parametrize("policy, share", [("passive", 0.6), ("capuchin", 0.7), ("auto", 0.6)])
def test_gpus_short_of_memory_keep_the_bits_and_wait_where_they_must(policy, share):
    """Copies to and from the host run beside the exchanges; the watched device knows what each of them waits for."""
    batches = SHORT if policy == "passive" else LONGER  # which are enough for a plan
    found, _ = on_gpus("gpt2-tiny", 2, policy=policy, share=share, made=WatchedCuda, batches=batches, host=1 << 24)
    assert found == [slices("gpt2-tiny", 2, batches)] * 2


# One exchange, in every layout ------------------------------------------------------------------------------------
def layouts(shape, draw):
    """Descriptions of a tensor of this shape: dense, channels-last, turned, or with a hole before it."""
    dense = meta(shape, float32)
    found = [dense, meta(shape, float32, None, 3)]
    if len(shape) == 4:
        found.append(memory_format.channels_last(dense))
    if len(shape) == 2:
        found.append(meta(shape, float32, (1, shape[0])))
    return draw.choice(found)


SHAPES = ((1,), (700,), (2100,), (37, 19), (30, 40), (12, 3, 5, 4), (9, 7, 1, 1), (0,))


def case(seed):
    """An exchange, the same on all ranks: (number of ranks, slices of each, shapes, operation)."""
    draw = random.Random(seed)
    op = draw.choice([SUM_RANKS, SUM_RANKS, SUM_ROWS, GATHER_RANKS, GATHER_ROWS])
    count, each = draw.choice([2, 2, 3, 4, 5]), draw.choice([1, 1, 2, 3])
    shapes = [draw.choice(SHAPES) for _ in range(draw.choice([1, 1, 2, 5]))]
    if op in (SUM_ROWS, GATHER_ROWS):
        shapes = [shape for shape in shapes if shape[0] >= count * each] or [(count * each + 1, 5)]
    if op is GATHER_RANKS:
        shapes = [draw.choice([shape for shape in SHAPES if shape[0]])]
    return count, each, shapes, op


def right(op, arrays, ranks, outputs, attrs):
    """The results by the exchange on NumPy arrays, between the same threads."""
    if op is GATHER_ROWS:
        cpu_exchange.gather_rows(*arrays, add=KERNELS["add"], ranks=ranks, **attrs)
        return arrays
    made = [np.empty(y.shape, np.float32) for y in outputs]
    run = {SUM_RANKS: cpu_exchange.sum_ranks, SUM_ROWS: cpu_exchange.sum_rows, GATHER_RANKS: cpu_exchange.gather_ranks}
    run[op](*made, *arrays, add=KERNELS["add"], ranks=ranks, **attrs)
    return made


def exchanges_alike(seed, count, each, shapes, op, network):
    def work(ranks):
        numbers, draw = np.random.default_rng([seed, ranks.rank]), random.Random(seed)  # one layout on all ranks
        bench = Bench(network, ranks)
        attrs = {"each": each}
        if op is GATHER_RANKS:
            rows = sizes_of(shapes[0][0], count)
            attrs, mine = {"rows": rows}, [(rows[ranks.rank], *shapes[0][1:])]
        else:
            mine = shapes * (1 if op is GATHER_ROWS else each)
        if op is GATHER_ROWS:
            attrs = {"slices": count * each}
        metas = [meta(shape, float32) if op is GATHER_ROWS else layouts(shape, draw) for shape in mine]
        inputs = [bench.put(m, numbers.standard_normal(m.shape)) for m in metas]
        arrays = [bench.array(x).copy() for x in inputs]
        outputs = op.describe(metas, attrs | {"ranks": ranks, "turn": ""})
        wanted = right(op, arrays, ranks, outputs, attrs)
        found, workspace = bench.run(op, inputs, attrs, donated=draw.random() < 0.5)
        if op is GATHER_ROWS:
            found = [bench.device.read(x) for x in inputs]
        bench.device.vendor.free(bench.device._arena)
        assert len(found) == len(wanted)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True)), "the bits differ"
        return workspace
    found = together(count, work)
    assert len(set(found)) == 1, f"workspaces {found}"


@pytest.mark.default(first=[0])
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_an_exchange_of_any_layout_has_the_bits_of_that_on_arrays_on_the_host(first):
    for seed in range(first, first + 10):
        with patch.object(exchange, "PIECE", random.Random(seed).choice([64, 256, 1 << 20])):
            exchanges_alike(seed, *case(seed), FakeNccl(late=seed % 2 > 0, seed=seed))


def test_the_cases_contain_what_they_should():
    cases = [case(seed) for seed in range(60)]
    assert {op.name for *_, op in cases} == set(exchange.MAKERS) == set(cpu_exchange.EXCHANGES)
    assert {count for count, *_ in cases} == {2, 3, 4, 5} and {each for _, each, *_ in cases} == {1, 2, 3}


def test_a_sum_takes_no_more_workspace_than_pieces_of_the_other_slices():
    """A gradient of 64 MiB on 8 ranks: 7 pieces arrive, and an eighth holds the sum."""
    large = meta((1 << 24,), float32)
    made = exchange.sum_ranks((large,), (large,), ranks=modelled(8), each=1)
    assert made.workspace == 8 * 4 * exchange.PIECE and len([s for s in made.steps if type(s) is Sent]) == 3
    sent = [x.size for step in made.steps if type(step) is Sent for _, x, sends in step.messages if sends]
    assert sum(sent) == 2 * 7 * (1 << 24) // 8


def test_groups_of_messages_stay_below_the_number_that_nccl_takes():
    tensors = tuple([meta((64, 3), float32)] * 300)
    made = exchange.gather_rows(tensors, (), ranks=modelled(8), slices=8)
    lengths = [len(step.messages) for step in made.steps]
    assert sum(lengths) == 300 * 14 and max(lengths) <= exchange.MOST_MESSAGES < 2048


# Planted bugs -----------------------------------------------------------------------------------------------------
class Elsewhere(Group):
    """A group that issues messages to the copy-in stream, and no stream waits for them."""

    def _issue(self, step, itemsize):
        number, self.number = self.number, COPY_IN if isinstance(step, Sent) else self.number
        try:
            return super()._issue(step, itemsize)
        finally:
            self.number = number


def _own_first(self, total, shares, right=exchange._Maker.sum_shares):
    """Add this rank's own slices first, then those of the others."""
    rank, self.rank = self.rank, self.rank
    steps = len(self.steps)
    right(self, total, shares)
    adds = [step for step in self.steps[steps:] if type(step) is Copied and step.kernel == "add"]
    assert rank == self.rank
    if len(adds) > 1:  # swap the first term and the last
        first, last = adds[0], adds[-1]
        swapped = {id(first): Copied("add", (first.operands[0], last.operands[2], first.operands[2]),
                                     (first.metas[0], last.metas[2], first.metas[2])),
                   id(last): Copied("add", (*last.operands[:2], first.operands[1]), (*last.metas[:2], first.metas[1]))}
        self.steps = [swapped.get(id(step), step) for step in self.steps]


def _shares_by_rank(self, messages, right=exchange._Maker.send):
    """Receive one element more than what is sent, on the last rank: a border that is not the others'."""
    if self.rank == self.count - 1:
        messages = [(peer, x if sends else exchange.Stretch(x.operand, x.start, x.size - 1), sends)
                    for peer, x, sends in messages]
    right(self, messages)


@pytest.mark.parametrize("owner, name, bug, told", [
    (cuda_device, "Group", Elsewhere, "the bits differ|overlaps"),
    (exchange._Maker, "sum_shares", _own_first, "the bits differ"),
    (exchange._Maker, "send", _shares_by_rank, "bytes were sent for|for ever")],
    ids=["no wait between the streams", "another order of the sum", "another border on one rank"])
def test_a_planted_bug_is_found(owner, name, bug, told):
    with patch.object(owner, name, bug), pytest.raises((AssertionError, Violation), match=told):
        for seed in range(20):
            exchanges_alike(seed, *case(seed), FakeNccl(late=True, seed=seed, patience_s=5.0))


# Ends -------------------------------------------------------------------------------------------------------------
def runtimes(networks, uuids=None):
    """A function that makes the runtime of a rank."""
    def made(ranks):
        device = JudgedCuda(PROFILE, numerics=True, network=networks[ranks.rank],
                            uuid=f"GPU-{ranks.rank if uuids is None else uuids[ranks.rank]}")
        made.devices[ranks.rank] = device
        return Runtime(device, memory_budget=1 << 22, policy="none", ranks=ranks)
    made.devices = {}
    return made


def test_gpus_are_refused_on_every_rank_if_one_lacks_nccl_or_two_are_one():
    network = FakeNccl()
    for error in outcomes(3, lambda *_: None, runtimes([network, network, None])):
        assert isinstance(error, UserError) and str(error) == "rank 2: NCCL is missing here"
    for error in outcomes(3, lambda *_: None, runtimes([network] * 3, [7, 8, 7])):
        assert isinstance(error, UserError) and "ranks 0 and 2 have one GPU, GPU-7, and each needs" in str(error)


def step(runtime, batch=4):
    with runtime.iteration():
        layer = nn.Linear(4, 3)
        layer(runtime.tensor(np.ones((batch, 4), "float32"))).sum().backward()


def test_ranks_that_part_raise_before_a_message_is_sent():
    network = FakeNccl()
    before = []

    def work(runtime, rank):
        step(runtime)
        before.append(network.groups)
        step(runtime, batch=4 + 2 * rank)
    errors = outcomes(2, work, runtimes([network] * 2))
    assert all(isinstance(error, RanksDiverged) and "a batch of 6" in str(error) for error in errors), errors
    assert network.groups == max(before)


@pytest.mark.parametrize("caught", [True, False])
def test_an_error_of_nccl_ends_all_ranks_though_the_program_catches_it(caught):
    """The other rank's GPU waits for messages that never come: the wait ends, and the next turn raises."""
    network = FakeNccl()
    told = {}

    def work(runtime, rank):
        step(runtime)
        if rank:
            network.failing.add(1)
        try:
            step(runtime)
        except DeviceError as error:
            told[rank] = str(error)
            if not caught:
                raise
        step(runtime)
    first, second = outcomes(2, work, runtimes([network] * 2))
    assert "sum_ranks: NCCL: NCCL_ERROR_SYSTEM_ERROR: planted" in told[1]
    assert isinstance(first, (RanksDiverged, DeviceError)) and "another rank has failed" in str(first)
    assert isinstance(second, RanksDiverged if caught else DeviceError)


def test_a_process_that_cannot_issue_an_exchange_ends_all_and_says_why(capfd):
    """With MPI a rank that fails ends the processes, so the program cannot catch the error."""
    network, codes = FakeNccl(), []
    mpi_ranks = MpiRanks.__new__(MpiRanks)
    Ranks.__init__(mpi_ranks, 1, 2)
    mpi_ranks._words = SimpleNamespace(Abort=codes.append)

    def work(runtime, rank):
        step(runtime)
        if rank:
            network.failing.add(1)
            fail = runtime.ranks.fail
            runtime.ranks.fail = lambda *why: (MpiRanks.fail(mpi_ranks, *why), fail())
        step(runtime)
    outcomes(2, work, runtimes([network] * 2))
    assert codes[0] == 2
    assert capfd.readouterr().err == "rank 1 of 2: sum_ranks: NCCL: NCCL_ERROR_SYSTEM_ERROR: planted\n"


# Which GPU, and which library -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, rank, opened", [("cuda", 0, 0), ("cuda", 3, 3), ("cuda", 5, 1), ("cuda:2", 3, 2)])
def test_a_rank_has_the_gpu_of_its_number_on_its_machine(name, rank, opened, monkeypatch):
    class Opened(Exception):
        """The GPU that was opened, by its number."""

    def cuda(number):
        raise Opened(number)
    real = SimpleNamespace(Cuda=cuda, count_gpus=lambda: 4)
    monkeypatch.setitem(sys.modules, "minidl.device.cuda.real", real)
    monkeypatch.setattr(missing, "message", lambda: None)
    with pytest.raises(Opened) as found:
        devices.create(name, local_rank=rank)
    assert found.value.args == (opened,)
    with pytest.raises(Opened) as found:
        Runtime(name, ranks=threads(8)[rank])
    assert found.value.args == (opened,)


@pytest.mark.parametrize("available, version, told", [
    (False, 0, "ranks on GPUs need NCCL: pip install nvidia-nccl-cu12"), (True, 20604, "NCCL 2.7 or newer, not 20604"),
    (True, 22707, None)])
def test_nccl_is_found_by_cupy_or_named(available, version, told, monkeypatch):
    found = SimpleNamespace(available=available, get_version=lambda: version)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nccl=found))
    monkeypatch.setattr(missing, "toolkit_cuda", lambda: 12)
    if told is None:
        assert nccl.load() is found
        return
    with pytest.raises(UserError, match=told):
        nccl.load()
