"""Makes traces of logs of memory: of lifetimes (CSV), or of lines with malloc, free, read and write.

A log of lines has one event a line, and an id is a word that may be used again once its buffer was freed:

    op conv 1.5e-3      the events up to the next op are one call, of so many seconds (optional)
    malloc a 4096       bytes
    read a
    write a             the old bytes are gone or changed
    free a

Without ``op`` lines a call is some reads and the writes after them, and takes a microsecond; a free between calls is
part of the earlier one. A buffer that is never read or written is made at its malloc. A log of several iterations has
equal events again and again: the reader looks for the longest end of the log that repeats with one period, in linear
time, and takes one period as the iteration, cut where the fewest bytes are live. Garbage collection may free a buffer
now earlier, now later: if nothing repeats for this reason, the frees are left out of the search.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from minidl.errors import UserError
from minidl.lab.lifetimes import Lifetime, events, read_log
from minidl.meta import Algorithm
from minidl.outside.reading import read_text
from minidl.outside.validation import real, shown, whole
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor

MOST_FILE_BYTES = 256 << 20
TICK = 1e-6  # seconds of a call whose time is not known, and of one unit of a log of lifetimes
VERBS = ("malloc", "read", "write", "free")


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line of a log. verb: malloc, read, write or free, of a buffer that is numbered by its malloc; or op.
    An op begins a call, and has a name and seconds."""

    verb: str
    buffer: int = -1
    nbytes: int = 0
    name: str = ""
    seconds: float = 0.0


def read_program(path: str) -> Trace:
    """Return the iteration in a log file as a trace: of lifetimes if the name ends in .csv or .csv.gz, else of lines.
    Raises UserError, naming file, line and value, for a file that is no such log."""
    lifetimes = path.removesuffix(".gz").endswith(".csv")
    return of_lifetimes(read_log(path)) if lifetimes else of_events(read_events(path), path)


def of_lifetimes(lifetimes: Sequence[Lifetime]) -> Trace:
    """Return a trace with one call for each birth of a buffer, and one for each death, which reads the buffer.
    A unit of the log's time counts as a microsecond."""
    number = {lifetime.id: n for n, lifetime in enumerate(lifetimes)}
    calls: list[TraceCall] = []
    before: int | None = None
    for lifetime, birth in events(lifetimes):
        n, now = number[lifetime.id], lifetime.lower if birth else lifetime.upper
        seconds = TICK * (now - before) if before is not None else 0.0
        before = now
        calls.append(_call("birth", (), (n,), (), (), seconds) if birth else
                     _call("death", (n,), (), (n,), (), seconds))
    return Trace(tuple(calls), {n: TraceTensor(n, e.size, False) for n, e in enumerate(lifetimes)})


# Lines ---------------------------------------------------------------------------------------------------------------
def read_events(path: str) -> list[LogEvent]:
    """Return the events in a log file with one event per line.
    Raises UserError, naming file and line, for an invalid line or a file without events."""
    found: list[LogEvent] = []
    live: dict[str, tuple[int, int]] = {}
    count = 0
    for number, line in enumerate(read_text(path, most=MOST_FILE_BYTES).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            event = _event(words, live, count)
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        count += event.verb == "malloc"
        found.append(event)
    if not found:
        raise UserError(f"{path} has no events")
    return found


def _event(words: list[str], live: dict[str, tuple[int, int]], count: int) -> LogEvent:
    verb, *rest = words
    if verb == "op":
        if len(rest) not in (1, 2):
            raise UserError("an op has a name, and its seconds")
        return LogEvent(verb, name=rest[0], seconds=real(rest[1]) if len(rest) == 2 else TICK)
    if verb not in VERBS:
        raise UserError(f"{shown(verb)!r} is none of op, {', '.join(VERBS)}")
    if len(rest) != (2 if verb == "malloc" else 1):
        raise UserError(f"{verb} has an id" + (" and bytes" if verb == "malloc" else ""))
    name = rest[0]
    if verb == "malloc":
        if name in live:
            raise UserError(f"{shown(name)!r} was not freed since its last malloc")
        live[name] = count, whole(rest[1])
    elif name not in live:
        raise UserError(f"{verb} of {shown(name)!r}, which is not allocated")
    buffer, nbytes = live[name]
    if verb == "free":
        del live[name]
    return LogEvent(verb, buffer, nbytes)


# Iterations ----------------------------------------------------------------------------------------------------------
def period(tokens: Sequence[object]) -> int:
    """Return the least period of the longest suffix that has at least two periods; without one, the sequence's length.
    In linear time: by the Z function of the reversed sequence."""
    reversed_tokens = tokens[::-1]
    count = len(reversed_tokens)
    alike = [0] * count  # how far the sequence from here on is like its beginning
    left = right = 0
    best, reach = count, 0
    for i in range(1, count):
        same = min(right - i, alike[i - left]) if i < right else 0
        while i + same < count and reversed_tokens[same] == reversed_tokens[i + same]:
            same += 1
        alike[i] = same
        if i + same > right:
            left, right = i, i + same
        if same >= i and i + same > reach:
            best, reach = i, i + same
    return best


def _iteration(found: Sequence[LogEvent]) -> tuple[int, int]:
    """Return the first event of an iteration and the one after its last; the whole log if nothing in it repeats."""
    length = period(_tokens(found))
    if length < len(found):
        begin = _cut(found, length)
        return begin, begin + length
    others = [n for n, event in enumerate(found) if event.verb != "free"]
    shorter = period(_tokens([found[n] for n in others]))
    named = any(event.verb == "op" for event in found)
    for back in range(shorter, min(2 * shorter, len(others) + 1) if shorter < len(others) else shorter):
        begin = others[-back]
        if not named or found[begin].verb == "op":
            return begin, others[shorter - back] if back > shorter else len(found)
    return 0, len(found)


def _tokens(found: Sequence[LogEvent]) -> list[object]:
    """Return, for each event, a value that is equal in all iterations:
    its bytes, and how long ago its buffer was last used."""
    last: dict[int, int] = {}
    tokens: list[object] = []
    for n, event in enumerate(found):
        ago = n - last[event.buffer] if event.buffer in last else 0
        if event.buffer >= 0:
            last[event.buffer] = n
        tokens.append((event.verb, event.nbytes, event.name, ago))
    return tokens


def _cut(found: Sequence[LogEvent], length: int) -> int:
    """Return the first event of an iteration of ``length`` events: before a call, where the fewest bytes are live.
    It is in the last two periods of the log; of several such places the latest."""
    named = any(event.verb == "op" for event in found)
    live, least, best = 0, -1, len(found) - length
    for n, event in enumerate(found[:len(found) - length + 1]):
        if n > len(found) - 2 * length and (event.verb == "op" or not named) and (least < 0 or live <= least):
            least, best = live, n
        live += {"malloc": event.nbytes, "free": -event.nbytes}.get(event.verb, 0)
    return best


@dataclass
class _Group:
    """The events of a log that belong to one call, by the numbers of the buffers."""

    name: str
    seconds: float
    read: list[TensorId] = field(default_factory=list)
    made: list[TensorId] = field(default_factory=list)
    written: list[TensorId] = field(default_factory=list)
    freed: list[TensorId] = field(default_factory=list)
    named: bool = False  # by a line of its own

    @property
    def begun(self) -> bool:
        """True if the call has an event, or an op line of its own."""
        return bool(self.read or self.made or self.written or self.freed or self.named)


def of_events(found: Sequence[LogEvent], path: str = "the log") -> Trace:
    """Return one iteration of a log as a trace; buffers from before it that stay are persistent.
    path: its file, for messages. Raises UserError if the iteration has no call."""
    begin, end = _iteration(found)
    chosen = found[begin:end]
    groups = list(_groups(chosen))
    if not groups:
        raise UserError(f"{path}: an iteration of {len(chosen)} events has no call")
    sizes = {event.buffer: event.nbytes for event in chosen if event.buffer >= 0}
    made = {event.buffer for event in chosen if event.verb == "malloc"}
    freed = {event.buffer for event in chosen if event.verb == "free"}
    lasting = {buffer: -1 - n for n, buffer in enumerate(sorted(set(sizes) - made - freed))}

    def ids(buffers: Iterable[int]) -> tuple[TensorId, ...]:
        return tuple(dict.fromkeys(lasting.get(buffer, buffer) for buffer in buffers))

    calls = tuple(_call(group.name, ids((*group.read, *group.written)), ids(group.made), ids(group.freed),
                        ids(group.written), group.seconds) for group in groups)
    used = {i for call in calls for i in (*call.inputs, *call.outputs, *call.frees)}
    tensors = {lasting.get(buffer, buffer): nbytes for buffer, nbytes in sizes.items()}
    return Trace(calls, {i: TraceTensor(i, tensors[i], i < 0) for i in sorted(used)})


def _groups(chosen: Sequence[LogEvent]) -> Iterator[_Group]:
    """Yield the calls of an iteration, whose events are ``chosen``.
    The first call that writes or reads a buffer after its malloc makes the buffer; if there is none, the malloc's."""
    used = {event.buffer for event in chosen if event.verb in ("read", "write")}
    named = any(event.verb == "op" for event in chosen)
    group = _Group("begin", 0.0)
    fresh: set[int] = set()
    for event in chosen:
        if event.verb == "op" or not named and event.verb != "free" and (
                event.verb == "read" and (group.made or group.written) or group.freed):
            if group.begun:
                yield group
            group = _Group(event.name or "call", event.seconds or TICK, named=event.verb == "op")
        if event.verb == "malloc":
            if event.buffer in used:
                fresh.add(event.buffer)
            else:
                group.made.append(event.buffer)
        elif event.verb == "free":
            if event.buffer in fresh:  # no call has read it
                group.made.append(event.buffer)
            group.freed.append(event.buffer)
        elif event.buffer in fresh:
            group.made.append(event.buffer)
        elif event.buffer >= 0 and event.buffer not in group.made:
            (group.read if event.verb == "read" else group.written).append(event.buffer)
        if event.verb != "malloc":
            fresh.discard(event.buffer)
    if group.begun:
        yield group


def _call(op: str, inputs: tuple[TensorId, ...], outputs: tuple[TensorId, ...], frees: tuple[TensorId, ...],
          writes: tuple[TensorId, ...], seconds: float) -> TraceCall:
    return TraceCall(op, inputs, outputs, seconds, (Algorithm(op, seconds),), frees, writes=writes,
                     replayable=bool(outputs) and not writes)
