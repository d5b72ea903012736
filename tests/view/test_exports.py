"""What other programs are given says the same as the page."""

import json
import pickle
import xml.etree.ElementTree as xml

import pytest
from recordings import paged

from minidl.view.exports import memory_viz, perfetto, svg
from minidl.view.packing import pack
from minidl.view.recording import EventKind, Fate


def test_perfetto_s_streams_counters_and_arrows_are_those_of_the_step():
    recording = paged()
    told = json.loads(perfetto(pack(recording)))["traceEvents"]
    pieces = [e for e in told if e["ph"] == "X"]
    work = recording.events[:-1]
    assert [(p["tid"], p["ts"], p["ts"] + p["dur"]) for p in pieces] == [
        ({EventKind.COPY_OUT: 1, EventKind.COPY_IN: 2}.get(e.kind, 0), pytest.approx(1e6 * e.start_s),
         pytest.approx(1e6 * e.end_s)) for e in work]
    counted = [e["args"]["in use"] for e in told if e["ph"] == "C" and e["name"] == "device memory"]
    assert counted == [e.used_bytes for e in recording.events]
    begins = {e["id"]: e["ts"] for e in told if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in told if e["ph"] == "f"}
    copied_in = [e.subject for e in work if e.kind is EventKind.COPY_IN]
    assert begins.keys() == ends.keys() and 0 < len(ends) <= len(copied_in)
    assert all(begins[number] < ends[number] for number in ends)


def test_a_snapshot_s_history_leads_to_its_blocks_and_never_gives_bytes_out_twice():
    recording = paged()
    snapshot = pickle.loads(memory_viz(pack(recording)))
    live: dict[int, int] = {}
    most = 0
    for entry in snapshot["device_traces"][0][1:]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
            most = max(most, sum(live.values()))
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    segment, = snapshot["segments"]
    assert live == {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert most == max(e.used_bytes for e in recording.events)
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"] == recording.budget_bytes


def test_pytorch_reads_the_snapshot():
    memory = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(memory_viz(pack(paged())))
    assert "cudaMalloc(0, 60.0MiB)" in memory.trace(snapshot)
    assert memory.trace_plot(snapshot) and memory.segment_plot(snapshot) and memory.segsum(snapshot)


def test_a_drawing_has_a_rectangle_for_each_stay_that_can_be_seen():
    recording = paged()
    drawing = xml.fromstring(svg(pack(recording)))
    rectangles = drawing.findall("{http://www.w3.org/2000/svg}rect")
    seen = [s for s in recording.stays if s.fate is not Fate.MOVED and s.size >= recording.budget_bytes / 6000]
    assert len(seen) <= len(rectangles) <= len(recording.stays) + 7
    assert all(float(r.get("width", 0)) > 0 and float(r.get("height", 0)) > 0 for r in rectangles)
