"""Pictures of lines, where matplotlib is there (extra ``viz``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minidl.errors import UserError
from minidl.lab.drawing import figure_of


def curves(lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, *,
           falling: bool = False) -> bytes | None:
    """Draw a line for each name through its points (x, y); return the PNG, or None without matplotlib.

    falling: the x axis runs from the largest value to the smallest.
    """
    try:
        with figure_of(5.0, 2.8) as (_, axes, done):
            for name, points in lines.items():
                axes.plot([x for x, _ in points], [y for _, y in points], "o-", markersize=3, linewidth=1, label=name)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            axes.set_ylim(bottom=0)
            if falling:
                axes.invert_xaxis()
            axes.legend(fontsize=7, frameon=False)
            return done()
    except UserError:
        return None
