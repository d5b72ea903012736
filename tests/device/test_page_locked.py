"""Page-locked memory: as much as this container has left, locked as it is used; what is refused is done without."""

import pytest
from fake_cuda import FakeCuda, WatchedCuda
from networks import Training

import minidl
from minidl.device import profiles
from minidl.device.cuda import opening
from minidl.device.cuda.page_locked import PageLocked
from minidl.errors import HostShort
from minidl.memory.bytes.host_pool import HostPool
from minidl.memory.bytes.tiered_pool import TieredPool


def test_a_piece_lies_in_the_chunks_that_it_reaches_and_these_alone_are_locked():
    fake = FakeCuda()
    pages = PageLocked(fake, 1000, chunk_bytes=300)
    assert pages.pieces(()) == [] and not fake._host
    (first, size), = pages.pieces(((10, 200),))
    assert size == 200 and list(fake._host.values()) == [300]
    # 250..650 is 50 bytes of the first chunk, all of the second, 50 of the third; 900..1000 is the last one, of 100.
    found = pages.pieces(((250, 400), (900, 100)))
    chunks = list(fake._host)
    assert found == [(chunks[0] + 250, 50), (chunks[1], 300), (chunks[2], 50), (chunks[3], 100)]
    assert first == chunks[0] + 10 and list(fake._host.values()) == [300, 300, 300, 100] and pages.locked_bytes == 1000
    pages.close()
    assert not fake._host and pages.locked_bytes == 0


def test_what_the_system_refuses_is_said_with_what_was_had():
    pages = PageLocked(FakeCuda(lockable_bytes=700), 1000, chunk_bytes=300)
    with (pytest.warns(RuntimeWarning, match=r"only 600 B of 1000 B of page-locked memory.*out of memory"),
          pytest.raises(HostShort) as caught):
        pages.pieces(((500, 200),))
    assert caught.value.had_bytes == pages.locked_bytes == 600
    assert [size for _, size in pages.pieces(((500, 100),))] == [100]


@pytest.mark.parametrize("make", [HostPool, lambda nbytes: TieredPool(nbytes, 1 << 14)])
def test_a_pool_may_shrink_to_what_is_not_given_out_and_goes_on(make):
    pool = make(1000)
    low, high = pool.allocate(300), pool.allocate(300)
    with pytest.raises(AssertionError, match="in use beyond 500"):
        pool.limit(500)
    pool.limit(700)
    pool.check()
    assert pool.allocate(100) == ((600, 100),)
    pool.free(high)
    pool.limit(2000)  # it never grows
    pool.check()
    assert pool.allocate(300) == high
    if isinstance(pool, TieredPool):  # the file begins where it began
        assert pool.capacity == 700 + (1 << 14) and pool.allocate(50) == ((1000, 50),)
    else:
        assert pool.capacity == 700 and pool.allocate(1) is None
    pool.free(low)
    pool.check()


def test_a_pool_may_shrink_to_what_is_given_out():
    pool = HostPool(1000)
    low = pool.allocate(300)
    pool.limit(300)
    pool.check()
    assert pool.allocate(1) is None
    pool.free(low)
    pool.check()
    assert pool.allocate(300) == low


def train(policy, budget, *, lockable_bytes=1 << 30):
    """State and bytes that were moved."""
    device = WatchedCuda(profiles.get("h200"), numerics=True)
    device.fake.lockable_bytes = lockable_bytes
    with minidl.Runtime(device, memory_budget=budget + (1 << 16), host_memory="8MiB", policy=policy) as runtime:
        training = Training(runtime, "vgg", "momentum")
        for _ in range(5):
            training.iterate()
        stats, host = runtime.stats(), runtime.host_bytes
        state = training.state()
    device.close()
    return state, stats, host


@pytest.mark.slow
def test_a_training_whose_host_memory_is_refused_goes_on_with_what_there_is_and_has_the_same_bits(monkeypatch):
    wanted, free, _ = train("none", 1 << 26)
    budget = int(0.7 * free.peak_bytes)
    _, ample, _ = train("capuchin", budget)
    # Half of what it would have used, in chunks of 64 KiB; and no room for the ring of uploads, which needs 1 MiB.
    monkeypatch.setattr(PageLocked.__init__, "__kwdefaults__", {"chunk_bytes": 1 << 16})
    least = (1 << 20) + ample.host_peak_bytes // 2
    with pytest.warns(RuntimeWarning, match="of 8.0 MiB of page-locked memory could be allocated"):
        state, stats, host = train("capuchin", budget, lockable_bytes=least)
    assert state == wanted and stats.swapped_out_bytes > 0
    assert ample.host_peak_bytes // 2 - (1 << 16) <= host <= ample.host_peak_bytes // 2


@pytest.mark.parametrize(("free", "wanted"), [(10_000_000, 4_997_120), (None, 16 * 2**30)])  # whole pages of a half
def test_half_of_what_this_container_has_left_may_be_locked(free, wanted, monkeypatch):
    monkeypatch.setattr(opening, "free_memory", lambda: free)
    assert opening.lockable_bytes() == wanted
