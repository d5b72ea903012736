"""Every test that a page of evidence names as ``file::test`` exists, and every awkward program."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "evidence").glob("*.md"))
NAMED = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
PROGRAMS = ROOT / "tests" / "support"


def missing(text):
    """The tests named in a text that no file has."""
    return [f"{file}::{test}" for file, test in NAMED.findall(text)
            if not (ROOT / file).is_file() or not re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.M)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page):
    assert missing(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_result_that_a_page_names_exists(page):
    named = re.findall(r"`(bench/results/[\w./]+)`", page.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_a_name_that_no_test_has_is_found():
    assert missing("`tests/test_docs.py::test_of_nothing`, `tests/none.py::test_it`, "
                   "`tests/docs/test_evidence.py::missing`") == ["tests/test_docs.py::test_of_nothing",
                                                                 "tests/none.py::test_it"]


def test_every_awkward_program_that_the_page_names_exists():
    page = (ROOT / "docs" / "evidence" / "torch_musts.md").read_text("utf-8")
    code = "".join(file.read_text("utf-8") for file in PROGRAMS.glob("torch_awkward*.py"))
    named = [name for part in re.findall(r"awkward ((?:`\w+`(?:, )?)+)", page) for name in re.findall(r"`(\w+)`", part)]
    assert len(named) > 25 and [name for name in named if not re.search(rf"^def {name}\(", code, re.M)] == []
