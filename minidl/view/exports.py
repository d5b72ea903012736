"""Exports a recorded step to other programs: Perfetto's timelines, PyTorch's memory_viz, and an SVG drawing.

An export needs only the data that a page holds.

  Perfetto      Chrome's trace events: the three streams, counters of memory, and an arrow from each copy out to the
                copy in of the same tensor
  memory_viz    a snapshot in the format of torch.cuda.memory: one segment, the arena, and the history of its blocks
  SVG           two charts: bytes in use by kind of tensor over time, and below it the addresses of tensors
"""

import html
import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minidl.device.clock import STREAM_NAMES
from minidl.outside.units import format_bytes
from minidl.view.packing import values
from minidl.view.recording import EventKind, Fate, StayState, TensorKind

Packed = Mapping[str, Any]
STREAM_OF = {EventKind.COPY_OUT: 1, EventKind.COPY_IN: 2}  # all other kinds run on the compute stream
NAMES = ("parameters", "gradients", "optimizer state", "activations", "other tensors")
COLOURS = ("#0072b2", "#d55e00", "#56b4e9", "#009e73", "#8a8f98", "#cc79a7", "#f0e442")
BANDS = (*NAMES, "being copied out", "being copied in")
WIDTH, STACK, ADDRESSES, LEFT, GAP = 900, 200, 320, 70, 40  # of the drawing, in pixels


def columns(packed: Packed, part: str) -> dict[str, Any]:
    """Return the columns of one part, such as "events", of a page's data, by name: packed numbers as arrays."""
    return {name: values(each) if isinstance(each, dict) and "type" in each else each
            for name, each in packed[part].items()}


def labels(packed: Packed) -> list[str]:
    """Return a readable label for each tensor of a page's data."""
    names = (packed["words"][number] for number in values(packed["subjects"]["name"]))
    return [f"tensor {tensor_id}{f' ({name})' if name else ''}"
            for tensor_id, name in zip(packed["subjects"]["id"], names, strict=True)]


# Perfetto ------------------------------------------------------------------------------------------------------------
def perfetto(packed: Packed) -> str:
    """Return the step as Chrome's trace events, JSON that Perfetto opens."""
    return json.dumps({"traceEvents": list(_trace_events(packed)), "displayTimeUnit": "ms"}, separators=(",", ":"))


def _trace_events(packed: Packed) -> Iterator[dict[str, Any]]:
    events, names = columns(packed, "events"), labels(packed)
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": packed["title"]}}
    for stream, name in enumerate(STREAM_NAMES):
        yield {"ph": "M", "pid": 1, "tid": stream, "name": "thread_name", "args": {"name": name}}
    left: dict[int, int] = {}  # subject -> its last copy out
    for event, kind in enumerate(map(EventKind, events["kind"])):
        start, subject = 1e6 * float(events["start"][event]), int(events["subject"][event])
        now = 1e6 * float(events["time"][event])
        counts = {"in use": int(events["used"][event]), "workspace": int(events["workspace"][event])}
        yield {"ph": "C", "pid": 1, "name": "device memory", "ts": now, "args": counts}
        yield {"ph": "C", "pid": 1, "name": "host memory", "ts": now, "args": {"bytes": int(events["host"][event])}}
        if kind is EventKind.BOUNDARY:
            continue
        op = packed["words"][events["op"][event]]
        name = {EventKind.CALL: op, EventKind.REPLAY: f"replay of {op}"}.get(kind, kind.name.lower().replace("_", " "))
        piece = {"pid": 1, "tid": STREAM_OF.get(kind, 0), "ts": start}
        arguments = {"call": int(events["call"][event]), "bytes": int(events["bytes"][event]),
                     "subject": names[subject] if subject >= 0 else ""}
        yield {"ph": "X", **piece, "dur": 1e6 * float(events["end"][event]) - start, "name": name, "args": arguments}
        if kind is EventKind.COPY_OUT:
            left[subject] = event
        elif kind is EventKind.COPY_IN and subject in left:
            out = left.pop(subject)
            flow = {"pid": 1, "cat": "swap", "name": "swapped", "id": out}
            yield {"ph": "s", **flow, "tid": 1, "ts": 1e6 * float(events["start"][out])}
            yield {"ph": "f", "bp": "e", **flow, "tid": 2, "ts": start}


# memory_viz ----------------------------------------------------------------------------------------------------------
def memory_viz(packed: Packed) -> bytes:
    """Return the step as a snapshot that PyTorch's memory_viz reads: a pickle of lists and numbers."""
    stays, events, names = columns(packed, "stays"), columns(packed, "events"), labels(packed)
    count, budget = len(events["kind"]), int(packed["budget"])
    changes: list[tuple[int, int, int]] = []  # (event, 0 freed or 1 allocated, stay)
    for stay in range(len(stays["subject"])):
        changes.append((int(stays["first"][stay]), 1, stay))
        if stays["end"][stay] < count:
            changes.append((int(stays["end"][stay]), 0, stay))
    history = [_entry("segment_alloc", 0, budget, 0, "arena")]
    for event, born, stay in sorted(changes):
        address, size = int(stays["offset"][stay]), int(stays["size"][stay])
        name, now = names[stays["subject"][stay]], int(1e6 * float(events["time"][event]))
        for action in ("alloc",) if born else ("free_requested", "free_completed"):
            history.append(_entry(action, address, size, now, name))
    blocks, end = [], 0
    here = sorted((int(stays["offset"][n]), n) for n in range(len(stays["end"])) if stays["end"][n] == count)
    for address, stay in here:
        blocks += [_block(end, address - end, "")] if address > end else []
        blocks.append(_block(address, int(stays["size"][stay]), names[stays["subject"][stay]]))
        end = address + int(stays["size"][stay])
    blocks += [_block(end, budget - end, "")] if budget > end else []
    used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    segment = {"device": 0, "address": 0, "total_size": budget, "stream": 0, "segment_type": "large",
               "segment_pool_id": (0, 0), "allocated_size": used, "active_size": used, "requested_size": used,
               "is_expandable": False, "frames": [], "blocks": blocks}
    return pickle.dumps({"segments": [segment], "device_traces": [history], "external_annotations": []}, protocol=4)


def _frames(name: str) -> list[dict[str, Any]]:
    return [{"filename": "", "line": 0, "name": name}] if name else []


def _entry(action: str, address: int, size: int, now: int, name: str) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": now, "frames": _frames(name)}


def _block(address: int, size: int, name: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "frames": _frames(name),
            "state": "active_allocated" if name else "inactive"}


# A drawing -----------------------------------------------------------------------------------------------------------
def svg(packed: Packed) -> str:
    """Return the step as an SVG drawing of two diagrams over time: bytes by category, and below it the addresses."""
    stays, events, subjects = columns(packed, "stays"), columns(packed, "events"), columns(packed, "subjects")
    count, budget = len(events["kind"]), packed["budget"]
    last = float(events["time"][-1]) or 1.0
    x = np.append(LEFT + events["time"] / last * (WIDTH - LEFT - 10), WIDTH - 10)
    bands = [_band(StayState(state), TensorKind(subjects["kind"][subject]))
             for state, subject in zip(stays["state"], stays["subject"], strict=True)]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {STACK + ADDRESSES + 3 * GAP}" '
             f'font-family="sans-serif" font-size="11">', f"<title>{html.escape(packed['title'])}</title>"]
    most = max(budget, float(events["used"].max()))
    below = np.zeros(count)
    for band, colour in enumerate(COLOURS):
        height = np.zeros(count + 1)
        for stay in (n for n, each in enumerate(bands) if each == band):
            height[stays["first"][stay]] += stays["size"][stay]
            height[stays["end"][stay]] -= stays["size"][stay]
        top = below + np.cumsum(height)[:count]
        if (top > below).any():
            outline = [*_steps(x, top, most), *reversed(list(_steps(x, below, most)))]
            points = " ".join(f"{px:.1f},{py:.1f}" for px, py in outline)
            parts.append(f'<polygon points="{points}" fill="{colour}"/>')
        below = top
    y = 10 + STACK - STACK * budget / most
    parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#000" fill="none"/>'
                 f'<text x="{LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(budget)}</text>')
    floor = STACK + ADDRESSES + GAP
    for stay, band in enumerate(bands):
        left, right = x[stays["first"][stay]], x[stays["end"][stay]]
        tall = float(stays["size"][stay]) / budget * ADDRESSES
        high = floor - (float(stays["offset"][stay]) + float(stays["size"][stay])) / budget * ADDRESSES
        if tall >= 0.05 and stays["fate"][stay] != Fate.MOVED or right - left >= 0.5:
            parts.append(f'<rect x="{left:.1f}" y="{high:.1f}" width="{max(0.3, right - left):.1f}" '
                         f'height="{max(0.3, tall):.1f}" fill="{COLOURS[band]}"/>')
    parts.append(f'<text x="{WIDTH - 10}" y="{floor + 14}" text-anchor="end">{last:.4g} s</text>'
                 f'<text x="{LEFT - 4}" y="{STACK + GAP + 4}" text-anchor="end">{format_bytes(budget)}</text>')
    for n, name in enumerate(BANDS):
        at = LEFT + n * (WIDTH - LEFT) // len(BANDS)
        parts.append(f'<rect x="{at}" y="{floor + 24}" width="10" height="10" fill="{COLOURS[n]}"/>'
                     f'<text x="{at + 14}" y="{floor + 33}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _band(state: StayState, kind: TensorKind) -> int:
    return {StayState.HERE: int(kind), StayState.LEAVING: len(NAMES), StayState.ARRIVING: len(NAMES) + 1}[state]


def _steps(x: np.ndarray, height: np.ndarray, most: float) -> Iterator[tuple[float, float]]:
    """Yield the corners (x, y) of a curve that is constant between events, in SVG units. most: bytes at the top."""
    for left, right, bytes_then in zip(x, x[1:], height, strict=False):
        y = 10 + STACK - STACK * bytes_then / most
        yield float(left), float(y)
        yield float(right), float(y)
