"""The site as mkdocs builds it, strictly: what a reader looks for is there, nothing is cut, and phones show it."""

import importlib.util
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from looked_at import looked_at, needed

ROOT = Path(__file__).resolve().parents[2]
BUILDS = """import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
config = load_config("mkdocs.yml", site_dir=sys.argv[1], repo_url=sys.argv[2], strict=True)
config.plugins.on_startup(command="build", dirty=False)
build(config)
"""
ADDRESS = "https://example.org/team/minidl"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site of a project with a repository. Skips without the extra docs."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs is not installed: the extra docs has it")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([sys.executable, "-c", BUILDS, str(folder), f"{ADDRESS}/"], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def text_of(page):
    """A page's text without its tags."""
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_built_site_has_what_readers_look_for(site):
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    # The search weighs a title a thousandfold.
    assert "guides/train/#gradient-checkpointing" in [
        each["location"] for each in index if "gradient checkpointing" in each["title"].lower()]
    runtime = text_of(site / "api/runtime/index.html")
    assert re.search(r"Runtime\(\s*device=\"cpu\",\s*\*,\s*memory_budget=None,", runtime)
    assert '"cpu:FILE.json"' in runtime and '"sim:PROFILE"' in runtime
    for page, source in (("index.html", "README.md"), ("design/index.html", "DESIGN.md"),
                         ("guides/fit/index.html", "docs/guides/fit.md")):
        html = (site / page).read_text(encoding="utf-8")
        assert f'href="{ADDRESS}/edit/main/{source}"' in html and f'href="{ADDRESS}"' in html
    assert f'href="{ADDRESS}/blob/main/LICENSE"' in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_pages_of_the_site_fit_a_phone_and_their_comments_are_not_cut(site):
    needed()
    for page in ("index", "guides/fit/index", "course/index", "api/runtime/index"):
        told = looked_at(site / f"{page}.html", width=390, dark=True)
        assert told["scrolls"] <= told["width"] == 390, (page, told)
        assert told["cut"] == [], page
        assert (told["commands"] > 0) == (page != "api/runtime/index"), page


def test_the_repository_s_address_is_one_setting(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "docs/site.py")
    hook = importlib.util.module_from_spec(spec)
    pytest.importorskip("mkdocs")
    spec.loader.exec_module(hook)
    monkeypatch.setattr(hook, "ROOT", tmp_path)
    project = '[project]\nname = "minidl"\n'
    for urls, expected in (("", (None, None)), (f'[project.urls]\nRepository = "{ADDRESS}/"\n',
                                                (ADDRESS, "edit/main/docs/"))):
        (tmp_path / "pyproject.toml").write_text(project + urls)
        config = hook.on_config(SimpleNamespace(repo_url=None, edit_uri=None))
        assert (config.repo_url, config.edit_uri) == expected
