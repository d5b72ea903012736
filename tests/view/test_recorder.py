"""What a page shows is what the arena held: at every piece of work, under every way of managing memory."""

import json
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import LINK, LINK_S, JudgedCuda
from recordings import VERBS, Ledger, paged, recorded

import minidl.view
from minidl import Runtime
from minidl.device import profiles
from minidl.view.packing import pack, values
from minidl.view.page import page
from minidl.view.recorded import read_page
from minidl.view.recorder import StepRecorder
from minidl.view.recording import EventKind, Fate, Recording, TensorKind


def shown(packed: dict[str, Any]) -> Ledger:
    """What a page shows at each event but the boundary."""
    stays = {name: values(packed["stays"][name]) for name in ("offset", "size", "first", "end")}
    found: Ledger = []
    for event in range(len(values(packed["events"]["kind"])) - 1):
        live = (stays["first"] <= event) & (event < stays["end"])
        blocks = dict(zip(stays["offset"][live].astype(int).tolist(), stays["size"][live].astype(int).tolist(),
                          strict=True))
        found.append((sum(blocks.values()), blocks))
    return found


WAYS = [{"policy": "none", "budget": "400MiB"}, {"policy": "passive"}, {"policy": "dtr-swap"}, {"policy": "capuchin"},
        {"policy": "passive", "placement": "bfc", "budget": "90MiB"}, {"policy": "recompute", "slices": 2},
        pytest.param({"policy": "auto", "steps": 5}, marks=pytest.mark.full)]


@pytest.mark.default(way=[{"policy": "passive"}])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_a_page_shows_at_every_piece_of_work_what_the_arena_held(way, monkeypatch):
    ledger: Ledger = []
    recording, _, swapped = recorded(ledger=ledger, monkeypatch=monkeypatch, **way)
    recording.check()
    assert len(ledger) == len(recording.events) - 1  # the boundary is no work
    packed = read_packed(page([pack(recording)]))
    assert shown(packed) == ledger
    assert sum(e.nbytes for e in recording.events if e.kind is EventKind.COPY_OUT) == swapped
    by_call = {e.call: used for e, (used, _) in zip(recording.events, ledger, strict=False)
               if e.kind is EventKind.CALL}
    assert launches(packed) == by_call and len(by_call) > 150


@pytest.mark.parametrize("policy", ["passive", pytest.param("capuchin", marks=pytest.mark.slow)])
def test_a_step_on_a_gpu_is_recorded_with_the_times_of_its_events(policy, monkeypatch):
    """Over the vendor that judges every call: bytes as in the arena; of a stream one piece of work after the other."""
    ledger: Ledger = []
    device = JudgedCuda(profiles.get("h200"))
    recording, _, swapped = recorded(device, policy=policy, steps=8, ledger=ledger, monkeypatch=monkeypatch)
    recording.check()
    assert len(ledger) == len(recording.events) - 1 and swapped > 0
    assert shown(read_packed(page([pack(recording)]))) == ledger
    for kinds in ({EventKind.COPY_OUT}, {EventKind.COPY_IN}, {EventKind.CALL, EventKind.REPLAY, EventKind.MOVE}):
        spans = [(e.start_s, e.end_s) for e in recording.events if e.kind in kinds]
        assert all(start <= end for start, end in spans) and any(start < end for start, end in spans)
        assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in pairwise(spans))
    for event in recording.events:  # a copy's span is the copy alone: no wait for a kernel, none for the host
        if event.kind in (EventKind.COPY_OUT, EventKind.COPY_IN):
            assert event.end_s - event.start_s == pytest.approx(LINK_S + event.nbytes / LINK, rel=1e-3, abs=1e-5)


def launches(packed: dict[str, Any]) -> dict[int, int]:
    """Call -> the bytes that the arena counted when it was launched; calls that launch nothing have none."""
    events = {name: values(packed["events"][name]) for name in ("kind", "call", "used")}
    calls = events["kind"] == EventKind.CALL
    return dict(zip(events["call"][calls].tolist(), events["used"][calls].tolist(), strict=True))


def read_packed(text: str) -> dict[str, Any]:
    """The one recording of a page."""
    packed: dict[str, Any] = json.loads(text.partition('id="data">')[2].partition("</script>")[0])[0]
    return packed


def test_tensors_are_told_apart_by_what_they_are_to_the_training():
    recording, _, _ = recorded(policy="none", budget="400MiB")
    kinds = Counter(subject.kind for subject in recording.subjects)
    parameters = [s for s in recording.subjects if s.kind is TensorKind.PARAMETER]
    # 62 parameters, with their momentum; 40 running statistics count as parameters, too.
    assert len(parameters) == 102 and kinds[TensorKind.OPTIMIZER_STATE] == 62
    gradients = {s.name for s in recording.subjects if s.kind is TensorKind.GRADIENT}
    assert "conv1.weight" in gradients and "layer1.0.conv1" in gradients
    assert {s.name for s in recording.subjects if s.kind is TensorKind.ACTIVATION} >= {"conv1", "layer1.0.conv1", "fc"}


def by_operation(recording: Recording) -> dict[str, set[tuple[TensorKind, str]]]:
    """What the results of each operation are, and the layers that they go by."""
    subjects = {subject.tensor_id: subject for subject in recording.subjects}
    found: dict[str, set[tuple[TensorKind, str]]] = {}
    for call in recording.trace.calls:
        for made in (subjects[tensor_id] for tensor_id in call.outputs if tensor_id in subjects):
            found.setdefault(call.op, set()).add((made.kind, made.name))
    return found


def test_in_slices_tensors_are_told_apart_and_go_by_their_layers_as_they_do_whole():
    whole = by_operation(recorded(policy="none", budget="400MiB")[0])
    cut = by_operation(recorded(policy="none", budget="400MiB", slices=2)[0])
    assert {kind for kind, _ in cut["conv2d"]} == {TensorKind.ACTIVATION}
    assert {kind for kind, _ in cut["conv2d_dgrad"]} == {TensorKind.GRADIENT}
    for op in ("conv2d", "conv2d_dgrad", "batch_norm_stats", "batch_norm_relu", "linear", "max_pool2d"):
        assert cut[op] == whole[op], op


def test_what_became_of_a_tensor_is_what_the_engine_did():
    recording = paged()
    fates = Counter(stay.fate for stay in recording.stays)
    copies = Counter(event.kind for event in recording.events)
    assert 0 < fates[Fate.SWAPPED] <= copies[EventKind.COPY_OUT] + copies[EventKind.COPY_IN] and not fates[Fate.DROPPED]
    assert fates[Fate.MOVED] and fates[Fate.OVERWRITTEN] and fates[Fate.FREED] and fates[Fate.STAYS]
    recording, _, _ = recorded(policy="recompute")
    dropped = {stay.subject for stay in recording.stays if stay.fate is Fate.DROPPED}
    replayed = {event.subject for event in recording.events if event.kind is EventKind.REPLAY}
    assert dropped and dropped & replayed


def test_times_are_the_clock_s_and_ascend():
    recording = paged()
    compute = [e for e in recording.events if e.kind in (EventKind.CALL, EventKind.REPLAY, EventKind.MOVE)]
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in zip(compute, compute[1:], strict=False))
    times = [e.time_s for e in recording.events]
    assert times == sorted(times) and times[0] >= 0
    for event in compute:
        assert event.time_s == pytest.approx(event.start_s, abs=1e-12)
    calls = [e for e in compute if e.kind is EventKind.CALL]
    assert [e.call for e in calls] == sorted(e.call for e in calls)
    for event in calls:
        assert event.op == recording.trace.calls[event.call].op
        assert event.end_s - event.start_s == pytest.approx(recording.trace.calls[event.call].seconds, abs=1e-12)


def test_a_recording_that_does_not_add_up_is_seen():
    recording = paged()
    gone = replace(recording, stays=recording.stays[1:])
    with pytest.raises(AssertionError, match="in use"):
        gone.check()
    first = recording.stays[0]
    with pytest.raises(AssertionError):
        replace(recording, stays=(*recording.stays, first)).check()
    passing = next(n for n, stay in enumerate(recording.stays) if stay.offset and stay.end < len(recording.events) / 2)
    for offset in (recording.stays[passing].offset - 256, recording.budget_bytes):  # into its neighbour, and beyond
        stays = list(recording.stays)
        stays[passing] = replace(stays[passing], offset=offset)
        with pytest.raises(AssertionError, match="free"):
            replace(recording, stays=tuple(stays)).check()


@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
def test_a_step_that_computes_is_recorded_and_the_device_is_as_before(device):
    with Runtime(device, policy="passive", memory_budget="1MiB", host_memory="64MiB") as runtime:
        x = runtime.tensor(np.ones((64, 512), np.float32))
        recorder = StepRecorder(runtime)
        with recorder.recording(), runtime.iteration():
            tensors = [runtime.tensor(np.full((64, 512), n, np.float32)) for n in range(12)]
            total = tensors[0].numpy().sum() + tensors[-1].numpy().sum()
        assert total == 64 * 512 * 11 and x.numpy().sum() == 64 * 512
        assert not set(VERBS) & vars(runtime.device).keys() and not runtime.keeps_trace
    found = recorder.recorded
    assert found is not None
    Recording("", runtime.budget_bytes, 0, 0, found.trace, found.subjects({}, {}), found.events, found.stays).check()
    copies = [e for e in found.events if e.kind is EventKind.COPY_OUT]
    assert copies and all(e.end_s >= e.start_s >= 0 for e in found.events)


def test_a_step_that_fails_leaves_the_device_as_it_was():
    with Runtime("sim:p100", policy="none", memory_budget="1MiB") as runtime:
        recorder = StepRecorder(runtime)
        with pytest.raises(minidl.errors.OutOfMemory), recorder.recording(), runtime.iteration():
            runtime.tensor(None, shape=(1 << 20,))
        assert recorder.recorded is None and not set(VERBS) & vars(runtime.device).keys()


PROGRAM = """
const {Recording, formatBytes, formatSeconds} = require(process.argv[2]);
const [packed] = JSON.parse(require("fs").readFileSync(process.argv[3], "utf8"));
const r = new Recording(packed);
const sums = Array.from({length: r.count}, (_, e) => {
  let sum = 0;
  for (let band = 0; band < r.first.workspace; band++) sum += r.heights[band][e];
  return sum;
});
packed.events.used = packed.events.largest;
console.log(JSON.stringify({wrong: r.wrong, sums, planted: new Recording(packed).wrong, bands: r.bands,
  found: r.find("conv1").subjects.length,
  texts: [formatBytes(1536), formatBytes(3 * 2 ** 30), formatSeconds(0.0125)]}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="the page's own program runs without a browser under node")
def test_the_page_s_program_makes_the_stack_that_the_arena_counted(tmp_path, monkeypatch):
    ledger: Ledger = []
    recording, _, _ = recorded(policy="dtr-swap", ledger=ledger, monkeypatch=monkeypatch)
    data, program = tmp_path / "data.json", tmp_path / "check.js"
    data.write_text(json.dumps([pack(recording)]))
    program.write_text(PROGRAM)
    script = Path(minidl.view.__file__).parent / "data.js"
    told = json.loads(subprocess.run(["node", str(program), str(script), str(data)], check=True, capture_output=True,
                                     text=True).stdout)
    assert told["wrong"] == 0 and told["sums"][:-1] == [used for used, _ in ledger]
    assert told["planted"] > 0  # a stack that is not the arena's is seen
    assert "activations of layer1" in told["bands"] and told["found"] > 5
    assert told["texts"] == ["1.5 KiB", "3.0 GiB", "12.5 ms"]


def test_a_page_is_one_file_that_loads_nothing_and_gives_its_recording_back(tmp_path):
    recording = paged()
    packed = pack(replace(recording, title="</script> & <b>", remarks=((0, "because </script>"),)))
    path = tmp_path / "page.html"
    path.write_text(page([packed]))
    text = path.read_text()
    assert read_page(path) == [packed] and len(text) < 400_000
    assert text.count("</script>") == 2 and "http:" not in text and "https:" not in text and "src=" not in text
    path.write_text(path.read_text().replace("\"budget\"", "\"budge\""))
    with pytest.raises(minidl.errors.UserError, match="not a memory page"):
        read_page(path)
