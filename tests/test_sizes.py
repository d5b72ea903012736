"""Nothing grows beyond what one reads in a sitting: files, functions and classes of minidl/ outside of its kernels."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES, MOST_OF_A_FUNCTION, MOST_METHODS = 300, 100, 25
FILES = sorted((ROOT / "minidl").rglob("*.py"))
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
