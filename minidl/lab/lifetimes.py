"""Reads and writes logs of buffers' lifetimes: when each buffer was born, when it died and how large it was."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minidl.errors import UserError
from minidl.outside.reading import read_text
from minidl.outside.validation import MOST_WHOLE, shown, whole
from minidl.outside.writing import begins_with, write_whole

COLUMNS = ["id", "lower", "upper", "size"]
MOST_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One buffer: ``size`` bytes that are live from time ``lower`` up to, not including, ``upper``."""

    id: str
    lower: int
    upper: int
    size: int


def read_log(path: str) -> list[Lifetime]:
    """Return the lifetimes in a CSV file with the header ``id,lower,upper,size``; a last column ``offset`` is ignored.
    Raises UserError, naming file, line and value, for a file that is not of this kind."""
    lifetimes: dict[str, Lifetime] = {}
    try:
        rows = csv.reader(io.StringIO(read_text(path, most=MOST_FILE_BYTES), newline=""))
        header = [name.strip() for name in next(rows, [])]
        if header not in (COLUMNS, [*COLUMNS, "offset"]):
            raise UserError(f"{path}, line 1: the header is {shown(','.join(header))!r}, not {','.join(COLUMNS)!r}")
        for row in rows:
            if row:
                where = f"{path}, line {rows.line_num}"
                lifetime = _read_row(row, len(header), where)
                if lifetime.id in lifetimes:
                    raise UserError(f"{where}: the id {shown(lifetime.id)!r} appears twice")
                lifetimes[lifetime.id] = lifetime
    except csv.Error as error:
        raise UserError(f"{path} is no CSV text: {error}") from error
    if not lifetimes:
        raise UserError(f"{path} has no rows after its header")
    return list(lifetimes.values())


def _read_row(row: list[str], columns: int, where: str) -> Lifetime:
    if len(row) != columns:
        raise UserError(f"{where}: {len(row)} values instead of {columns}: {shown(','.join(row))!r}")
    numbers = []
    for name, text in zip(COLUMNS[1:], row[1:4], strict=True):
        try:
            numbers.append(whole(text, least=-MOST_WHOLE, wanted="a whole number"))
        except UserError as error:
            raise UserError(f"{where}: {name} {error}") from None
    lower, upper, size = numbers
    if upper <= lower:
        raise UserError(f"{where}: upper {upper} is not after lower {lower}")
    if size < 1:
        raise UserError(f"{where}: size is {size}, not at least 1")
    return Lifetime(row[0].strip(), lower, upper, size)


is_own = begins_with(",".join([*COLUMNS, "offset"]).encode())


def write_offsets(path: str, lifetimes: Sequence[Lifetime], offsets: Mapping[str, int], *, force: bool = False) -> None:
    """Write the lifetimes to a CSV file with one more column: the offset of each buffer in bytes.
    Raises UserError if that fails, or over a file that it did not write unless ``force``."""
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([*COLUMNS, "offset"])
    writer.writerows((e.id, e.lower, e.upper, e.size, offsets[e.id]) for e in lifetimes)
    write_whole(path, table.getvalue().encode(), is_own, force=force)


def events(lifetimes: Sequence[Lifetime]) -> Iterator[tuple[Lifetime, bool]]:
    """Yield the births (True) and deaths (False) of buffers in time order; of one time, the deaths first."""
    deaths = [(e.upper, False, i) for i, e in enumerate(lifetimes)]
    births = [(e.lower, True, i) for i, e in enumerate(lifetimes)]
    for _, birth, index in sorted(deaths + births):
        yield lifetimes[index], birth


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Return the largest number of bytes that are live at once: no placement strategy needs less memory."""
    live = most = 0
    for lifetime, birth in events(lifetimes):
        live += lifetime.size if birth else -lifetime.size
        most = max(most, live)
    return most
