"""A file behind host memory: the same bits, whatever the disk does, or a clear error; nothing of it stays behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from networks import Training

from minidl import Runtime
from minidl.device.clock import COPY_IN, COPY_OUT, VirtualClock
from minidl.device.profiles import PROFILES
from minidl.device.spill import PAGE, DiskQueue, Spill, SpillFile
from minidl.errors import DeviceError, UserError
from minidl.memory.bytes.tiered_pool import TieredPool

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


def values(runtime_options, *, device="cpu:virtual", policy="passive", steps=6, network="resnet"):
    """(All state after some steps, the runtime's pool, its counters)."""
    with Runtime(device, policy=policy, poisoned=device != "sim:p100", **runtime_options) as runtime:
        training = Training(runtime, network, "momentum")
        for _ in range(steps):
            training.iterate()
        state = training.state() if runtime.device.has_values else None
        return state, runtime.memory.allocator.host, runtime.stats()


# The file -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path):
    made = SpillFile(Spill(str(tmp_path), 16 * PAGE))
    yield made
    made.close()


PIECE = np.arange(10_001, dtype=np.uint32).view(np.uint8)[1:-1]


def back(file):
    found = np.zeros_like(PIECE)
    file.read(PAGE, found)
    return found


def test_what_was_written_comes_back_and_no_file_is_to_be_seen(file, tmp_path):
    file.write(PAGE, PIECE)
    assert np.array_equal(back(file), PIECE)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_anonymous_files_leaves_none_behind_either(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    file = SpillFile(Spill(str(tmp_path), 16 * PAGE))
    file.write(PAGE, PIECE)
    assert np.array_equal(back(file), PIECE) and list(tmp_path.iterdir()) == []
    file.close()


def test_short_writes_and_reads_go_on_where_they_stopped(file, monkeypatch):
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:777], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:333]], at))
    file.write(PAGE, PIECE)
    assert np.array_equal(back(file), PIECE)


def test_a_flipped_bit_is_an_error(file):
    file.write(PAGE, PIECE)
    os.pwrite(file._file, bytes([PIECE[5000] ^ 1]), PAGE + 5000)
    with pytest.raises(DeviceError, match="not the bytes that were written"):
        back(file)


def test_a_write_that_the_disk_only_pretended_is_an_error(file, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: len(data))
    file.write(PAGE, PIECE)
    with pytest.raises(DeviceError, match=r"cannot read 40002 spilled bytes at 4096 .*: these are not the bytes"):
        back(file)


@pytest.mark.parametrize(("call", "answer", "message"), [
    ("pwrite", OSError(errno.ENOSPC, "No space left on device"), "cannot write 40002 .*: No space left on device"),
    ("pwrite", 0, "cannot write 40002 .*: the disk took none of them"),
    ("preadv", OSError(errno.EIO, "Input/output error"), "cannot read 40002 .*: Input/output error"),
    ("preadv", 0, "cannot read 40002 .*: the file ends before them")])
def test_a_disk_that_fails_is_an_error_with_its_own_words(file, monkeypatch, call, answer, message):
    file.write(PAGE, PIECE)

    def fails(*arguments):
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(DeviceError, match=message):
        file.write(PAGE, PIECE)
        back(file)


def test_a_disk_that_is_too_short_is_refused_before_anything_runs(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"^cannot spill 1\.0 GiB to .*: .* free$"):
        Runtime("cpu:virtual", memory_budget=MIB, spill=tmp_path, spill_bytes="1GiB")


def test_a_folder_that_is_not_there_and_half_an_option_are_refused(tmp_path):
    with pytest.raises(UserError, match="^cannot spill to .*/gone: No such file or directory$"):
        Runtime("cpu:virtual", memory_budget=MIB, spill=tmp_path / "gone", spill_bytes=MIB)
    for half in ({"spill": tmp_path}, {"spill_bytes": MIB}):
        with pytest.raises(UserError, match="spill and spill_bytes go together"):
            Runtime("cpu:virtual", memory_budget=MIB, **half)


# The pool -------------------------------------------------------------------------------------------------------------
def test_memory_is_given_out_first_then_whole_pages_of_the_file_then_what_both_have_left():
    pool = TieredPool(1000, 3 * PAGE + 17)
    assert pool.capacity == 1000 + 3 * PAGE
    first, second = pool.allocate(900), pool.allocate(200)
    assert first == ((0, 900),) and second == ((1000, 200),)
    third = pool.allocate(PAGE + 1)
    assert third == ((1000 + PAGE, PAGE + 1),)
    assert pool.allocate(101) is None  # 100 bytes are left of memory, and no page
    pool.free(second)
    assert pool.allocate(PAGE + 50) == ((900, 100), (1000, PAGE - 50))
    assert pool.used_bytes == 900 + PAGE + 1 + PAGE + 50 and pool.spilled_peak_bytes == 3 * PAGE
    pool.check()
    pool.free(third)
    pool.free(first)
    pool.check()


def test_a_tiered_pool_sees_a_counter_that_is_off():
    pool = TieredPool(1000, PAGE)
    pool.allocate(10)
    pool._used = 11
    with pytest.raises(AssertionError, match="11 bytes are counted"):
        pool.check()


# Trainings ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def free():
    """A training in half of its memory, with all the host memory that it wants."""
    with Runtime("cpu:virtual") as runtime:
        demand = Training(runtime, "resnet", "momentum").demand()
    budget = max(demand.largest_op_bytes, demand.unmanaged_peak_bytes // 2)
    found, pool, _ = values({"memory_budget": budget})
    return budget, found, pool.peak_bytes


@pytest.mark.parametrize(("device", "policy"), [
    ("cpu", "passive"), ("cpu:virtual", "capuchin-swap"),
    *(pytest.param(device, policy, marks=pytest.mark.slow) for device in ("cpu", "cpu:virtual")
      for policy in ("lru", "str-ilp", "auto"))])
def test_a_training_goes_on_with_a_tenth_of_the_host_memory_that_it_needs(free, tmp_path, device, policy):
    budget, wanted, most = free
    found, pool, _ = values({"memory_budget": budget, "host_memory": most // 10, "spill": tmp_path,
                             "spill_bytes": 3 * most}, device=device, policy=policy)
    assert pool.spilled_peak_bytes > most // 4
    assert found == wanted
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_takes_time_and_changes_nothing(free, tmp_path, monkeypatch):
    budget, wanted, most = free
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: (time.sleep(1e-3), write(*arguments))[1])
    found, pool, _ = values({"memory_budget": budget, "host_memory": 0, "spill": tmp_path, "spill_bytes": 3 * most},
                            device="cpu")
    assert pool.spilled_peak_bytes
    assert found == wanted


def test_a_disk_that_lies_ends_a_training_with_an_error(free, tmp_path, monkeypatch):
    budget, _, most = free
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: len(data))
    with pytest.raises(DeviceError, match="not the bytes that were written"):
        values({"memory_budget": budget, "host_memory": 0, "spill": tmp_path, "spill_bytes": 3 * most}, device="cpu")


def test_a_killed_training_leaves_no_file(tmp_path):
    program = f"""if True:
        import time
        import numpy as np
        from minidl.device.spill import PAGE, Spill, SpillFile
        file = SpillFile(Spill({str(tmp_path)!r}, 100 * PAGE))
        file.write(0, np.ones(50 * PAGE, np.uint8))
        print("spilled", flush=True)
        time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == "spilled\n"
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


# Modelled time --------------------------------------------------------------------------------------------------------
def test_the_disk_is_a_queue_of_its_own_behind_both_ways_of_the_link():
    # p100: 2 GB/s out, 3 GB/s in, 0.1 ms. 2 GB out from 0 s: 1.0001 s; 3 GB in, asked for at 0.5 s, wait for that.
    clock = VirtualClock()
    queue = DiskQueue(PROFILES["p100"], clock, host_bytes=100)
    assert queue.seconds(COPY_OUT, ((0, 100),), 0.25) == 0.25
    assert queue.seconds(COPY_OUT, ((100, 2 * 10**9),), 0.25) == pytest.approx(1.0001)
    clock.host = 0.5
    assert queue.seconds(COPY_IN, ((100, 3 * 10**9),), 0.25) == pytest.approx(1.0001 + 1.0001 - 0.5)
    clock.host = 3.0
    assert queue.seconds(COPY_OUT, ((0, 50), (100, 2 * 10**8)), 0.5) == pytest.approx(0.5)  # the link takes longer


def test_a_simulated_training_that_spills_takes_longer_and_opens_no_file(tmp_path):
    with Runtime("sim:p100") as runtime:
        demand = Training(runtime, "resnet", "momentum").demand()
    budget = max(demand.largest_op_bytes, demand.unmanaged_peak_bytes // 2)
    folder = tmp_path / "gone"
    fast, slow = (values({"memory_budget": budget, **more}, device="sim:p100")[2].seconds for more in (
        {}, {"host_memory": 0, "spill": folder, "spill_bytes": "1GiB"}))
    assert slow > fast


def test_a_device_without_a_way_to_the_disk_says_so(tmp_path):
    from minidl.device.contract import Device

    with pytest.raises(UserError, match="^here cannot spill to a disk: leave out spill$"):
        Device.spill_to(type("Here", (), {"name": "here"})(), Spill(str(tmp_path), PAGE), 0)
