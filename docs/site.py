"""The site's pages beside docs/: README, DESIGN and others are shown where they lie, and links between them hold.

A hook of mkdocs. No page is copied: what stands outside of docs/ becomes a page under a name of PAGES, and a link is
looked up by the file that it names. A link to a file that is no page (a source, a folder) becomes that file's name, or
leads to the repository. The repository's address is one setting: ``Repository`` of ``[project.urls]`` in
pyproject.toml. Without it the site has no links to files and none to edit a page.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "DESIGN.md": "design.md", "CONTRIBUTING.md": "contributing.md",
         "CHANGELOG.md": "changelog.md", "course/README.md": "course.md",
         **{f"bench/results/{path.name}": f"results/{path.name}" for path in (ROOT / "bench/results").glob("*.md")}}
BRANCH = "main"
PROGRAMS = ("pip", "python", "pytest", "ruff", "minidl", "marimo", "mkdocs", "uv", "hf", "docker")
COMMAND = re.compile(rf'<div class="highlight">(?=<pre><span></span><code>(?:{"|".join(PROGRAMS)}) )')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Take the repository's address from pyproject.toml, unless the configuration has one."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    config.repo_url = (config.repo_url or urls.get("Repository", "")).removesuffix("/") or None
    config.edit_uri = f"edit/{BRANCH}/docs/" if config.repo_url else None
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie outside of docs/; its own programs are none."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for file in [file for file in files if file.src_uri.endswith(".py")]:
        files.remove(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Let each link lead to the page of the file that it names."""
    here = ROOT / _source(page)

    def led(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups(default="")
        if not target or "://" in target:
            return match[0]
        path = (here.parent / target).resolve()
        inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        found = PAGES.get(inside, inside.removeprefix("docs/"))
        if files.get_file_from_path(found) is None:
            if config.repo_url and path.exists() and path.is_relative_to(ROOT):
                return f"{picture}[{text}]({config.repo_url}/blob/{BRANCH}/{inside}{anchor})"
            return f"{text} (`{inside}`)"
        up = "../" * page.file.src_uri.count("/")
        return f"{picture}[{text}]({up}{found}{anchor})"

    return LINK.sub(led, markdown)


def on_pre_page(page: Any, *, config: Any, files: Files) -> Any:
    """Let the link to edit a page lead to the file that the page is made from."""
    page.edit_url = f"{config.repo_url}/edit/{BRANCH}/{_source(page)}" if config.repo_url else None
    return page


def on_page_content(html: str, **_: Any) -> str:
    """Mark blocks of commands, whose lines wrap on a narrow page; output keeps its columns."""
    return COMMAND.sub('<div class="highlight command">', html)


def _source(page: Any) -> str:
    """The file that a page is made from, in the repository."""
    sources = {page: source for source, page in PAGES.items()}
    return sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
