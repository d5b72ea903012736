"""The copies of a GPU's backend are ordered by seven waits, each of which is needed. Needs no GPU."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import NETWORKS, ROOMY, forced, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from bench.support.torch_late import POISON, Kernels, LateCuda, bytes_of  # noqa: E402
from bench.support.torch_waits import PROGRAMS, Late, right  # noqa: E402
from minidl.torch import cuda as cuda_module  # noqa: E402
from minidl.torch.backends import HostPool, allocated  # noqa: E402
from minidl.torch.cuda import Cuda, Wait  # noqa: E402
from minidl.torch.page_locked import GRAIN, PageLocked  # noqa: E402

NBYTES = 8192
DEVICE = torch.device("cpu")


@pytest.fixture
def late(monkeypatch):
    found = LateCuda()
    monkeypatch.setattr(cuda_module, "empty_storage", found.memory)
    return found


def test_each_wait_has_a_program_of_its_own():
    assert set(PROGRAMS) == set(Wait) and len(set(PROGRAMS.values())) == 7


@pytest.mark.parametrize("wait", Wait, ids=lambda wait: wait.name)
def test_a_program_of_its_own_finds_each_wait_that_is_missing(wait):
    whole, without = Late(), Late()
    assert right(whole, wait) and not whole.cuda.races
    if not right(without, wait, missing=True):  # other bytes, too
        assert wait in (Wait.LEFT, Wait.ON_THE_HOST, Wait.RETURNED)
    assert without.cuda.races


@pytest.mark.parametrize("under_way", [0, 1 << 30])
@pytest.mark.parametrize("network", ["convolutional", "transformer", "adversarial"])
def test_a_training_whose_copies_come_as_late_as_they_may_has_the_same_bits_and_no_race(late, network, under_way):
    backend = Cuda(ROOMY, under_way=under_way, cuda=late, copy=late.copy)
    memory = forced("mixed", backend=backend)
    with Kernels(late):
        trained = run(NETWORKS[network], 4, memory)
    assert same(trained, run(NETWORKS[network], 4)) and not late.races
    assert backend.traffic.out_bytes > 0 and backend.traffic.in_bytes > 0


def test_a_planned_training_with_prefetches_and_states_has_the_same_bits_and_no_race(late):
    make = NETWORKS["transformer"]
    known = minidl.torch.managed(ROOMY)
    run(make, 2, known)
    budget = known.report().floor_bytes * 5 // 4
    memory = minidl.torch.managed(budget, backend=Cuda(ROOMY, cuda=late, copy=late.copy), recompute=False)
    with Kernels(late):
        trained = run(make, 5, memory)
    assert same(trained, run(make, 5)) and not late.races
    assert memory.course.known[-1].obeyed.triggers and memory.report().state_bytes > 0


@pytest.mark.parametrize("wait", [Wait.PRODUCED, Wait.LEFT, Wait.RETURNED], ids=lambda wait: wait.name)
def test_a_training_finds_the_commonest_missing_waits_too(late, wait):
    backend = Cuda(ROOMY, under_way=0, cuda=late, copy=late.copy)
    backend.waiting.discard(wait)
    with Kernels(late):
        trained = run(NETWORKS["transformer"], 3, forced("swap", backend=backend))
    assert late.races
    assert wait is Wait.PRODUCED or not same(trained, run(NETWORKS["transformer"], 3))


def test_a_storage_is_held_while_its_copy_is_under_way_and_no_longer(late):
    import weakref
    backend = Cuda(ROOMY, under_way=NBYTES, cuda=late, copy=late.copy)
    first, second = (late.memory(NBYTES) for _ in range(2))
    gone = [weakref.ref(storage) for storage in (first, second)]
    backend.out(first)
    del first
    assert gone[0]() is not None
    backend.out(second)
    del second
    assert gone[0]() is None and gone[1]() is not None  # more than so many bytes were under way
    backend.settle()
    assert gone[1]() is None


def test_buffers_are_cut_from_slabs_in_their_own_sizes_and_are_free_again_when_nothing_refers_to_them():
    late = LateCuda()
    pages = PageLocked(late, 1 << 20, slab=8 * GRAIN)
    first, second = pages.take(3 * GRAIN), pages.take(5 * GRAIN - 100)
    assert (first.nbytes(), second.nbytes()) == (3 * GRAIN, 5 * GRAIN - 100)
    assert second.data_ptr() == first.data_ptr() + 3 * GRAIN and late.locked_bytes == 8 * GRAIN  # no powers of two
    held = bytes_of(first)
    held.fill_(1)
    del first
    pages.take(GRAIN)
    assert late.locked_bytes == 16 * GRAIN and set(held.tolist()) == {1}  # a tensor still lies in it
    address = held.data_ptr()
    del held, second
    assert pages.take(8 * GRAIN).data_ptr() == address and late.locked_bytes == 16 * GRAIN


def test_pages_are_unlocked_before_their_memory_goes_as_new_memory_may_get_the_same_addresses():
    late = LateCuda()
    for _ in range(5):
        pages = PageLocked(late, 1 << 20)
        kept = pages.take(NBYTES)
        del pages  # as ``managed`` goes while the program holds a tensor that was on the host
        assert late.locked_bytes == 1 << 20
        del kept
        assert not late.locked and not late.locked_bytes


def test_pages_that_cannot_be_locked_are_an_error_with_the_bytes_in_it():
    late = LateCuda()
    late.cudaHostRegister = lambda address, nbytes, flags: 2
    with pytest.raises(minidl.errors.UserError, match="8.0 KiB .*error 2"):
        HostPool(NBYTES, PageLocked(late, NBYTES).take).take(NBYTES)


def test_poison_is_what_memory_holds_before_its_bytes_are_back(late):
    backend, storage = Cuda(ROOMY, cuda=late, copy=late.copy), late.memory(NBYTES)
    copy = backend.out(storage)
    assert set(bytes_of(backend.into(copy, DEVICE)).tolist()) == {POISON}


def test_bytes_are_those_that_the_allocator_of_a_gpu_takes():
    sizes = {1: 512, 512: 512, 513: 1024, 10 * 2**20 - 1: 10 * 2**20, 10 * 2**20 + 1: 12 * 2**20}
    assert {nbytes: allocated(nbytes, "cuda") for nbytes in sizes} == sizes
    assert allocated(513, "cpu") == 513


class Allocator:
    """Of a GPU on which each call takes 1,000 bytes for a moment."""

    def __init__(self):
        self.resets = 0

    def reset_peak_memory_stats(self):
        self.resets += 1

    def max_memory_allocated(self):
        return 5000

    def memory_allocated(self):
        return 4000


def test_what_kernels_take_for_themselves_is_in_the_recorded_step_and_in_its_floor():
    plain, memory = minidl.torch.managed(ROOMY), minidl.torch.managed(ROOMY)
    memory.recorder.allocator = Allocator()
    for each in (plain, memory):
        gc.collect()
        gc.freeze()  # tensors of other tests are not on the device
        run(NETWORKS["transformer"], 2, each)
    calls = memory.course.known[0].recorded.trace.calls
    assert memory.recorder.allocator.resets >= sum(call.algorithms[0].workspace == 1000 for call in calls) > 50
    # The allocator also counts a few scalars that no step touches.
    assert 1024 <= memory.report().floor_bytes - plain.report().floor_bytes < 2048
