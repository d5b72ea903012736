"""The lessons as HTML pages, with their pictures and nothing solved: python course/export.py [--out FOLDER]

A page has all that the lesson has shown; the browser fetches marimo's viewer from the network.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parent


def main() -> int:
    """Export all lessons, or those that are named; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lessons", nargs="*", metavar="NUMBER", help="like 1 or 5 (default: all)")
    parser.add_argument("--out", type=Path, default=Path("build/course"), help="(default: build/course)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for lesson in sorted(COURSE.glob("lesson_*.py"), key=lambda path: int(path.stem.split("_")[1])):
        if options.lessons and lesson.stem.split("_")[1] not in options.lessons:
            continue
        page = options.out.absolute() / f"{lesson.stem}.html"
        command = [sys.executable, "-m", "marimo", "-q", "export", "html", str(lesson), "-o", str(page), "-f"]
        ended = subprocess.run(command, cwd=COURSE, check=False)
        if ended.returncode:
            return ended.returncode
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
