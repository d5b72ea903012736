"""The cells of a grid, and the folder in which their traces and rows are kept.

``traces/`` has the traces that the cells run. ``cells/`` has one file for the row of each cell that has ended, under
a name that follows from the cell's settings and from the bytes of the user's files: a trace, a device, the module of a
network, a policy or a placement. What these modules import does not count.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from minidl.errors import UserError
from minidl.lab.cell import Machine
from minidl.lab.row import FORMER_COLUMNS, CellResult
from minidl.lab.sources import file_of
from minidl.outside.reading import is_file, read_bytes, read_json
from minidl.outside.writing import make_folder, replace_file
from minidl.placements import REGISTRY as PLACEMENTS
from minidl.plan.document import MOST_BYTES
from minidl.policies import REGISTRY as POLICIES

MOST_CELL_BYTES = 1 << 20


@dataclass(frozen=True)
class Cell:
    """The settings that determine one row of a grid.
    budget: bytes, a share of the unmanaged peak, or None for all device memory. steps, instants: as in ``cell.run``.
    fused: False to run minidl's networks without fused operations. digest: the hash of the user's files from which the
    trace follows; code_digest: of those of the policy and the placement; "" without such files. file: a file
    that holds the trace, if there is one; it does not change the row."""

    source: str
    machine: Machine
    policy: str
    budget: int | float | None
    steps: int | None = None
    instants: int = 0
    fused: bool = True
    digest: str = ""
    code_digest: str = ""
    file: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """A name for the cell, made from its settings: equal cells have equal names, on every machine."""
        said = asdict(self)
        del said["file"]
        for name in ("placement", "spill_bytes", "ranks", "recomputes"):  # which cells of before do not have
            if said["machine"][name] == getattr(Machine, name):
                del said["machine"][name]
        for name in ("digest", "code_digest"):
            if not said[name]:
                del said[name]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:20]

    def failed(self, status: str) -> CellResult:
        """Return the row of a cell whose trace could not be made or run, without numbers. status: the reason."""
        nbytes, part = (self.budget, 0.0) if isinstance(self.budget, int) else (0, self.budget or 0.0)
        return CellResult(self.source, self.machine.profile.removeprefix("sim:"), self.policy, nbytes, part, 0.0,
                          placement=self.machine.placement, ranks=self.machine.ranks, status=status)


def cells(sources: Iterable[str], machines: Iterable[Machine], budgets: Sequence[int | float | None],
          policies: Sequence[str], **options: Any) -> list[Cell]:
    """Return a cell for each combination, the policies varying fastest. Raises UserError for an unreadable file.
    options: further fields of ``Cell``, the same for all."""
    machines = list(machines)
    digest = cache(digest_of)  # each file is read once, though it belongs to many cells
    code = {policy: POLICIES.file(policy) for policy in policies}
    return [Cell(source, machine, policy, budget, digest=made_from, code_digest=digest(code[policy], place), **options)
            for source in sources for machine in machines
            for made_from in (digest(file_of(source), machine.file),)
            for place in (PLACEMENTS.file(machine.placement),)
            for budget in budgets for policy in policies]


def digest_of(*files: Path | None) -> str:
    """Return the hash of the files' bytes; "" if all are None. Raises UserError if one cannot be read."""
    found = [read_bytes(file, most=MOST_BYTES) for file in files if file is not None]
    return hashlib.sha256(b"".join(found)).hexdigest()[:20] if found else ""


class CellFolder:
    """The folder with the rows of cells that have ended, and with the cells' traces."""

    def __init__(self, folder: str) -> None:
        """Create the folder if it is missing. Raises UserError if it cannot be created."""
        self.folder = Path(folder)
        try:
            for part in ("cells", "traces"):
                make_folder(self.folder / part)
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror}") from None

    def row(self, cell: Cell) -> CellResult | None:
        """Return the saved row of a cell; None if there is none, or its file is damaged."""
        path = self.folder / "cells" / f"{cell.name}.json"
        if not is_file(path):
            return None
        try:
            found = read_json(path, most=MOST_CELL_BYTES)
            return CellResult.of({FORMER_COLUMNS.get(name, name): value for name, value in found.items()})
        except (UserError, TypeError, AttributeError):
            return None

    def keep(self, cell: Cell, row: CellResult) -> None:
        """Save the row of a cell in a file, atomically. Raises OSError if that fails."""
        replace_file(self.folder / "cells" / f"{cell.name}.json", (json.dumps(asdict(row)) + "\n").encode())

    def trace_file(self, cell: Cell) -> Path:
        """Return the path of the file for the trace of a cell, which may not exist yet."""
        made = f".{cell.machine.profile.removeprefix('sim:').replace('/', '_')}{'' if cell.fused else '.separate'}"
        made += f".{cell.digest}" if cell.digest else ""
        made += f".ranks{cell.machine.ranks}" if cell.machine.ranks > 1 else ""
        name = "".join(c if c.isalnum() or c in "-_.:" else "_" for c in cell.source).replace(":", "-")
        return self.folder / "traces" / f"{name}{made}.json"


def known(wanted: Iterable[Cell], folder: str) -> list[CellResult]:
    """Return the rows that a folder has for the cells in ``wanted``, in the order of ``wanted``.
    Raises UserError if there is no such folder."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder}: no such folder")
    kept = CellFolder(folder)
    return [row for cell in wanted if (row := kept.row(cell)) is not None]
