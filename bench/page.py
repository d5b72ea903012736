"""The picture of the memory page in README: ResNet-50 at 1,014 under `auto`, as a browser shows it.

    python -m bench.page [--out docs/page.png]

Needs Chromium, or Chrome, and Pillow (extra ``data``), which leaves the picture 256 colours: README is to load quickly.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image

from bench.support import browser
from minidl.__main__ import main as minidl

WIDTH, HEIGHT, ABOVE = 1280, 1000, 120  # a part of a window's height is the browser's own, though it is not seen
CHOSEN = "#call=200&tensor=55"


def shrink(picture: Path) -> None:
    """Rewrite a PNG: cut it to the part that README shows, and reduce it to 256 colours."""
    with Image.open(picture) as image:
        few = image.crop((0, 0, WIDTH, HEIGHT)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


def main() -> int:
    """Write the picture; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="docs/page.png")
    out = Path(parser.parse_args().out).absolute()
    chosen = browser.found()
    if chosen is None:
        print(f"none of {', '.join(browser.NAMES)} is installed", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        code = minidl(["view", "--model", "resnet50", "--batch", "1014", "--steps", "8", "-o", str(page)])
        if code == 0:
            browser.opened(chosen, f"file://{page}{CHOSEN}", f"--screenshot={out}", width=WIDTH,
                           height=HEIGHT + ABOVE)
            shrink(out)
        return code


if __name__ == "__main__":
    sys.exit(main())
