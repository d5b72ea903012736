"""Tables of the rows of cells (``CellResult``): as CSV, as Parquet (extra ``parquet``), and as text for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from minidl.cli.command import note_new_name
from minidl.errors import UserError
from minidl.lab.row import COLUMNS, FORMER_COLUMNS, LATER_COLUMNS, TEXTS
from minidl.outside import tables
from minidl.outside.reading import read_text
from minidl.outside.units import format_bytes
from minidl.outside.writing import begins_with, open_whole, write_whole
from minidl.placements import DEFAULT

MOST_FILE_BYTES = 1 << 30
Values = Mapping[str, object]
is_own = begins_with(",".join(COLUMNS[:4]).encode())
_is_parquet = begins_with(b"PAR1")
HEADINGS = ("trace", "policy", "budget", "share", "settled", "speed", "bound", "stall", "recompute", "slid", "slower",
            "out", "in", "planning", "against", "status")
_WHOLE = ("budget_bytes", "out_bytes", "in_bytes", "peak_bytes", "host_peak_bytes", "steps", "ranks")


def to_csv(rows: Iterable[Values]) -> str:
    """Return rows as the text of a CSV file with a header; a value None becomes an empty field."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def read_csv(path: str) -> list[dict[str, object]]:
    """Return the rows in a CSV file that ``to_csv`` made. Raises UserError, naming file and line, for another file."""
    rows = csv.DictReader(io.StringIO(read_text(path, most=MOST_FILE_BYTES), newline=""))
    if rows.fieldnames is not None:
        for name in FORMER_COLUMNS.keys() & set(rows.fieldnames):
            note_new_name(f"{path}: column {name}", FORMER_COLUMNS[name])
        rows.fieldnames = [FORMER_COLUMNS.get(name, name) for name in rows.fieldnames]
    given = rows.fieldnames or []
    if list(given) != [name for name in COLUMNS if name in given or name not in LATER_COLUMNS]:
        raise UserError(f"{path}, line 1: not the columns of a table of the laboratory")
    found = []
    try:
        for row in rows:
            known = {name: _value(name, text) for name, text in row.items()}
            found.append({name: known.get(name, _BEFORE.get(name)) for name in COLUMNS})
    except (ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}") from None
    return found


_BEFORE = {"placement": DEFAULT, "ranks": 1}  # of rows in tables that do not say it


def _value(name: str, text: str) -> object:
    if name in TEXTS:
        return text
    return None if text == "" else int(text) if name in _WHOLE else float(text)


def write(path: str, rows: Sequence[Values], *, force: bool = False) -> None:
    """Write rows to a file: as Parquet if its name ends in ``.parquet``, else as CSV.
    Raises UserError if that fails, without pyarrow for Parquet, or over another file unless ``force``."""
    if not path.endswith(".parquet"):
        write_whole(path, to_csv(rows).encode(), is_own, force=force)
        return
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f'{path}: Parquet takes pyarrow (pip install "minidl[parquet]"); .csv takes nothing') from None
    kinds = {name: pyarrow.string() if name in TEXTS else pyarrow.int64() if name in _WHOLE else pyarrow.float64()
             for name in COLUMNS}
    table = pyarrow.Table.from_pylist([dict(row) for row in rows], schema=pyarrow.schema(list(kinds.items())))
    with open_whole(path, _is_parquet, force=force) as file:
        pyarrow.parquet.write_table(table, file)


def shown(rows: Sequence[Values], *, reference: Mapping[tuple[object, ...], float] | None = None) -> list[str]:
    """Return a heading and one line of text for each row, without the columns of which no row says anything.
    reference: ``key`` of a row -> seconds to compare the row with."""
    words = [_words(row, reference or {}) for row in rows]
    told = [n for n in range(len(HEADINGS)) if any(row[n] for row in words)]
    left = [at for at, n in enumerate(told) if HEADINGS[n] in TEXTS]
    return tables.table([[row[n] for n in told] for row in (HEADINGS, *words)], left=left)


def _words(row: Values, reference: Mapping[tuple[object, ...], float]) -> tuple[str, ...]:
    start = (trace_of(row), policy_of(row), format_bytes(_number(row["budget_bytes"])),
             f"{_number(row['budget_share']):.0%}")
    if row["settled_s"] is None:
        return *start, *[""] * (len(HEADINGS) - len(start) - 1), str(row["status"])
    settled, unmanaged, known = _number(row["settled_s"]), _number(row["unmanaged_s"]), reference.get(key(row))
    limit = "" if row["bound_s"] is None else f"{unmanaged / _number(row['bound_s']):.1%}"
    parts = [_seconds(row[name]) for name in ("stall_seconds", "recompute_seconds", "slid_seconds", "slower_seconds")]
    return (*start, f"{settled:.4g}s", f"{unmanaged / settled:.1%}", limit, *parts,
            *(format_bytes(_number(row[name])) for name in ("out_bytes", "in_bytes")),
            f"{_number(row['planning_s']):.2f}s", "" if known is None else f"{settled / known - 1:+.2%}", "")


def trace_of(row: Values) -> str:
    """Return the trace of a row, and the number of ranks if there are several."""
    return str(row["trace"]) if row["ranks"] == 1 else f"{row['trace']} x{row['ranks']}"


def policy_of(row: Values) -> str:
    """Return the policy of a row, and its placement unless that is the default."""
    placement = row["placement"]
    return str(row["policy"]) if placement == DEFAULT else f"{row['policy']}, {placement}"


def key(row: Values) -> tuple[object, ...]:
    """Return the trace, device, policy, budget, placement and ranks of a row, which identify the row."""
    return row["trace"], row["device"], row["policy"], row["budget_bytes"], row["placement"], row["ranks"]


def settled(rows: Iterable[Values]) -> dict[tuple[object, ...], float]:
    """Return a dict from the ``key`` of each row to its settled seconds, for rows that have them."""
    return {key(row): _number(row["settled_s"]) for row in rows if row["settled_s"] is not None}


def _seconds(seconds: object) -> str:
    return "" if seconds is None else f"{_number(seconds):.3g}s"


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
