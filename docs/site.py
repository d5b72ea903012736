"""The site's pages beside docs/: README, DESIGN and others are shown where they lie, and links between them hold.

A hook of mkdocs. No page is copied: what stands outside of docs/ becomes a page under a name of PAGES, and a link is
looked up by the file that it names. A link to a file that is no page (a source, a folder) becomes that file's name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "DESIGN.md": "design.md", "CONTRIBUTING.md": "contributing.md",
         "CHANGELOG.md": "changelog.md", "course/README.md": "course.md",
         **{f"bench/results/{path.name}": f"results/{path.name}" for path in (ROOT / "bench/results").glob("*.md")}}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie outside of docs/; its own programs are none."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for file in [file for file in files if file.src_uri.endswith(".py")]:
        files.remove(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Let each link lead to the page of the file that it names."""
    sources = {page: source for source, page in PAGES.items()}
    here = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def led(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups(default="")
        if not target or "://" in target:
            return match[0]
        path = (here.parent / target).resolve()
        inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        found = PAGES.get(inside, inside.removeprefix("docs/"))
        if files.get_file_from_path(found) is None:
            return f"{text} (`{inside}`)"
        up = "../" * page.file.src_uri.count("/")
        return f"{picture}[{text}]({up}{found}{anchor})"

    return LINK.sub(led, markdown)
