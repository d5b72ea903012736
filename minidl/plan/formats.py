"""Plans as JSON files, so that a plan made on one machine can be kept, compared and followed on another.

docs/formats.md describes the document; the classes below describe it for msgspec, which validates files against them.
A file holds the decisions that the engine follows and facts that identify the plan's iteration. It leaves out the
policy's own notes, such as search state. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, ValidationError

from minidl.meta import ALIGNMENT
from minidl.outside.validation import MOST_WHOLE
from minidl.plan.document import Count, Head, Id, Ids, Row, Seconds, beginning, document, each_once, read, read_file
from minidl.plan.plan import AccessKey, Action, Eviction, Move, Plan
from minidl.plan.trace import TensorId, Trace

FORMAT, VERSION = "minidl-plan", 4

AccessCount = Annotated[int, Meta(ge=1, le=MOST_WHOLE)]
Address = Annotated[int, Meta(ge=0, le=MOST_WHOLE, multiple_of=ALIGNMENT)]


@dataclass(frozen=True)
class SavedPlan:
    """A plan in a file, with facts that identify the iteration that it was made for.

    calls    number of calls of the iteration
    evicted  evicted tensor -> (operation that makes it, or "" if none does; its bytes)
    """

    plan: Plan
    calls: int
    evicted: Mapping[TensorId, tuple[str, int]]

    @classmethod
    def of(cls, plan: Plan, trace: Trace) -> SavedPlan:
        """Combine a plan with the trace of its iteration. Raises KeyError for a tensor that is not in the trace."""
        made_by = {tensor_id: call.op for call in trace.calls for tensor_id in call.outputs}
        evicted = {t: (made_by.get(t, ""), trace.tensors[t].nbytes) for t, _ in plan.evictions}
        return cls(plan, len(trace.calls), evicted)


# Writing -------------------------------------------------------------------------------------------------------------
def plan_to_json(saved: SavedPlan) -> str:
    """Return a plan as a JSON document. Raises ValueError if its predicted seconds are infinite or NaN."""
    plan = saved.plan
    return document(FORMAT, VERSION, {
        "calls": saved.calls, "predicted_seconds": plan.predicted_seconds,
        "evictions": [{"tensor": t, "access": n, "action": action.value, "op": saved.evicted[t][0],
                       "bytes": saved.evicted[t][1]} for (t, n), action in plan.evictions.items()],
        "prefetches": [{"tensor": t, "access": n, "swap_in": ids} for (t, n), ids in plan.prefetches.items()],
        "offsets": [{"tensor": t, "arrival": n, "offset": offset} for (t, n), offset in plan.offsets.items()],
        "waits": [{"tensor": t, "access": n} for t, n in sorted(plan.waits)],
        "releases": _releases(plan.releases),
        "replays": [{"tensor": t, "access": n, "replay": ids} for (t, n), ids in plan.replays.items()],
        "spent": _releases(plan.spent),
        "moves": [{"tensor": t, "access": n, "move": [[*to] for to in each]} for (t, n), each in plan.moves.items()],
        "algorithms": [{"call": call, "algorithm": name} for call, name in plan.algorithms.items()]})


def _releases(releases: Mapping[AccessKey, tuple[Eviction, ...]]) -> list[dict[str, object]]:
    return [{"tensor": t, "access": n, "release": [[other, action.value] for other, action in each]}
            for (t, n), each in releases.items()]


def is_plan(head: bytes) -> bool:
    """True if a file that begins with these bytes was written by ``plan_to_json``."""
    return head.startswith(beginning(FORMAT).encode())


# The content of a file -----------------------------------------------------------------------------------------------
class _Access(Row):
    tensor: Id
    access: AccessCount

    @property
    def key(self) -> AccessKey:
        return self.tensor, self.access


class _Eviction(_Access):
    action: Action
    op: str
    bytes: Count


class _Prefetch(_Access):
    swap_in: Ids


class _Release(_Access):
    release: tuple[Eviction, ...]


class _Replay(_Access):
    replay: Ids


class _To(Move):
    tensor_id: Id
    offset: Address


class _Moves(_Access):
    move: tuple[_To, ...]


class _Choice(Row):
    call: Count
    algorithm: str


class _Offset(Row):
    tensor: Id
    arrival: Count
    offset: Address


class _PlanV3(Head, forbid_unknown_fields=True):
    calls: Count
    predicted_seconds: Seconds | None
    evictions: list[_Eviction]
    prefetches: list[_Prefetch]
    offsets: list[_Offset]
    waits: list[_Access]
    releases: list[_Release]
    replays: list[_Replay]
    spent: list[_Release]
    algorithms: list[_Choice]


class _Plan(_PlanV3, forbid_unknown_fields=True):
    moves: list[_Moves]


# Reading -------------------------------------------------------------------------------------------------------------
def plan_from_json(text: str | bytes) -> SavedPlan:
    """Return the plan that a document holds. Raises UserError with the mistake and its place."""
    return read(text, FORMAT, READERS)


def read_plan(path: str) -> SavedPlan:
    """Return the plan in a file. Raises UserError with the file, the mistake and its place."""
    return read_file(path, FORMAT, READERS)


def _plan(file: _PlanV3) -> SavedPlan:
    evicted: dict[TensorId, tuple[str, int]] = {}
    for n, row in enumerate(file.evictions):
        if evicted.setdefault(row.tensor, (row.op, row.bytes)) != (row.op, row.bytes):
            raise ValidationError(f"tensor {row.tensor} had another op or other bytes before - at `$.evictions[{n}]`")
    plan = Plan(
        evictions=each_once("evictions", ((row.key, row.action) for row in file.evictions)),
        prefetches=each_once("prefetches", ((row.key, row.swap_in) for row in file.prefetches)),
        offsets=each_once("offsets", (((row.tensor, row.arrival), row.offset) for row in file.offsets)),
        waits=frozenset(each_once("waits", ((row.key, None) for row in file.waits))),
        releases=each_once("releases", ((row.key, row.release) for row in file.releases)),
        spent=each_once("spent", ((row.key, row.release) for row in file.spent)),
        replays=each_once("replays", ((row.key, row.replay) for row in file.replays)),
        moves=each_once("moves", ((row.key, tuple(Move(*to) for to in row.move)) for row in _moves(file))),
        algorithms=each_once("algorithms", ((row.call, row.algorithm) for row in file.algorithms)),
        predicted_seconds=file.predicted_seconds)
    return SavedPlan(plan, file.calls, evicted)


def _moves(file: _PlanV3) -> list[_Moves]:
    return file.moves if isinstance(file, _Plan) else []


READERS = {3: (_PlanV3, _plan), VERSION: (_Plan, _plan)}
