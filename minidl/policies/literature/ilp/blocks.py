"""Cuts a trace into blocks of consecutive calls, and sums the seconds and bytes of each block and of its replay."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minidl.meta import Algorithm, aligned
from minidl.plan.trace import TensorId, Trace, TraceCall

MOST_WAYS = 4  # most combinations of its calls' algorithms that a block keeps


class CallRange(NamedTuple):
    """A range of calls: the first and the last."""

    first: int
    last: int


@dataclass(frozen=True)
class Way:
    """One choice of algorithms for the calls of a block. names: (call, algorithm) for each call that has several.
    nbytes: the block's peak above the bytes in use at its start, without its outputs, which the integer program
    counts by themselves; it may be negative."""

    seconds: float
    nbytes: int
    names: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Work:
    """The inputs, outputs and costs of a block of calls.
    ``remade`` are the outputs that its replay recomputes, ``sources`` the replay's inputs."""

    span: CallRange
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    ways: tuple[Way, ...]
    replay_ways: tuple[Way, ...]
    sources: tuple[TensorId, ...]
    remade: tuple[TensorId, ...]


def borders(trace: Trace, *, most: int) -> list[CallRange]:
    """Cut a trace into at most ``most`` blocks of calls; return the range of each.
    Starting with one block per call, neighbours are joined, those with the least sum of time and output bytes first."""
    calls = trace.calls
    seconds = trace.seconds or 1.0
    held = sum(trace.tensors[t].nbytes for call in calls for t in call.outputs) or 1
    weight = [call.seconds / seconds + sum(trace.tensors[t].nbytes for t in call.outputs) / held for call in calls]
    spans = [CallRange(k, k) for k in range(len(calls))]
    while len(spans) > max(1, most):
        n = min(range(len(spans) - 1), key=lambda i: weight[i] + weight[i + 1])
        spans[n:n + 2] = [CallRange(spans[n].first, spans[n + 1].last)]
        weight[n:n + 2] = [weight[n] + weight[n + 1]]
    return spans


def work_of(trace: Trace, span: CallRange, size: Mapping[TensorId, int], decided: Collection[TensorId],
            freed: Mapping[TensorId, int]) -> Work:
    """Return the inputs, outputs and costs of a range of calls.
    decided: tensors whose bytes are counted elsewhere; freed: tensor -> the call after which it is freed."""
    calls = trace.calls[span.first:span.last + 1]
    outputs = tuple(t for call in calls for t in call.outputs if freed.get(t, len(trace.calls)) > span.last)
    inputs = _outside(calls)
    wanted = tuple(t for t in outputs if t in decided)
    operands = sum(size[t] for t in wanted)
    levels = _levels(calls, size, replay=False)
    ways = _ways(calls, levels, operands, span.first)
    again = _needed(calls, wanted)
    replay_ways: tuple[Way, ...] = ()
    if wanted and all(calls[k].replayable for k in again):
        chosen = [calls[k] for k in again]
        kept = {t for call in chosen for t in call.outputs if t in decided and t in outputs}
        levels = _levels(chosen, size, replay=True, kept=kept)
        replay_ways = _ways(chosen, levels, sum(size[t] for t in kept), 0)
    return Work(span, inputs, outputs, ways, replay_ways, _outside([calls[k] for k in again]), wanted)


def _outside(calls: Sequence[TraceCall]) -> tuple[TensorId, ...]:
    """Return the inputs of these calls that none of them computes."""
    made: set[TensorId] = set()
    found: dict[TensorId, None] = {}
    for call in calls:
        found.update(dict.fromkeys(t for t in call.inputs if t not in made))
        made.update(call.outputs)
    return tuple(found)


def _needed(calls: Sequence[TraceCall], wanted: Collection[TensorId]) -> list[int]:
    """Return the indices of the calls that are needed to compute the wanted tensors."""
    missing, needed = set(wanted), []
    for k in range(len(calls) - 1, -1, -1):
        if missing.intersection(calls[k].outputs):
            needed.append(k)
            missing.update(calls[k].inputs)
    return needed[::-1]


def _levels(calls: Sequence[TraceCall], size: Mapping[TensorId, int], *, replay: bool,
            kept: Collection[TensorId] = ()) -> list[int]:
    """Return the bytes in use during each call, without its workspace, above the bytes before the first call.

    A call of the program frees and donates its inputs. A replay keeps its inputs and, of the tensors that it computes,
    those in ``kept`` and those that its later calls read.
    """
    reader = {t: k for k, call in enumerate(calls) for t in call.inputs}
    live, levels = 0, []
    for k, call in enumerate(calls):
        taken_over = 0 if replay else sum(size[o] for o, i in call.donated if i in call.frees)
        live += sum(size[t] for t in call.outputs)
        levels.append(live - taken_over)
        if not replay:
            live -= sum(size[t] for t in call.frees)
            continue
        made = [t for each in calls[:k + 1] for t in each.outputs]
        live -= sum(size[t] for t in made if t not in kept and max(reader.get(t, -1), _maker(calls, t)) == k)
    return levels


def _maker(calls: Sequence[TraceCall], tensor: TensorId) -> int:
    return next(k for k, call in enumerate(calls) if tensor in call.outputs)


def _ways(calls: Sequence[TraceCall], levels: Sequence[int], operands: int, first: int) -> tuple[Way, ...]:
    """Return up to ``MOST_WAYS`` choices of algorithms: for each peak, the fastest algorithms that stay below it.
    levels: as ``_levels`` returns them; operands: bytes of them counted elsewhere; first: the number of calls[0]."""
    choices = [_choices(call) for call in calls]
    least = max(level + options[-1][1] for level, options in zip(levels, choices, strict=True))
    heights = sorted({level + workspace for level, options in zip(levels, choices, strict=True)
                      for _, workspace, _ in options if level + workspace >= least}, reverse=True)
    ways: list[Way] = []
    for height in heights:
        picked = [next(o for o in options if level + o[1] <= height)
                  for level, options in zip(levels, choices, strict=True)]
        top = max(level + o[1] for level, o in zip(levels, picked, strict=True))
        names = tuple((first + k, o[2].name) for k, o in enumerate(picked) if len(choices[k]) > 1)
        way = Way(sum(o[0] for o in picked), top - operands, names)
        if not ways or way.nbytes < ways[-1].nbytes and way.seconds > ways[-1].seconds:
            ways.append(way)
        elif way.seconds <= ways[-1].seconds:
            ways[-1] = way
    return tuple(ways) if len(ways) <= MOST_WAYS else _spread(ways)


def _spread(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return the first way, the last way, and ways between them that are spaced evenly in time."""
    span = ways[-1].seconds - ways[0].seconds
    chosen = {0, len(ways) - 1}
    for n in range(1, MOST_WAYS - 1):
        wanted = ways[0].seconds + span * n / (MOST_WAYS - 1)
        chosen.add(min(range(len(ways)), key=lambda i: abs(ways[i].seconds - wanted)))
    return tuple(ways[i] for i in sorted(chosen))


def _choices(call: TraceCall) -> list[tuple[float, int, Algorithm]]:
    """Return (seconds, workspace, algorithm) of a call, fastest first, each slower one with less workspace."""
    best: list[tuple[float, int, Algorithm]] = []
    for algorithm in sorted(call.algorithms, key=lambda a: (a.workspace, a.seconds)):
        if not best or algorithm.seconds < best[-1][0]:
            best.append((algorithm.seconds, aligned(algorithm.workspace) if algorithm.workspace else 0, algorithm))
    return best[::-1]
