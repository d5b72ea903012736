"""Compares two plans: the decisions that they share, and the largest tensors that they treat differently.

  minidl compare A.json B.json [--rows N]

Files are those of ``train.py --save-plan``. It does not tell which plan is faster: that takes a run.
"""

from __future__ import annotations

from minidl.cli.command import carry_out
from minidl.errors import UserError
from minidl.outside.tables import table
from minidl.outside.units import format_bytes
from minidl.plan.formats import SavedPlan
from minidl.plan.plan import AccessKey, Action

STAYS = "stays"


def comparison(a: SavedPlan, b: SavedPlan, *, rows: int) -> str:
    """Return the comparison as text, with at most ``rows`` decisions that differ, the largest tensors first.
    Raises UserError if the plans' iterations differ in the number of calls, or in a tensor that both evict."""
    if a.calls != b.calls:
        raise UserError(f"the plans are for different iterations: of {a.calls} calls and of {b.calls}")
    for tensor_id in sorted(a.evicted.keys() & b.evicted.keys()):
        if a.evicted[tensor_id] != b.evicted[tensor_id]:
            raise UserError(f"the plans are for different iterations: tensor {tensor_id} is "
                            f"{' and '.join(f'{s.evicted[tensor_id][1]} bytes' for s in (a, b))}")
    keys = sorted(a.plan.evictions.keys() | b.plan.evictions.keys(), key=lambda key: (-_bytes(a, b, key), key))
    same = [key for key in keys if _what(a, key) == _what(b, key)]
    other = [key for key in keys if _what(a, key) != _what(b, key)]
    lines = [f"A: {_outline(a)}", f"B: {_outline(b)}",
             f"the same in both: {len(same)} decisions, {format_bytes(sum(_bytes(a, b, key) for key in same))}"]
    triggers_a, triggers_b = _triggers(a), _triggers(b)
    shared = triggers_a.keys() & triggers_b.keys()
    alike = sum(triggers_a[tensor_id] == triggers_b[tensor_id] for tensor_id in shared)
    lines.append(f"swapped in ahead by both: {len(shared)} tensors, {alike} of them from the same accesses")
    lines.append(f"different: {len(other)} decisions, {format_bytes(sum(_bytes(a, b, key) for key in other))}"
                 + (f"; the {rows} largest:" if len(other) > rows else ":" if other else ""))
    if other:
        lines += table([("tensor", "made by", "bytes", "after access", "A", "B"), *(
            (str(key[0]), (a.evicted.get(key[0]) or b.evicted[key[0]])[0] or "-", format_bytes(_bytes(a, b, key)),
             str(key[1]), _what(a, key), _what(b, key)) for key in other[:rows])], left=(1, 4, 5))
    return "\n".join(lines)


def _outline(saved: SavedPlan) -> str:
    parts = []
    for action, verb in ((Action.SWAP_OUT, "swapped"), (Action.DROP, "dropped")):
        chosen = [key for key, other in saved.plan.evictions.items() if other is action]
        parts.append(f"{len(chosen)} {verb} ({format_bytes(sum(saved.evicted[t][1] for t, _ in chosen))})")
    seconds = saved.plan.predicted_seconds
    return ", ".join(parts) + ("" if seconds is None else f", predicted {seconds:.4g} s")


def _bytes(a: SavedPlan, b: SavedPlan, key: AccessKey) -> int:
    return (a.evicted.get(key[0]) or b.evicted[key[0]])[1]


def _what(saved: SavedPlan, key: AccessKey) -> str:
    action = saved.plan.evictions.get(key)
    return STAYS if action is None else action.value


def _triggers(saved: SavedPlan) -> dict[int, list[AccessKey]]:
    """Return, by the number of each swapped tensor, the accesses after which its swap-ins start."""
    triggers: dict[int, list[AccessKey]] = {}
    for key, tensor_ids in saved.plan.prefetches.items():
        for tensor_id in tensor_ids:
            triggers.setdefault(tensor_id, []).append(key)
    return triggers


if __name__ == "__main__":
    carry_out("minidl.report.compare", "compare")
