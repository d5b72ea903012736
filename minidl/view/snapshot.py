"""Reads a snapshot of PyTorch's memory on a GPU (``torch.cuda.memory._dump_snapshot``) as a recording for a page.

A snapshot is a pickle of lists, numbers and strings. It is read without running code: a pickle that names any module
is refused. It has the segments that the allocator took from the driver, the blocks in them, and a history of what was
allocated and freed, each with the line of the program. It does not say when a block was read. Segments lie anywhere in
the GPU's addresses; on the page they lie one behind the other.
"""

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

from minidl.device.profiles import Profile
from minidl.errors import UserError
from minidl.outside.reading import read_bytes
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.view.recording import EventKind, Fate, Recording, Stay, StayState, Subject, TensorKind, WorkEvent

MOST_BYTES = 1 << 30  # of a file
PICKLE = b"\x80"  # the first byte of a pickle
SHOWN = 5  # of the largest blocks
TAKEN = ("segment_alloc", "segment_map")
PYTORCH = ("/torch/", ".cpp", "??")  # in the names of files that are not the program's


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain data alone: lists, tuples, dicts, numbers, strings."""

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError: plain data name no class and no function."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and plain data name nothing")


@dataclass
class _Block:
    """A block of memory from event ``first`` up to event ``end``; None: it is in use at the end."""

    address: int
    size: int
    name: str
    first: int
    end: int | None = None


def read_snapshot(path: str, profile: Profile | None = None) -> Recording:
    """Return the recording of the GPU with the longest history in a snapshot.
    profile: that of the GPU; with it the facts say how many bytes, at most, could have been away at the peak.
    Raises UserError for another file, and for a snapshot without a history or that contradicts itself."""
    data = read_bytes(Path(path), most=MOST_BYTES)
    try:
        found = PlainUnpickler(BytesIO(data)).load()
        traces = found["device_traces"]
        device = max(range(len(traces)), key=lambda n: len(traces[n]))
        segments = [segment for segment in found["segments"] if segment.get("device", 0) == device]
        return _recording(PurePath(path).name, device, traces[device], segments, profile)
    except UserError:
        raise
    except Exception as error:  # whatever is in the file, which anybody may have made
        raise UserError(f"{path} is no snapshot of torch.cuda.memory: {type(error).__name__}: {error}") from None


def _recording(name: str, device: int, history: list[Mapping[str, Any]], segments: list[Mapping[str, Any]],
               profile: Profile | None) -> Recording:
    blocks, times = _blocks(history, segments)
    if len(times) < 3:
        raise UserError(f"{name} has no history: torch.cuda.memory._record_memory_history() begins one")
    place = _Places(history, segments)
    changes = [0] * (len(times) + 1)
    for block in blocks:
        changes[block.first] += block.size
        changes[len(times) if block.end is None else block.end] -= block.size
    starts: list[list[int]] = [[] for _ in times]
    frees: list[list[int]] = [[] for _ in times]
    for number, block in enumerate(blocks):
        if block.first:
            starts[block.first].append(number)
        if block.end is not None and block.end:
            frees[block.end - 1].append(number)
    events, calls, used = [], [], 0
    for at, (now, change) in enumerate(zip(times, changes, strict=False)):
        used += change
        op = blocks[starts[at][0]].name if starts[at] else "before the history" if not at else "end of the history"
        until = times[min(at + 1, len(times) - 1)]
        kind = EventKind.CALL if at < len(times) - 1 else EventKind.BOUNDARY
        events.append(WorkEvent(kind, op, at, -1, 0, now, until, now, used, place.size - used, 0, (0, 0)))
        calls.append(TraceCall(op, (), tuple(starts[at]), until - now, (), tuple(frees[at])))
    subjects = tuple(Subject(n, block.name, block.size,
                             TensorKind.ACTIVATION if block.first else TensorKind.PARAMETER)
                     for n, block in enumerate(blocks))
    stays = tuple(Stay(n, place.of(block.address), block.size, StayState.HERE, block.first,
                       len(times) if block.end is None else block.end, Fate.STAYS if block.end is None else Fate.FREED)
                  for n, block in enumerate(blocks))
    trace = Trace(tuple(calls), {n: TraceTensor(n, block.size, not block.first) for n, block in enumerate(blocks)})
    peak = max(event.used_bytes for event in events)
    facts = [("GPU", str(device)), ("peak", format_bytes(peak)), ("taken from the driver", format_bytes(place.size)),
             ("shown as parameters", "what was there when the history began; all else as activations")]
    if profile is not None:
        at = next(n for n, event in enumerate(events) if event.used_bytes == peak)
        facts.append((f"could have left at the peak over the link of {profile.name}, if nothing read it meanwhile",
                      _could_leave(blocks, times, at, profile.link_costs)))
    found = Recording(name, place.size, peak, 0, trace, subjects, tuple(events), stays, facts=facts)
    try:
        found.check()
    except AssertionError as error:
        raise UserError(f"{name} contradicts itself: {error}") from None
    return found


def _blocks(history: list[Mapping[str, Any]], segments: list[Mapping[str, Any]]) -> tuple[list[_Block], list[float]]:
    """Return the blocks, and the seconds of the events: the beginning, each allocation, and the end."""
    times, found, live = [0.0], list[_Block](), dict[int, _Block]()
    began = next((entry["time_us"] for entry in history if "time_us" in entry), 0)
    now = 0.0
    for number, entry in enumerate(history):
        action, address = entry["action"], entry.get("addr", 0)
        now = max(now, (entry["time_us"] - began if "time_us" in entry else number) * 1e-6)
        if action == "alloc":
            live[address] = _Block(address, entry["size"], _line(entry), len(times))
            found.append(live[address])
            times.append(now)
        elif action == "free_completed":
            block = live.pop(address, None)
            if block is None:
                block = _Block(address, entry["size"], _line(entry), 0)
                found.append(block)
            block.end = len(times)  # the next event
    times.append(now)
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", address)
            if block["state"] == "active_allocated" and at not in live:
                found.append(_Block(at, block["size"], _line(block), 0))
            address = at + block["size"]
    return found, times


def _could_leave(blocks: list[_Block], times: list[float], at: int, costs: Costs) -> str:
    """Return an upper bound, as text, of the bytes that could have been away at event ``at``, and the 5 largest blocks.
    A block counts if its copy out fits between its allocation and the event, and its copy in between the event and its
    end. What was there before the history, or is there after it, had time enough on that side."""
    held = [block for block in blocks if block.first <= at and (block.end is None or block.end > at)]
    away = []
    for block in held:
        out = costs.latency_seconds + block.size * costs.out_seconds_per_byte
        back = costs.latency_seconds + block.size * costs.in_seconds_per_byte
        if (not block.first or times[at] - times[block.first] >= out) and (
                block.end is None or times[block.end] - times[at] >= back):
            away.append((block.size, out + back, block.name or "a block"))
    away.sort(key=lambda leaving: -leaving[0])
    largest = ", ".join(f"{name} {format_bytes(size)} ({seconds:.3g} s)" for size, seconds, name in away[:SHOWN])
    return (f"at most {format_bytes(sum(size for size, *_ in away))}, {len(away)} of {len(held)} blocks, with "
            f"{sum(seconds for _, seconds, _ in away):.3g} s of copies out and in"
            + (f"; the largest: {largest}" if largest else ""))


def _line(entry: Mapping[str, Any]) -> str:
    """Return the innermost line of the program in a list of frames, as ``file.py:12 function``; "" without frames."""
    frames = entry.get("frames") or []
    own = [frame for frame in frames if not any(part in frame["filename"] for part in PYTORCH)]
    for frame in own[:1] or frames[:1]:
        where = f"{PurePath(frame['filename']).name}:{frame['line']} " if frame["filename"] else ""
        return f"{where}{frame['name']}"
    return ""


class _Places:
    """The segments, one behind the other. size: their bytes."""

    def __init__(self, history: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]]) -> None:
        parts = sorted({(entry["addr"], entry["addr"] + entry["size"]) for entry in history
                        if entry["action"] in TAKEN} | {(s["address"], s["address"] + s["total_size"])
                                                        for s in segments})
        self.begins: list[int] = []
        self.ends: list[int] = []
        for begin, end in parts:
            if self.ends and begin <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.begins.append(begin)
                self.ends.append(end)
        self.offsets = [0]
        for begin, end in zip(self.begins, self.ends, strict=True):
            self.offsets.append(self.offsets[-1] + end - begin)
        self.size = self.offsets[-1]

    def of(self, address: int) -> int:
        """Return the address on the page. Raises UserError for an address in no segment."""
        number = bisect_right(self.begins, address) - 1
        if number < 0 or address >= self.ends[number]:
            raise UserError(f"a block at address {address} lies in no segment")
        return self.offsets[number] + address - self.begins[number]
