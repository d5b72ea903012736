"""A release: one version in all files that name it, and extras that exist wherever an installation names them."""

import re
import tomllib
from pathlib import Path

import minidl

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_all_files_name_the_same_version_and_date():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    cited = re.search(r"^version: (\S+)\ndate-released: (\S+)$", CITATION, re.MULTILINE)
    assert newest.groups() == cited.groups()
    assert newest[1] == PROJECT["version"] == minidl.__version__


def test_extras_that_an_image_or_a_page_installs_exist():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "docs/install.md")]
    named = {extra for text in texts for found in re.findall(r"EXTRAS=([\w,-]+)|-e \"\.\[([\w,-]+)\]\"", text)
             for extra in "".join(found).split(",")}
    assert {"cuda13", "data", "viz"} <= named <= set(PROJECT["optional-dependencies"])
