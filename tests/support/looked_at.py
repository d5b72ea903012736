"""Pages in a browser, light and dark: their width, and the contrast of their text, as the browser has them."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.support import browser

# For each element with text of its own: the contrast of its colour with the nearest background, by WCAG 2.1.
MEASURES = """<script>
const light = text => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const opaque = text => !/rgba\\(.*, 0(\\.\\d+)?\\)/.test(text) && text !== "transparent";
function behind(element) {
  for (let each = element; each; each = each.parentElement) {
    const colour = getComputedStyle(each).backgroundColor;
    if (opaque(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}
function contrasts() {
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement;
  parent.postMessage({width: innerWidth, scrolls: root.scrollWidth, texts: contrasts().length,
    dark: light(getComputedStyle(document.body).backgroundColor) < 0.1, worst: contrasts()[0],
    commands: document.querySelectorAll(".command code").length,
    cut: [...document.querySelectorAll(".command code")].filter(each => each.scrollWidth > each.clientWidth)
      .map(each => each.textContent)}, "*");
}, 300));
</script>"""

# A frame is as narrow as it is asked to be; a window is at least 500 pixels wide.
FRAME = """<!DOCTYPE html><body style="margin: 0"><iframe style="border: 0; width: {width}px; height: 900px"
src="{page}"></iframe><script>addEventListener("message", event =>
document.documentElement.dataset.told = JSON.stringify(event.data));</script></body>"""


@cache
def needed() -> str:
    """The browser's path. Skips the test if there is none."""
    found = browser.found()
    if found is None:
        pytest.skip("no chromium or chrome to look at pages with")
    return found


def looked_at(page: Path, *, width: int, dark: bool) -> dict[str, Any]:
    """Return what the browser measures on a page, of which a copy with MEASURES is written beside it.

    width: its own width; scrolls: the width of its content; dark: is its background; texts: elements with text;
    worst: contrast and text of the least readable one. commands: blocks of them; cut: those wider than their block.
    """
    copy, frame = page.with_name(f"measured-{page.name}"), page.with_name(f"frame-{page.name}")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{MEASURES}</body>"), encoding="utf-8")
    frame.write_text(FRAME.format(width=width, page=copy.name), encoding="utf-8")
    dom = browser.opened(needed(), f"file://{frame}", "--dump-dom", "--allow-file-access-from-files",
                         f"--blink-settings=preferredColorScheme={0 if dark else 1}", width=max(width, 500), height=900)
    copy.unlink()
    frame.unlink()
    found = re.search(r'data-told="([^"]*)"', dom)
    assert found is not None, dom[:600]
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told
