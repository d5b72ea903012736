"""Copies on threads of their own: the same bits, whenever they happen."""

import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_awkward import AWKWARD  # noqa: E402
from torch_nets import NETWORKS, ROOMY, forced, run, same  # noqa: E402
from torch_threads import Threads, _copied  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.backends import HostPool  # noqa: E402


def late(target, source):
    """Poison first, then the bytes: what is used before its copy has ended shows it."""
    whole = torch.empty(0, dtype=torch.uint8).set_(target)
    whole.fill_(0xAB)
    time.sleep(1e-4)
    _copied(target, source)


@pytest.mark.parametrize("under_way", [0, 1 << 30])
@pytest.mark.parametrize("network", ["convolutional", "transformer", "adversarial"])
def test_copies_that_come_late_change_no_bit(network, under_way):
    backend = Threads(ROOMY, under_way=under_way, copy=late)
    memory = forced("swap", backend=backend)
    assert same(run(NETWORKS[network]), run(NETWORKS[network], memory=memory))
    backend.settle()
    assert backend.traffic.out_bytes > 0 and backend.traffic.in_bytes > 0 and backend.traffic.stalled_seconds > 0


@pytest.mark.parametrize("policy", ["auto", "capuchin"])
def test_swap_ins_that_begin_ahead_change_no_bit(policy):
    make = NETWORKS["transformer"]
    known = minidl.torch.managed(ROOMY)
    run(make, 2, known)
    budget = (known.report().floor_bytes + known.report().unmanaged_bytes) // 2
    backend = Threads(ROOMY, copy=late)
    backend.contention = 0.0
    memory = minidl.torch.managed(budget, policy=policy, backend=backend, recompute=False)
    assert same(run(make, 6), run(make, 6, memory))
    obeyed = memory.course.known[-1].obeyed
    assert obeyed.triggers  # and most were in time to begin ahead
    assert memory.report().late < 4 * len({d.tensor_id for d in obeyed.decisions.values()})


@pytest.mark.parametrize("program", ["graph_that_is_retained", "interrupted_steps", "backward_in_another_thread",
                                     "batches_of_changing_sizes", "parts_that_never_learn"])
def test_a_program_that_treats_its_graph_unusually_computes_the_same_beside_copies(program):
    def computed(memory=None):
        torch.manual_seed(0)
        if memory is None:
            return AWKWARD[program]()
        with memory:
            return AWKWARD[program]()
    for how in ("swap", "mixed"):
        memory = forced(how, backend=Threads(ROOMY, copy=late))
        assert same(computed(), computed(memory))


def test_a_storage_is_held_until_its_copy_out_has_ended_and_a_buffer_until_it_is_back():
    go = threading.Event()

    def held(target, source):
        go.wait()
        _copied(target, source)

    backend = Threads(ROOMY, copy=held)
    storage = torch.arange(4096.0).untyped_storage()
    expected = bytes(storage)
    copy = backend.out(storage)
    del storage
    back = backend.into(copy, torch.device("cpu"))
    backend.free(copy)
    assert backend.host.used == 4 * 4096  # it is still to be read
    go.set()
    backend.arrived(copy)
    assert bytes(back) == expected
    assert backend.host.used == 0


def test_an_error_of_a_copy_is_raised_where_its_bytes_are_wanted():
    def broken(target, source):
        raise OSError("no such memory")

    backend = Threads(ROOMY, copy=broken)
    copy = backend.out(torch.zeros(4096).untyped_storage())
    backend.into(copy, torch.device("cpu"))
    with pytest.raises(OSError, match="no such memory"):
        backend.arrived(copy)


def test_host_memory_stays_within_its_capacity_whatever_the_sizes():
    made = []
    pool = HostPool(100, lambda nbytes: made.append(nbytes) or bytearray(nbytes))
    first, second = pool.take(60), pool.take(40)
    assert pool.take(1) is None and pool.used == pool.most == 100
    pool.give(60, first)
    assert pool.take(60) is first and made == [60, 40]  # used again
    pool.give(60, first)
    pool.give(40, second)
    assert len(pool.take(90)) == 90 and pool.used + sum(map(len, pool.free())) <= 100


def test_host_memory_stays_at_what_was_in_use_at_once_where_sizes_change():
    pool = HostPool(1 << 40, bytearray)
    for nbytes in range(100, 200):
        for buffer in [pool.take(nbytes) for _ in range(3)]:
            pool.give(nbytes, buffer)
        assert sum(map(len, pool.free())) <= pool.most == 3 * nbytes
    kept = pool.free()
    assert pool.take(199) in kept and pool.used == 199


def test_a_buffer_that_cannot_be_allocated_is_not_in_use():
    pool = HostPool(100, lambda nbytes: [][nbytes])
    with pytest.raises(IndexError):
        pool.take(60)
    assert pool.used == pool.most == pool.refused == 0
