"""Snapshots of PyTorch's memory as pages: bytes and addresses are the snapshot's, and no code of a file runs."""

import os
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from recordings import paged

from minidl.cli import view
from minidl.device import profiles
from minidl.errors import UserError
from minidl.view.exports import memory_viz
from minidl.view.packing import pack
from minidl.view.recorded import read_page
from minidl.view.recording import Fate, TensorKind
from minidl.view.snapshot import read_snapshot

LOW, HIGH = 1 << 20, 1 << 40  # two segments of 4,096 bytes, far apart


def entry(action, addr, size, time_us, *frames):
    return {"action": action, "addr": addr, "size": size, "time_us": time_us, "stream": 0,
            "frames": [{"filename": file, "line": line, "name": name} for file, line, name in frames]}


def segment(address, *blocks):
    return {"device": 0, "address": address, "total_size": 4096, "blocks": [
        {"size": size, "state": state, "frames": []} for size, state in blocks]}


def written(tmp_path, history, *segments, **others):
    path = tmp_path / "gpu.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [history], **others}))
    return str(path)


HISTORY = [
    entry("alloc", LOW + 1024, 512, 10, ("/x/torch/nn/modules/conv.py", 5, "forward"), ("/home/me/net.py", 7, "block")),
    entry("free_requested", HIGH, 256, 20), entry("free_completed", HIGH, 256, 30),
    entry("alloc", HIGH, 2048, 40, ("/home/me/net.py", 9, "head")),
    entry("free_completed", LOW + 1024, 512, 50)]
SEGMENTS = (segment(LOW, (1024, "active_allocated"), (3072, "inactive")),
            segment(HIGH, (2048, "active_allocated"), (2048, "inactive")))


def test_blocks_are_those_of_the_history_and_those_that_were_there_before(tmp_path):
    """1,024 bytes stay all the time, 256 until after the first allocation, 512 between the two, 2,048 from the second
    on. The second segment lies behind the first on the page."""
    found = read_snapshot(written(tmp_path, HISTORY, *SEGMENTS))
    assert [event.used_bytes for event in found.events] == [1280, 1792, 3584, 3072]
    assert [event.time_s for event in found.events] == pytest.approx([0, 0, 3e-5, 4e-5])
    assert [event.op for event in found.events[1:3]] == ["net.py:7 block", "net.py:9 head"]
    assert sorted((stay.offset, stay.size, stay.first, stay.end, stay.fate) for stay in found.stays) == [
        (0, 1024, 0, 4, Fate.STAYS), (1024, 512, 1, 3, Fate.FREED), (4096, 256, 0, 2, Fate.FREED),
        (4096, 2048, 2, 4, Fate.STAYS)]
    kinds = {subject.nbytes: subject.kind for subject in found.subjects}
    assert kinds == {1024: TensorKind.PARAMETER, 256: TensorKind.PARAMETER, 512: TensorKind.ACTIVATION,
                     2048: TensorKind.ACTIVATION}
    assert (found.budget_bytes, found.unmanaged_peak_bytes) == (8192, 3584)


def test_a_snapshot_that_minidl_has_written_has_the_bytes_of_its_page(tmp_path):
    recording = paged()
    path = tmp_path / "own.pickle"
    path.write_bytes(memory_viz(pack(recording)))
    found = read_snapshot(str(path))
    assert found.unmanaged_peak_bytes == max(event.used_bytes for event in recording.events)
    assert found.events[-1].used_bytes == recording.events[-1].used_bytes
    ends = [sorted((stay.offset, stay.size) for stay in each.stays if stay.fate is Fate.STAYS)
            for each in (found, recording)]
    assert ends[0] == ends[1]


def test_the_command_makes_a_page_and_takes_no_flags_of_a_run(tmp_path, capsys):
    path, page = written(tmp_path, HISTORY, *SEGMENTS), tmp_path / "page.html"
    assert view.main([path, "-o", str(page)]) == 0
    packed, = read_page(str(page))
    assert packed["title"] == "gpu.pickle" and packed["unmanaged"] == 3584
    assert view.main([path, "-o", str(page), "--policy", "auto"]) == 2
    assert "a snapshot is not run" in capsys.readouterr().err


@pytest.mark.parametrize(("back", "told"), [
    (60e6, "at most 1.5 KiB, 2 of 3 blocks, with 5.12e-05 s of copies out and in; the largest: a block 1.0 KiB "
           "(3.41e-05 s), net.py:7 block 512 B (1.71e-05 s)"),
    (40e6, "at most 1.0 KiB, 1 of 3 blocks, with 4.27e-05 s of copies out and in; the largest: a block")])
def test_at_most_that_leaves_which_can_go_and_come_back_around_the_peak(tmp_path, back, told):
    """At the peak 1,024 bytes are there all the time, 2,048 are new, and 512 have been for 30 us and end 10 us later:
    out in 8.5 us at 60 MB/s, back in 8.5 us, or in 12.8 us at 40 MB/s."""
    profile = replace(profiles.named("p100"), name="slow", link_out_bandwidth=60e6, link_in_bandwidth=back,
                      link_latency_s=0.0)
    (topic, text), = read_snapshot(written(tmp_path, HISTORY, *SEGMENTS), profile).facts[4:]
    assert "the link of slow, if nothing read it" in topic and text.startswith(told)


@pytest.mark.parametrize("words", [("{0}", "--device", "h100"), ("{0}", "--device=sim:h100"),
                                   ("--device", "h100", "{0}"), ("--force", "{0}", "--device=h100")])
def test_the_bound_of_a_snapshot_takes_a_device(tmp_path, words):
    """The file's name stands before or after the flags."""
    path, page = written(tmp_path, HISTORY, *SEGMENTS), tmp_path / "page.html"
    assert view.main([*(word.format(path) for word in words), "-o", str(page)]) == 0
    assert "over the link of h100" in str(read_page(str(page))[0]["facts"])


class Hostile:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (Hostile.folder,)


def test_no_code_of_a_file_runs(tmp_path):
    Hostile.folder = str(tmp_path / "made")
    with pytest.raises(UserError, match="it names posix.mkdir, and plain data name nothing"):
        read_snapshot(written(tmp_path, HISTORY, *SEGMENTS, more=Hostile()))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("history", "message"), [
    ([], "has no history"),
    ([entry("alloc", 5, 8, 0)], "lies in no segment"),
    ([entry("alloc", LOW + 512, 8, 0), entry("free_completed", LOW + 512, 8, 1)], "contradicts itself"),
    ([{"action": "alloc"}], "is no snapshot of torch.cuda.memory: KeyError")])
def test_what_no_allocator_says_is_refused(tmp_path, history, message):
    with pytest.raises(UserError, match=message):
        read_snapshot(written(tmp_path, history, *SEGMENTS))


def test_a_damaged_snapshot_is_refused_or_read(tmp_path):
    path = written(tmp_path, HISTORY, *SEGMENTS)
    whole = Path(path).read_bytes()
    for cut in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[cut] ^= 0x55
        (tmp_path / "damaged").write_bytes(bytes(damaged[:cut] if cut % 2 else damaged))
        with suppress(UserError):
            read_snapshot(str(tmp_path / "damaged"))
