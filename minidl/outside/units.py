"""Sizes in bytes as text: parsing and formatting."""

import re
from decimal import Decimal

from minidl.errors import UserError
from minidl.outside.validation import MOST_WHOLE, shown

UNITS: dict[str, int] = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}
UNLIMITED = 1 << 50  # bytes: more than any step needs
MOST_SHARE = 1e4  # of the unmanaged peak, as a budget
_FACTORS = {unit.lower(): factor for unit, factor in UNITS.items()}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_MOST_CHARACTERS = 400


def parse_bytes(text: str) -> int:
    """Return the bytes in ``"16GiB"``, ``"512 MB"`` or ``"1000"``; fractions of a byte are cut off.

    Units may be in any case: kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024; no unit means bytes.
    Raises UserError for other text, for the ambiguous ``16G``, and for more than 2^53 bytes.
    """
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _MOST_CHARACTERS else None
    number, unit = match.groups() if match else ("", "?")
    factor = _FACTORS.get(unit.lower() or "b")
    if factor is None:
        near = [number + known for known in UNITS if known.lower() in (f"{unit}b".lower(), f"{unit}ib".lower())]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"{shown(text)!r} is not a size in bytes: write it like 16GiB, 512MB or 1000{hint}")
    nbytes = Decimal(number) * factor
    if nbytes > MOST_WHOLE:
        raise UserError(f"{shown(text)} is more than the largest size, {format_bytes(MOST_WHOLE)}")
    return int(nbytes)


def format_bytes(nbytes: float) -> str:
    """Return a size as text such as ``"15.3 GiB"``: one decimal, in the largest binary unit that gives at least 1.
    Sizes below 1 KiB are whole bytes."""
    size, unit = float(abs(nbytes)), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # Compare the rounded value, so that 1.0 MiB is not shown as 1024.0 KiB.
        if round(size, 0 if unit == "B" else 1) < 1024:
            break
        size, unit = size / 1024, larger
    sign = "-" if nbytes < 0 else ""
    return f"{sign}{size:.0f} B" if unit == "B" else f"{sign}{size:.1f} {unit}"


def flag_bytes(nbytes: int) -> str:
    """Return a size as text such as ``"15.31GiB"``, which ``parse_bytes`` reads, rounded up by less than 1/300."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if nbytes >= 3 * UNITS[unit]:
            hundredths = -(-100 * nbytes // UNITS[unit])
            return f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".") + unit
    return str(nbytes)
