"""The picture of a grid: speed by budget, a line for each policy, under the bound that no plan exceeds."""

from collections.abc import Sequence

from minidl.lab.drawing import figure_of
from minidl.lab.fitting import share
from minidl.lab.row import CellResult
from minidl.lab.table import policy_of, trace_of

WIDE, HIGH = 6.4, 3.6  # of one trace on one device, in inches
ACROSS = 2  # of them, side by side
BOUND = "no plan is faster"


def lines(rows: Sequence[CellResult]) -> dict[tuple[str, str], dict[str, list[tuple[float, float]]]]:
    """Return the lines of each diagram: (trace, device) -> policy -> points, the smallest budget first.
    A point is (budget as a share of the unmanaged peak, at most 1; speed as a share of the unmanaged speed). The bound
    is a line, too, called BOUND. Cells that did not come to their end have no point."""
    found: dict[tuple[str, str], dict[str, dict[float, float]]] = {}
    for row in rows:
        of_one = found.setdefault((trace_of(row.values()), row.device), {})
        budget = min(1.0, row.budget_share)
        if row.settled_s is not None:
            of_one.setdefault(policy_of(row.values()), {})[budget] = share(row)
        if row.bound_s is not None:
            of_one.setdefault(BOUND, {})[budget] = min(1.0, row.unmanaged_s / row.bound_s)
    return {of_one: {name: sorted(points.items()) for name, points in named.items()}
            for of_one, named in found.items()}


def picture(rows: Sequence[CellResult]) -> bytes:
    """Return the picture as the bytes of a PNG file, with one diagram for each trace and device.
    Raises UserError without matplotlib."""
    found = lines(rows)
    down = -(-len(found) // ACROSS)
    with figure_of(WIDE * min(ACROSS, max(len(found), 1)), HIGH * max(down, 1)) as (figure, axes, done):
        axes.remove()
        names = dict.fromkeys(name for named in found.values() for name in named if name != BOUND)
        colours = {name: f"C{number % 10}" for number, name in enumerate(names)}  # the same in all diagrams
        for number, ((trace, device), named) in enumerate(found.items(), 1):
            each = figure.add_subplot(down, min(ACROSS, len(found)), number)
            for name, points in named.items():
                how = ({"color": "0.4", "linestyle": "--"} if name == BOUND else
                       {"color": colours[name], "marker": "o", "markersize": 3})
                each.plot([100 * x for x, _ in points], [100 * y for _, y in points], label=name, **how)
            each.set(title=f"{trace} on {device}", xlabel="budget, % of the unmanaged peak",
                     ylabel="% of the unmanaged speed", ylim=(0, 105))
            each.legend(fontsize=8)
        return done()
