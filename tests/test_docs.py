"""What the documents name is there: functions and tests by path and name, files, links; and DESIGN.md stays short.

A document names code as `path/to/file.py:Class.name`. The name is looked up in the source, which is not imported.
"""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.support.walk import typical

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md"),
                    *(ROOT / "docs" / "evidence").glob("*.md"), ROOT / "course" / "README.md"])
NAME = re.compile(r"`([\w./-]+\.py):([\w.]+)`")
FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)`")
TEST = re.compile(r"`(test_\w+)`")
LINK = re.compile(r"\]\(([^)#]+)(#[^)]*)?\)")
MOST_WORDS = 2750


@cache
def names(path: Path) -> frozenset[str]:
    """All that a source defines, by dotted name: functions, classes, and what is assigned to modules, classes, self."""
    found: set[str] = set()

    def targets(node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Assign):
            return [part for target in node.targets
                    for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
                found.update(f"{prefix}{node.name}.{target.attr}" for inner in ast.walk(node)
                             for target in targets(inner) if isinstance(target, ast.Attribute)
                             and isinstance(target.value, ast.Name) and target.value.id == "self")
            elif isinstance(node, ast.If | ast.Try):
                visit([*node.body, *node.orelse], prefix)
            found.update(prefix + target.id for target in targets(node) if isinstance(target, ast.Name))

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def missing(text: str) -> list[str]:
    """What a document names as `path:name` and is not there."""
    wrong = []
    for path, name in NAME.findall(text):
        file = ROOT / path
        if not file.is_file() or name not in names(file):
            wrong.append(f"{path}:{name}")
    return wrong


@cache
def all_files() -> tuple[str, ...]:
    """The paths of all sources, from the root."""
    return tuple(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@cache
def all_tests() -> frozenset[str]:
    """The names of all tests, and of the files that hold them."""
    files = list((ROOT / "tests").rglob("*.py"))
    return frozenset({file.stem for file in files} | {name for file in files for name in names(file)})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_name_in_a_document_exists(path):
    text = path.read_text(encoding="utf-8")
    assert missing(text) == []
    assert [name for name in TEST.findall(text) if name not in all_tests()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_and_file_in_a_document_exists(path):
    text = path.read_text(encoding="utf-8")
    links = [target for target, _ in LINK.findall(text) if "://" not in target]
    assert [target for target in links if not (path.parent / target).exists()] == []
    # Sources are named from the root, or by the end of their path where that is plain.
    lost = [name for name in FILE.findall(text) if not any(f"/{known}".endswith(f"/{name}") for known in all_files())]
    assert lost == []


def test_the_check_of_names_sees_each_kind_of_name_and_each_kind_of_mistake():
    there = ("minidl/memory/storage.py:Storage.set_status", "minidl/memory/storage.py:LEGAL",
             "minidl/plan/plan.py:Plan", "minidl/memory/storage.py:Storage.host", "minidl/plan/plan.py:Plan.evictions",
             "minidl/memory/storage.py:OUT", "minidl/tensor.py:TensorInfo.inputs",
             "tests/test_docs.py:test_design_is_short_enough_to_be_read")
    assert missing(" ".join(f"`{name}`" for name in there)) == []
    gone = ("minidl/memory/storage.py:Storage.became_so", "minidl/memory/storage.py:set_status",
            "minidl/nowhere.py:Storage", "minidl/plan/plan.py:Storage", "tests/test_docs.py:test_that_nobody_wrote")
    assert missing(" ".join(f"`{name}`" for name in gone)) == list(gone)


def test_design_is_short_enough_to_be_read():
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8").partition("## Sizes")[0]  # then there is a table
    assert len(text.split()) < MOST_WORDS


def test_each_mechanism_of_the_paper_has_its_code_and_its_test():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    section = text[text.index("## Mechanisms"):text.index("## Figures")]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 40
    for row in rows:
        _, what, code, test, deviations = row.strip("|").split("|")
        assert NAME.findall(code) and all(":test_" in f":{name}" for _, name in NAME.findall(test)), what
        for number in re.findall(r"\d+", deviations):
            assert re.search(rf"^{number}\. \*\*", text, re.MULTILINE), f"{what}: there is no deviation {number}"
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def project() -> dict[str, Any]:
    """What pyproject.toml says."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def test_the_installation_page_explains_every_extra_and_no_other():
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = text[text.index("## Extras"):]
    explained = {name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`([\w-]+)`",
                 line.split("|")[1])}
    assert explained == project()["project"]["optional-dependencies"].keys()


def test_the_package_is_installed_with_its_types_and_a_licence():
    settings = project()
    data = settings["tool"]["setuptools"]["package-data"]
    assert (ROOT / "minidl" / "py.typed").is_file() and "py.typed" in data["minidl"]
    assert settings["project"]["license"] == "MIT"
    assert all((ROOT / name).read_text(encoding="utf-8").startswith("MIT License")
               for name in settings["project"]["license-files"])


def sittings() -> list[tuple[list[str], int]]:
    """The rows of the table in docs/reading.md: the files of each sitting, and the lines that it says they have."""
    rows = [line.split("|") for line in (ROOT / "docs" / "reading.md").read_text(encoding="utf-8").splitlines()
            if re.match(r"\| \d ", line)]
    return [(FILE.findall(row[3]), int(row[4].replace(",", ""))) for row in rows]


def test_the_sittings_of_the_reading_guide_are_as_long_as_it_says():
    assert len(sittings()) == 6
    for files, said in sittings():
        lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
        assert len(files) >= 3 and abs(lines - said) <= 0.03 * lines, f"{files}: {lines} lines, and not {said}"
    assert sittings()[0][1] <= 1200


def test_an_eviction_enters_few_files_and_few_lines_and_the_policy_is_asked_early():
    walk = typical("out")
    assert len(walk.files) <= 15 and walk.lines <= 2500, f"{walk.lines} lines in {walk.files}"
    assert walk.depth("Passive.victims") <= 7
    assert {"executor.py", "memory/room.py", "policies/passive.py"} <= set(walk.files)


def test_what_has_broken_its_names_between_minor_versions_is_bounded_in_every_cuda_extra():
    """Kernels are loaded by ``cuda.core``, and cuDNN's frontend is called below its Python."""
    extras = project()["project"]["optional-dependencies"]
    for extra in ("cuda12", "cuda13"):
        for name in ("cuda-core", "nvidia-cudnn-frontend"):
            (requirement,) = [r for r in extras[extra] if r.startswith(name)]
            assert re.fullmatch(name + r">=(\d+)\.\d+,<\1\.\d+", requirement), f"{extra}: {requirement}"
