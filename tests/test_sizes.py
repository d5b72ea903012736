"""Nothing grows beyond what one reads in a sitting: files, functions and classes of minidl/ outside of its kernels."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES, MOST_OF_A_FUNCTION, MOST_METHODS = 300, 100, 25
FILES = sorted((ROOT / "minidl").rglob("*.py"))
ROW = re.compile(r"^\| (?:`(\w+)`|(loose files|all)) \| ([\d,]+) \|$", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_large(source: str, *, kernels: bool = False) -> list[str]:
    """What of a source is larger than it may be. Kernels may have long functions: loops that are written out."""
    found = []
    lines = len(source.splitlines())
    if lines > MOST_LINES:
        found.append(f"{lines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function) and not kernels:
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > MOST_OF_A_FUNCTION:
                found.append(f"{node.name}: {node.end_lineno - node.lineno + 1} lines")
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(part, Function) for part in node.body)
            if methods > MOST_METHODS:
                found.append(f"{node.name}: {methods} methods")
    return found


def test_no_file_has_more_than_300_lines_no_function_100_and_no_class_25_methods():
    assert len(FILES) > 200
    large = {str(path.relative_to(ROOT)): found for path in FILES
             if (found := too_large(path.read_text(encoding="utf-8"), kernels="kernels" in path.parts))}
    assert large == {}


def test_what_is_too_large_is_seen():
    assert too_large("x = 1\n" * 301) == ["301 lines"]
    assert too_large("def f():\n" + "    x = 1\n" * 100) == ["f: 101 lines"]
    assert too_large("def f():\n" + "    x = 1\n" * 100, kernels=True) == []
    assert too_large("class C:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(26))) == ["C: 26 methods"]


def budgets() -> dict[str, int]:
    """Lines at most of each room, by the table in DESIGN.md, and of ``all`` together."""
    table = (ROOT / "DESIGN.md").read_text(encoding="utf-8").partition("## Sizes")[2]
    return {folder or other: int(lines.replace(",", "")) for folder, other, lines in ROW.findall(table)}


def rooms() -> Counter[str]:
    """Lines of the Python files of each folder of minidl/, and of the files beside these; models are a link."""
    found: Counter[str] = Counter()
    for path in FILES:
        parts = path.relative_to(ROOT / "minidl").parts
        found[parts[0] if len(parts) > 1 else "loose files"] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def test_a_room_may_not_exceed_its_budget():
    """Raise the budget in DESIGN.md where a room needs more, and say why in the commit's message."""
    known, found = budgets(), rooms()
    assert {*found, "all"} == known.keys()
    found["all"] = sum(found.values())
    assert {room: (lines, known[room]) for room, lines in found.items() if lines > known[room]} == {}
