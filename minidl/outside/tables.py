"""Tables of text for people. The library ``tabulate`` draws them: the same text on a terminal and in a pipe."""

from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """Return rows, mostly with a heading first, as lines of columns two spaces apart, each as wide as its widest word.

    A row may be shorter than others. left: the columns (0 is the first) that are aligned to the left; the others are
    aligned to the right.
    """
    from tabulate import tabulate  # takes 40 ms, and few commands print a table

    count = max(map(len, rows))
    sides = ["left" if column in left else "right" for column in range(count)]
    text: str = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=sides)
    return [line.rstrip() for line in text.splitlines()]
