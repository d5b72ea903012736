"""The page in a browser: it opens without an error, is moved through, clicked and searched. Skipped where none is."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from flags import NET

import train
from minidl.testing import browser

HEARS = """<script>window.heard = []; window.onerror = message => window.heard.push(message);</script>"""
ACTS = """<script>
const told = {wrong: document.documentElement.dataset.wrong, whole: view.to - view.from};
const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const change = (id, value, kind) => { $(id).value = value; $(id).dispatchEvent(new Event(kind, {bubbles: true})); };
const [stack, addresses, lanes] = pictures, recording = recordings[0];
drawNow();
function click(picture, x, y) {
  const box = picture.canvas.getBoundingClientRect();
  for (const kind of ["pointerdown", "pointermove", "pointerup"])
    picture.canvas.dispatchEvent(new PointerEvent(kind, {clientX: box.left + 1 + x, clientY: box.top + 1 + y,
                                                        bubbles: true}));
}
change("call", 100, "input");
drawNow();
told.scrubbed = $("where").textContent;
press("ArrowRight");
told.pressed = location.hash;
const {first, end, offset, size, subject} = recording.stays;
const box = s => addresses.box(offset[s], size[s], first[s], end[s]);
const widest = Array.from(first, (_, s) => s).filter(s => recording.maker[subject[s]] >= 0)
  .sort((a, b) => box(b)[2] - box(a)[2])[0];
const [x, y, width, height] = box(widest);
click(addresses, x + width / 2, y + height / 2);
told.clicked = $("details").textContent;
told.expected = recording.subjects.id[subject[widest]];
told.linked = location.hash;
click(lanes, LEFT + 40, lanes.row(0)[0] + 5);
told.lane = location.hash;
change("find", "layer1.0.conv1", "input");
told.found = $("details").textContent;
$("details").querySelector("a").click();
told.chosen = location.hash;
stack.canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: -1, bubbles: true, cancelable: true}));
told.zoomed = view.to - view.from;
change("axis", "calls", "change");
change("colours", "fate", "change");
drawNow();
change("colours", "layer", "change");
$("theme").click();
drawNow();
told.said = $("said0").textContent;
told.labels = pictures.map(picture => picture.canvas.getAttribute("aria-label"));
location.hash = "#call=7&tensor=" + told.expected;
followLink();
drawNow();
told.followed = $("where").textContent + $("details").textContent;
for (const subject of recording.remarks.keys()) choose(0, subject);
told.why = $("details").textContent;
told.heard = window.heard;
document.documentElement.dataset.told = JSON.stringify(told);
</script>"""


def shown(path: Path) -> dict[str, Any]:
    """What the page tells of itself when all of this was done to it."""
    text = path.read_text().replace('<script type="application/json"', HEARS + '<script type="application/json"', 1)
    path.with_name("acted.html").write_text(text.replace("</body>", ACTS + "</body>"))
    chosen = browser.found()
    assert chosen is not None
    dom = browser.opened(chosen, f"file://{path.with_name('acted.html')}", "--dump-dom", width=1400, height=1000)
    found = re.search(r'data-told="([^"]*)"', dom)
    assert found is not None, dom[:600]
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told


@pytest.fixture
def a_browser():
    """What a test needs that looks at the page."""
    if browser.found() is None:
        pytest.skip("no chromium or chrome to look at the page with")


@pytest.mark.slow
@pytest.mark.usefixtures("a_browser")
@pytest.mark.parametrize("flags", [["--policy", "dtr-swap", "--steps", "2"], ["--policy", "capuchin", "--steps", "5"]])
def test_a_browser_opens_moves_through_clicks_and_searches_a_page(flags, tmp_path, capsys):
    path = tmp_path / "page.html"
    assert train.main([*NET, *flags, "--report", str(path)]) == 0
    told = shown(path)
    assert told["heard"] == [] and told["wrong"] == "0"
    assert told["scrubbed"].startswith("#100 ") and told["pressed"] == "#call=101"
    assert f"tensor {told['expected']} " in told["clicked"] and "access_count" in told["clicked"]
    assert told["linked"].endswith(f"&tensor={told['expected']}") and "call=" in told["lane"]
    assert re.match(r"\d+ tensors, 0 calls", told["found"]) and "layer1.0.conv1" in told["found"]
    assert "tensor=" in told["chosen"] and told["zoomed"] == pytest.approx(0.8 * told["whole"])
    assert " in use. " in told["said"] and len(set(told["labels"])) == 3
    assert told["followed"].startswith("#7 ") and f"tensor {told['expected']} " in told["followed"]
    if "capuchin" in flags:
        assert "Why it leaves" in told["why"] and "is copied to the host after call" in told["why"]
