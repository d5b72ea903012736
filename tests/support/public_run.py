"""Runs the programs of one file in this process: ``public_run.py FILE [shim]`` prints what each returns, as JSON.

With ``shim`` the line ``import torch`` is ``import minidl.as_torch as torch``, and nothing else of the file differs.
"""

import json
import re
import sys
from pathlib import Path


def results(path: Path, shim: bool) -> dict[str, list[float] | str]:
    """Run each program of a file; return its numbers, or its error as text, by the program's name."""
    source = path.read_text(encoding="utf-8")
    if shim:
        source = re.sub(r"^import torch$", "import minidl.as_torch as torch", source, count=1, flags=re.M)
    made: dict = {"__name__": path.stem}
    exec(compile(source, str(path), "exec"), made)
    found: dict[str, list[float] | str] = {}
    for program in made["PROGRAMS"]:
        try:
            found[program.__name__] = [float(value) for value in program()]
        except Exception as error:
            found[program.__name__] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print("RESULTS", json.dumps(results(Path(sys.argv[1]), "shim" in sys.argv[2:])))
