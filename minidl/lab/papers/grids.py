"""The page of a grid: how fast each policy is in each cell, beside what no plan exceeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

from minidl.lab.cell import Row
from minidl.lab.fitting import share
from minidl.lab.papers.page import Content, percent

EQUAL = 0.005  # of the fastest's speed: who is within it counts as first, too
KEPT_WORD = 0.01  # of an iteration: what a prediction may be off
Place = tuple[str, str, str]  # trace, device, budget


def speeds(content: Content, quick: bool, rows: Sequence[Row], wanted: int, steps: int | None,
           note: str | None = None) -> None:
    """First how far the fastest is from the bound, and the policies over all cells; then each cell, trace by trace.
    ``note``: said at the head."""
    places: dict[Place, dict[str, Row]] = {}
    for row in rows:
        places.setdefault((row.trace, row.device, f"{row.budget_share:.0%}"), {})[row.policy] = row
    _about(content, rows, wanted, steps)
    if note:
        content.say(note)
    if any(row.bound_s is not None for row in rows):
        _fastest(content, places)
    _policies(content, places)
    _lost(content, places)
    for trace, device in dict.fromkeys((trace, device) for trace, device, _ in places):
        _cells(content, trace, device, {budget: found for (t, d, budget), found in places.items()
                                        if (t, d) == (trace, device)})


def _about(content: Content, rows: Sequence[Row], wanted: int, steps: int | None) -> None:
    seconds = sum(row.cpu_s or 0.0 for row in rows)
    missing = f" of {wanted:,}; the others were not run" if len(rows) < wanted else ""
    last = f", or of {steps}" if steps else ""
    content.say(f"{len(rows):,} cells{missing}. Speeds are shares of that with unlimited memory, of the last "
                f"iteration: once nothing changes any more{last}. No plan exceeds the bound "
                "(`minidl/planning/bound.py`), which need not be reached. \"no room\" is an operation that failed, "
                "\"cannot\" a policy that refused, \"time\" a cell that took too long, \"-\" was not run.")
    if rows and seconds:
        content.say(f"These cells took {seconds:,.0f} s of processor time, {100 * seconds / len(rows):.0f} s a "
                    "hundred, bounds included.")


def limit(found: Iterable[Row]) -> float | None:
    """The bound of some rows of one place, as share of the unmanaged speed; None where it is not known."""
    return next((row.unmanaged_s / row.bound_s for row in found if row.bound_s is not None), None)


def _fastest(content: Content, places: dict[Place, dict[str, Row]]) -> None:
    table = []
    for place, found in places.items():
        bound, best = limit(found.values()), max(found.values(), key=share, default=None)
        row = [*place, "-" if bound is None else percent(bound) if bound else "nothing fits"]
        if best is None or not share(best) or not bound:
            table.append((*row, "no policy runs", "-", "-", "-", "-"))
            continue
        ours = [percent(share(found[name]) / bound) if name in found and share(found[name]) else "-"
                for name in ("capuchin", "auto")]
        table.append((*row, f"`{best.policy}`", percent(share(best)), percent(share(best) / bound), *ours))
    content.say("## How far from the bound\n\nThe fastest policy of each cell; \"of the bound\": its speed as share of "
                "that which no plan exceeds, and those of `capuchin` and `auto`.")
    content.table(("trace", "device", "budget", "bound", "fastest", "speed", "of the bound", "`capuchin`, of it",
                   "`auto`, of it"), table)


def _policies(content: Content, places: dict[Place, dict[str, Row]]) -> None:
    table = []
    most = {place: max(map(share, found.values())) for place, found in places.items()}
    for name in dict.fromkeys(name for found in places.values() for name in found):
        cells = {place: found[name] for place, found in places.items() if name in found}
        ran = {place: row for place, row in cells.items() if share(row)}
        parts = [share(row) / bound for place, row in ran.items() if (bound := limit(places[place].values()))]
        first = sum(share(row) >= (1 - EQUAL) * most[place] for place, row in ran.items())
        speed = percent(mean(map(share, ran.values()))) if ran else "-"
        table.append((f"`{name}`", f"{len(ran)} of {len(cells)}", speed, percent(mean(parts)) if parts else "-",
                      percent(min(parts)) if parts else "-", first))
    table.sort(key=lambda row: -int(row[-1]))
    content.say("## The policies over all cells\n\nMeans are over the cells that a policy runs: one that refuses "
                f"what is hard looks better than it is. First: no more than {EQUAL:.1%} slower than the fastest.")
    content.table(("policy", "runs", "mean speed", "mean, of the bound", "least, of the bound", "first"), table)


def _lost(content: Content, places: dict[Place, dict[str, Row]]) -> None:
    """Where another policy is faster than ``auto``, and why."""
    table = []
    for place, found in places.items():
        best, ours = max(found.values(), key=share), found.get("auto")
        if ours is not None and share(ours) < (1 - EQUAL) * share(best):
            table.append((*place, f"`{best.policy}`", percent(share(best)), percent(share(ours)), why(ours)))
    run = sum("auto" in found for found in places.values())
    content.say(f"## Where `auto` is not first\n\nOf {run} cells that it was run in, {len(table)} have a policy that "
                f"is more than {EQUAL:.1%} faster.")
    if table:
        content.table(("trace", "device", "budget", "fastest", "speed", "`auto`", "why"), table)


def why(row: Row) -> str:
    """What a planner that was beaten has to say for itself."""
    if row.settled_s is None:
        return row.status.partition(":")[0]
    if row.predicted_s is None:
        return "it follows no plan"
    if row.settled_s > (1 + KEPT_WORD) * row.predicted_s:
        return f"its plan promises {percent(row.unmanaged_s / row.predicted_s)}"
    return "its search has found no better plan"


def _cells(content: Content, trace: str, device: str, budgets: dict[str, dict[str, Row]]) -> None:
    names = dict.fromkeys(name for found in budgets.values() for name in found)
    bounds = {budget: limit(found.values()) for budget, found in budgets.items()}
    table: list[tuple[str, ...]] = []
    if any(bound is not None for bound in bounds.values()):
        table.append(("bound", *("-" if bound is None else percent(bound) if bound else "nothing fits"
                                 for bound in bounds.values())))
    for name in names:
        table.append((f"`{name}`", *(_cell(found.get(name), bounds[budget]) for budget, found in budgets.items())))
    content.say(f"## {trace} on {device}\n\nSpeed" + (" / as share of the bound." if table[0][0] == "bound" else "."))
    content.table(("policy", *budgets), table)


def _cell(row: Row | None, bound: float | None) -> str:
    if row is None:
        return "-"
    if row.settled_s is None:
        return row.status.partition(":")[0]
    return percent(share(row)) + (f" / {percent(share(row) / bound)}" if bound else "")
