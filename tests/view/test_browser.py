"""The page in a browser: it opens without an error, is moved through, clicked and searched. Skipped where none is."""

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from flags import NET

import train
from bench.support import browser

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
choose(0, -1);
told.largest = [...$("details").querySelectorAll(".largest tr")].slice(1)
  .map(row => [...row.cells].map(cell => cell.textContent));
told.leaving = recording.leaving().length;
change("find", "layer", "input");
$("find").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
told.entered = recording.subjects.bytes[chosen.subject];
told.most = Math.max(...recording.find("layer").subjects.map(i => recording.subjects.bytes[i]));
const entry = document.querySelector("[data-band]");
const alone = () => [view.only, document.querySelectorAll(".faded").length];
entry.click();
told.alone = [...alone(), Number(entry.dataset.band), document.querySelectorAll("[data-band]").length];
drawNow();
entry.click();
told.again = alone();
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
told.steps = [...document.querySelectorAll("svg.course g.step")].map(step => ({
  says: step.querySelector("title").textContent, at: Number(step.querySelector("circle").getAttribute("cy")),
  predicted: step.querySelector("path") !== null, bars: [...step.querySelectorAll("rect")].slice(1).map(
    bar => Number(bar.getAttribute("height")))}));
told.plans = [...recording.steps.plan];
told.course = document.querySelector("svg.course").parentNode.nextElementSibling.nextElementSibling.textContent;
told.expects = expected.map(([seconds, swapped, recomputed]) =>
  `: ${formatSeconds(seconds)}, copied ${formatBytes(swapped)}, recomputed ${formatBytes(recomputed)}`);
told.heard = window.heard;
document.documentElement.dataset.told = JSON.stringify(told);
</script>"""


def shown(path: Path, steps: list[tuple[float, float, float]]) -> dict[str, Any]:
    """What the page tells of itself when all of this was done to it.

    steps   seconds, bytes copied and bytes computed again of each, which it is to put into the words of the page
    """
    text = path.read_text().replace('<script type="application/json"', HEARS + '<script type="application/json"', 1)
    acts = f"<script>const expected = {json.dumps(steps)};</script>{ACTS}"
    path.with_name("acted.html").write_text(text.replace("</body>", f"{acts}</body>"))
    chosen = browser.found()
    assert chosen is not None
    dom = browser.opened(chosen, f"file://{path.with_name('acted.html')}", "--dump-dom", width=1400, height=1000)
    found = re.search(r'data-told="([^"]*)"', dom)
    assert found is not None, dom[:600]
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told


def the_course_is_that_of_the_run(told: dict[str, Any], steps: list[tuple[float, float, float]], *,
                                  planned: bool) -> None:
    """Each step has its numbers in words, a dot as high as its seconds, and bars as high as its bytes."""
    drawn = told["steps"]
    assert len(drawn) == len(steps) == len(told["plans"])
    slowest, most = max(seconds for seconds, *_ in steps), max(max(both) for _, *both in steps)
    floor = max(step["at"] for step in drawn)
    for number, (step, (seconds, *both), expected) in enumerate(zip(drawn, steps, told["expects"], strict=True), 1):
        said = re.sub(r", predicted [^,;]*|, plan \d+|;", "", step["says"].replace("; copied", ", copied"))
        assert said == f"step {number}{expected}"
        assert (", predicted " in step["says"]) == step["predicted"]
        assert step["bars"] == pytest.approx([44 * nbytes / most for nbytes in both])
        # Where nothing was predicted to take longer than the slowest step, that one's dot is 58 above the axis.
        assert step["at"] <= floor and (planned or step["at"] == pytest.approx(74 - 58 * seconds / slowest))
    assert told["course"].startswith(f"{len(steps)} steps, ")
    if planned:  # the first steps are measured, and a plan that is corrected is another one
        assert told["plans"][:2] == [0, 0] and told["plans"][2] == 1 and "from step 3 on" in told["course"]
        assert max(told["plans"]) == len(set(told["plans"])) - 1
    else:
        assert not any(told["plans"]) and told["course"].endswith("No step followed a plan.")


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
    assert train.main([*NET, *flags, "--report", str(path), "--csv", str(tmp_path / "steps.csv")]) == 0
    with open(tmp_path / "steps.csv", newline="") as file:
        steps = [(float(row["seconds"]), float(row["swapped_out_bytes"]) + float(row["swapped_in_bytes"]),
                  float(row["recomputed_bytes"])) for row in csv.DictReader(file)]
    told = shown(path, steps)
    assert told["heard"] == [] and told["wrong"] == "0"
    assert told["scrubbed"].startswith("#100 ") and told["pressed"] == "#call=101"
    assert f"tensor {told['expected']} " in told["clicked"] and "accesses so far" in told["clicked"]
    assert told["linked"].endswith(f"&tensor={told['expected']}") and "call=" in told["lane"]
    assert re.match(r"\d+ tensors, 0 calls", told["found"]) and "layer1.0.conv1" in told["found"]
    assert "tensor=" in told["chosen"] and told["zoomed"] == pytest.approx(0.8 * told["whole"])
    assert told["entered"] == told["most"] > 0
    assert told["alone"][0] == told["alone"][2] and told["alone"][1] == told["alone"][3] - 1 > 0
    assert told["again"] == [-1, 0]
    assert len(told["largest"]) == min(12, told["leaving"]) > 0
    assert {row[2] for row in told["largest"]} <= {"swapped", "dropped", "both"}
    assert " in use. " in told["said"] and len(set(told["labels"])) == 3
    assert told["followed"].startswith("#7 ") and f"tensor {told['expected']} " in told["followed"]
    the_course_is_that_of_the_run(told, steps, planned="capuchin" in flags)
    if "capuchin" in flags:
        assert "Why it leaves" in told["why"] and "is copied to the host after call" in told["why"]
