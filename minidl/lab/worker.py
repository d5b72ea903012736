"""The process of one cell: what it is to do comes on standard input, the row goes to standard output."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from minidl.errors import UserError
from minidl.lab import cell as cells
from minidl.lab.cell import Machine
from minidl.lab.grid import Cell
from minidl.lab.sources import load, read_file
from minidl.reading import is_file, parse_json


def limit_memory(nbytes: int | None) -> None:
    """This process gets no more than so many bytes, where the system has such a limit."""
    if nbytes is not None:
        with suppress(ImportError, ValueError):
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def cell_of(said: dict[str, Any]) -> Cell:
    """The cell that was described."""
    machine = dict(said["machine"])
    machine["link"] = None if machine["link"] is None else tuple(machine["link"])
    return Cell(**{**said, "machine": Machine(**machine)})


def main() -> None:
    """One cell."""
    asked = parse_json(sys.stdin.read())
    limit_memory(asked["memory_bytes"])
    cell = cell_of(asked["cell"])
    try:
        trace = (read_file(cell.file) if cell.file and is_file(cell.file) else
                 load(cell.source, cell.machine.profile, fused=cell.fused))
        budget = cell.machine.described().memory_bytes if cell.budget is None else cell.budget
        row = cells.run(cell.source, trace, cell.machine, cell.policy, budget, steps=cell.steps,
                        instants=cell.instants)
    except UserError as error:
        row = cell.failed(f"cannot: {error}")
    print(json.dumps(row.values()))


if __name__ == "__main__":
    main()
