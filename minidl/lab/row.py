"""The row of a cell: plain data with the same columns in every case, also for a cell that has failed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from minidl.placements import DEFAULT


@dataclass(frozen=True)
class CellResult:
    """The result of a cell, as one row of a table; None in a field: unknown. ``status``: "ok", or why the cell failed.
    Seconds are those of one iteration on the modelled clock, except for ``planning_s`` and ``cpu_s``, which the real
    computer took; bytes are those of the last iteration, except for the two peaks.

    unmanaged_s   seconds of an iteration with unlimited memory, without noise
    first_s       of the first iteration; settled_s: of the last one, after nothing changes any more or after ``steps``
    predicted_s   predicted by the plan that the last iteration followed
    slid_seconds  of copies within device memory, which make one hole of several; slower_seconds: that calls took longer
                  than with their fastest algorithm, since memory had no room for its workspace
    bound_s       a lower bound: without noise no plan is faster; None: not asked for
    cpu_s         processor seconds, with preparation that later cells share; not compared when rows are compared
    """

    trace: str
    device: str
    policy: str
    budget_bytes: int
    budget_share: float
    unmanaged_s: float
    first_s: float | None = None
    settled_s: float | None = None
    predicted_s: float | None = None
    stall_seconds: float | None = None
    recompute_seconds: float | None = None
    slid_seconds: float | None = None
    slower_seconds: float | None = None
    out_bytes: int | None = None
    in_bytes: int | None = None
    peak_bytes: int | None = None
    host_peak_bytes: int | None = None
    planning_s: float | None = None
    bound_s: float | None = None
    steps: int = 0
    placement: str = DEFAULT
    ranks: int = 1
    status: str = "ok"
    cpu_s: float | None = field(default=None, compare=False)

    def values(self) -> dict[str, object]:
        """Return column name -> value, in the order of the table's columns."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "CellResult":
        """Return the row with these values. Raises TypeError for an unknown column, or a text in place of a number."""
        for name, value in values.items():
            if not isinstance(value, str if name in TEXTS else int | float | None):
                raise TypeError(f"{name} is {value!r}")
        return cls(**values)


TEXTS = ("trace", "device", "policy", "placement", "status")  # the columns that are no numbers
FORMER_COLUMNS = {"stall_s": "stall_seconds", "replay_s": "recompute_seconds"}  # of tables made before
LATER_COLUMNS = ("slid_seconds", "slower_seconds", "placement", "ranks")  # which tables made before do not have
COLUMNS = tuple(field.name for field in fields(CellResult))
