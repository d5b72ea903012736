"""Load programs written for PyTorch, unchanged or with imports of PyTorch replaced by imports of minidl."""

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "programs"


def main_of(name, library):
    """Return the ``main`` of a program, with one library or the other."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    if library == "minidl":
        source = re.sub(r"^import torch$", "import minidl as torch", source, flags=re.M)
        source = re.sub(r"^(import|from) torch\b", r"\1 minidl", source, flags=re.M)
    made = {"__name__": name}
    exec(compile(source, f"{name} ({library})", "exec"), made)
    return made["main"]
