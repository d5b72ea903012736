"""The page of a grid: how fast each policy is in each cell, beside what no plan exceeds.

The page is a summary: networks by budgets with the fastest policy of each cell, the policies over all cells, and where
another policy beats ``auto``. All cells are in a CSV file beside it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from bench.papers.page import Content, Page, percent
from minidl.lab.fitting import share
from minidl.lab.row import CellResult

EQUAL = 0.005  # of the fastest's speed: who is within it counts as first, too
KEPT_WORD = 0.01  # of an iteration: what a prediction may be off
HUNDRED = 100  # cells: below, the page tells the seconds of one
OURS, PAPERS = "auto", "capuchin"
CELL_COLUMNS = ("trace", "device", "policy")
NOTHING = "nothing fits"
Place = tuple[str, str, str]  # trace, device, budget
Cells = Mapping[str, CellResult]  # of one place, by policy


def speeds(content: Content, quick: bool, rows: Sequence[CellResult], wanted: int, steps: int | None,
           note: str | None = None) -> None:
    """Fill the page of a grid.

    wanted: how many cells the grid has; steps: the most iterations of a cell; note: a text for the head of the page.
    """
    places: dict[Place, dict[str, CellResult]] = {}
    for row in rows:
        places.setdefault((row.trace, row.device, f"{row.budget_share:.0%}"), {})[row.policy] = row
    _about(content, rows, wanted, steps)
    if note:
        content.say(note)
    if any(row.bound_s is not None for row in rows):
        _fastest(content, places)
    _policies(content, places)
    _lost(content, places)
    _predicted(content, places)
    content.data(_cells(places), "All cells are in {}: a row for each network, device and policy, a column for each "
                 "budget. A speed is a percentage of the bound, or of the speed with unlimited memory if there is no "
                 "bound.")


def write(path: str, command: str, rows: Sequence[CellResult], wanted: int, steps: int | None,
          note: str | None) -> None:
    """Write the page of a grid; ``command``: the words after ``minidl lab run``. Raises UserError."""
    Page(Path(path).stem, "A grid of networks, budgets and policies",
         partial(speeds, rows=rows, wanted=wanted, steps=steps, note=note),
         command=f"run {command}").write(str(Path(path).parent))


def _about(content: Content, rows: Sequence[CellResult], wanted: int, steps: int | None) -> None:
    missing = f" of {wanted:,}; the others were not run" if len(rows) < wanted else ""
    last = f", or iteration {steps}" if steps else ""
    content.say(f"{len(rows):,} cells{missing}. All are simulated. `vgg11:96` is the network vgg11 at batch 96. "
                "Budgets in percent are of the unmanaged peak. A speed is a percentage of the speed with unlimited "
                "memory, measured "
                f"in the last iteration: the one after which nothing changes any more{last}. The bound "
                "(`minidl/planning/bound.py`) is a speed that no plan can exceed; it may not be reachable. Instead of "
                "a speed: \"no room\" means that an operation found no memory, \"cannot\" that the policy refused, "
                "\"time\" that the cell took too long, \"-\" that it was not run.")
    seconds = sum(row.cpu_s or 0.0 for row in rows)
    if rows and seconds:
        by_trace: dict[str, list[float]] = {}
        for row in rows:
            by_trace.setdefault(row.trace, []).append(row.cpu_s or 0.0)
        trace = max(by_trace, key=lambda name: mean(by_trace[name]))
        many = len(rows) >= HUNDRED

        def on_average(found: Iterable[CellResult]) -> str:
            taken = [row.cpu_s or 0.0 for row in found]
            return "none" if not taken else f"{HUNDRED * mean(taken):,.0f} s" if many else f"{mean(taken):,.1f} s"

        content.say(f"These cells took {seconds:,.0f} s of processor time, bounds included. "
                    f"{'A hundred cells' if many else 'A cell'} took {on_average(rows)} on average: "
                    f"{on_average(row for row in rows if row.policy == OURS)} under `{OURS}`, "
                    f"{on_average(row for row in rows if row.policy != OURS)} under all other policies; "
                    f"{on_average(row for row in rows if row.trace == trace)} on {trace}, where they take longest.")


def limit(found: Iterable[CellResult]) -> float | None:
    """The bound of some rows of one place, as share of the unmanaged speed; None where it is not known."""
    return next((row.unmanaged_s / row.bound_s for row in found if row.bound_s is not None), None)


def _fastest(content: Content, places: Mapping[Place, Cells]) -> None:
    """Networks by budgets: the fastest policy and its share of the bound, and the paper's policy beside it."""
    content.say("## How far from the bound\n\nThe speed of the fastest policy, as a percentage of the bound. If no "
                f"policy is named it is `{OURS}`, which is then the fastest or at most {EQUAL:.1%} slower. "
                f"\"{NOTHING}\": by the bound no plan can run; \"none runs\": no policy ran.")
    _by_budget(content, places, _best)
    if any(PAPERS in found for found in places.values()):
        content.say(f"The speed of `{PAPERS}`, as a percentage of the same bound:")
        _by_budget(content, places, lambda found, bound: _part(found.get(PAPERS), bound))


def _by_budget(content: Content, places: Mapping[Place, Cells], tell: Callable[[Cells, float | None], str]) -> None:
    """A line a network and device, a column a budget."""
    budgets = dict.fromkeys(budget for _, _, budget in places)
    lines = dict.fromkeys((trace, device) for trace, device, _ in places)
    rows = []
    for trace, device in lines:
        here = [places.get((trace, device, budget), {}) for budget in budgets]
        rows.append((trace, device, *(tell(found, limit(found.values())) for found in here)))
    content.table(("trace", "device", *budgets), rows)


def _best(found: Cells, bound: float | None) -> str:
    best, ours = max(found.values(), key=share, default=None), found.get(OURS)
    if best is None or bound is None:
        return "-"
    if not share(best):
        return NOTHING if not bound else "none runs"
    first = ours is not None and share(ours) >= (1 - EQUAL) * share(best)
    return _part(ours, bound) if first else f"{_part(best, bound)} `{best.policy}`"


def _part(row: CellResult | None, bound: float | None) -> str:
    """A speed as share of the bound, or the reason why there is none."""
    if row is None:
        return "-"
    if row.settled_s is None:
        return row.status.partition(":")[0] if bound != 0 else NOTHING
    return percent(share(row) / bound) if bound else percent(share(row))


def _policies(content: Content, places: Mapping[Place, Cells]) -> None:
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
    content.say("## The policies over all cells\n\nMeans are over the cells in which a policy runs, so a policy that "
                "refuses hard cells looks better than it is. Column \"first\": the number of cells in which it is the "
                f"fastest policy or at most {EQUAL:.1%} slower.")
    content.table(("policy", "runs", "mean speed", "mean, of the bound", "least, of the bound", "first"), table)


def _lost(content: Content, places: Mapping[Place, Cells]) -> None:
    """The cells in which another policy is faster than ``auto``, with reasons."""
    table = []
    for place, found in places.items():
        best, ours = max(found.values(), key=share), found.get(OURS)
        if ours is not None and share(ours) < (1 - EQUAL) * share(best):
            table.append((*place, f"`{best.policy}`", percent(share(best)), percent(share(ours)), why(ours)))
    run = sum(OURS in found for found in places.values())
    content.say(f"## Where `{OURS}` is not first\n\n`{OURS}` was run in {run} cells. In {len(table)} of them another "
                f"policy is more than {EQUAL:.1%} faster.")
    if table:
        content.table(("trace", "device", "budget", "fastest", "speed", f"`{OURS}`", "why"), table)


def _predicted(content: Content, places: Mapping[Place, Cells]) -> None:
    """The predicted seconds of plans of ``auto`` beside those that the iteration takes."""
    ours = {place: found[OURS] for place, found in places.items() if OURS in found and found[OURS].settled_s}
    off = {place: row.settled_s / row.predicted_s - 1 for place, row in ours.items()
           if row.predicted_s and row.settled_s}
    if not off:
        return
    wrong = sorted(((place, each) for place, each in off.items() if abs(each) > KEPT_WORD),
                   key=lambda entry: -abs(entry[1]))
    content.say(f"## Predicted and observed\n\nIn {len(off)} of {len(ours)} cells the last iteration of `{OURS}` "
                f"follows a plan. In {len(off) - len(wrong)} of these it takes the predicted time within "
                f"{KEPT_WORD:.0%}"
                + ("; in the others:" if wrong else "."))
    if wrong:
        content.table(("trace", "device", "budget", "predicted", "observed", "longer by"),
                      [(*place, percent(ours[place].unmanaged_s / (ours[place].predicted_s or 1)),
                        percent(share(ours[place])), f"{each:+.1%}") for place, each in wrong])


def why(row: CellResult) -> str:
    """The reason why a planner was beaten, as text."""
    if row.settled_s is None:
        return row.status.replace("|", "/")
    after = f", after {row.steps} iterations"
    if row.predicted_s is None:
        return f"it follows no plan{after}"
    if row.settled_s > (1 + KEPT_WORD) * row.predicted_s:
        return f"its plan promises {percent(row.unmanaged_s / row.predicted_s)}{after}"
    return f"its search has found no better plan{after}"


def _cells(places: Mapping[Place, Cells]) -> str:
    """Return all cells as CSV: a row for each network, device and policy, a column for each budget.

    The policy ``bound`` is the bound as a share of the unmanaged speed; where there is a bound, a policy's speed is a
    share of the bound.
    """
    budgets = list(dict.fromkeys(budget for _, _, budget in places))
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*CELL_COLUMNS, *budgets))
    for trace, device in dict.fromkeys((trace, device) for trace, device, _ in places):
        here = [places.get((trace, device, budget), {}) for budget in budgets]
        bounds = [limit(found.values()) for found in here]
        if any(bound is not None for bound in bounds):
            writer.writerow((trace, device, "bound", *("-" if bound is None else percent(bound) if bound else NOTHING
                                                       for bound in bounds)))
        for name in dict.fromkeys(name for found in here for name in found):
            writer.writerow((trace, device, name, *(_part(found.get(name), bound)
                                                    for found, bound in zip(here, bounds, strict=True))))
    return out.getvalue()
