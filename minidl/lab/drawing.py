"""Figures, where matplotlib is there (extra ``viz``)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minidl.errors import UserError
from minidl.outside.writing import begins_with

is_png = begins_with(b"\x89PNG")


@contextmanager
def figure_of(width: float, height: float) -> Iterator[tuple[Any, Any, Callable[[], bytes]]]:
    """A figure of so many inches, its axes, and what makes a PNG of it. Raises UserError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UserError('a picture takes matplotlib: pip install "minidl[viz]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height))

    def done() -> bytes:
        figure.tight_layout()
        out = io.BytesIO()
        figure.savefig(out, dpi=110, format="png", metadata={"Software": None})
        return out.getvalue()

    try:
        yield figure, axes, done
    finally:
        pyplot.close(figure)


def curves(lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, *,
           falling: bool = False) -> bytes | None:
    """A line a name, through its points (x, y); ``falling``: the largest x comes first. None without matplotlib."""
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
