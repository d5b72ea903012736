"""Figures drawn with matplotlib (extra ``viz``), as PNG."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minidl.errors import UserError
from minidl.outside.writing import begins_with

is_png = begins_with(b"\x89PNG")


def require_matplotlib() -> Any:
    """Return the module matplotlib. Raises UserError without it."""
    try:
        import matplotlib
    except ImportError:
        raise UserError('a picture takes matplotlib: pip install "minidl[viz]"') from None
    return matplotlib


@contextmanager
def figure_of(width: float, height: float) -> Iterator[tuple[Any, Any, Callable[[], bytes]]]:
    """Yield a figure of this size in inches, its axes, and a function that returns the figure as bytes of a PNG file.
    Raises UserError without matplotlib."""
    require_matplotlib().use("Agg")
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
