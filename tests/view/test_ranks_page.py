"""Ranks on a page: side by side on one clock, with the exchanges between them; and one simulated rank's exchanges."""

import html
import json
import re
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
from recordings import recorded

from bench.support import browser
from minidl import Runtime, nn
from minidl.device.beside import BESIDE, EXCHANGES
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.ranks import Ranks, modelled, threads
from minidl.view.packing import pack
from minidl.view.page import page
from minidl.view.recorded import Recorded
from minidl.view.recorder import StepRecorder
from minidl.view.recording import EventKind, Recording

TELLS = """<script>
drawNow();
const [picture] = pictures;
const told = {label: picture.canvas.getAttribute("aria-label"), ranked, began: recordings.map(each => each.offset),
  counts: picture.exchanges.map(each => each.events.length),
  last: picture.exchanges.map(each => each.last), number: recordings.map(each => each.exchanged.length),
  inside: picture.exchanges.every(({events, comes}) => events.every(
    (e, rank) => recordings[rank].events.end[e] >= Math.max(...comes) - 1e-9)),
  titles: [...document.querySelectorAll("section h2")].map(each => each.textContent)};
const {events, comes, last} = picture.exchanges[picture.exchanges.length - 1];
const [y, height] = picture.row(last), [x, end] = picture.across(last, events[last]);
told.tip = picture.tip((x + end) / 2, y + height / 2);
view.axis = "calls"; show(0, Infinity); drawNow();
location.hash = "#call=3&of=1"; followLink(); drawNow();
told.chosen = chosen.which;
document.documentElement.dataset.told = JSON.stringify(told);
</script>"""


def trained(ranks: Ranks, device: str = "cpu:virtual") -> tuple[Recorded, Runtime]:
    """The last of three steps of a small network."""
    with Runtime(device, policy="passive", memory_budget="4MiB", host_memory="16MiB", ranks=ranks) as runtime:
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer, recorder = SGD(model.parameters(), lr=0.1), StepRecorder(runtime)

        def step() -> None:
            with runtime.iteration():
                optimizer.zero_grad()
                loss = cross_entropy(model(runtime.tensor(np.ones((8, 16), np.float32))),
                                     runtime.tensor(np.arange(8) % 4))
                loss.backward()
                optimizer.step()

        step()
        step()
        with recorder.recording():
            step()
        found = recorder.recorded
    assert found is not None
    return found, runtime


def of_ranks(count: int) -> list[Recording]:
    """The recordings of ``count`` ranks that are threads."""
    found: dict[int, Recording] = {}

    def run(rank: Ranks) -> None:
        step, runtime = trained(rank)
        found[rank.rank] = Recording("a step", runtime.budget_bytes, 0, runtime.host_bytes, step.trace,
                                     step.subjects({}, {}), step.events, step.stays, began_s=step.began_s,
                                     rank=rank.rank)

    every = [Thread(target=run, args=(rank,)) for rank in threads(count, patience_s=60)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    return [found[rank] for rank in range(count)]


def test_a_page_shows_ranks_on_one_clock_and_joins_their_exchanges(tmp_path):
    recordings = of_ranks(3)
    for recording in recordings:
        recording.check()
    number = sum(event.op in EXCHANGES for event in recordings[0].events)
    later = [replace(each, began_s=each.began_s + 0.25 * each.rank) for each in recordings]
    text = page([pack(each) for each in later])
    assert "a step, 3 ranks" in text and number > 1
    if browser.found() is None:
        pytest.skip("no chromium or chrome to look at the page with")
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{TELLS}</body>"))
    dom = browser.opened(browser.found(), f"file://{tmp_path / 'page.html'}", "--dump-dom", width=1200, height=900)
    told = json.loads(html.unescape(re.search(r'data-told="([^"]*)"', dom)[1]))
    assert told["ranked"] and "on one clock" in told["label"] and told["chosen"] == 1
    assert told["began"] == pytest.approx([each.began_s - later[0].began_s for each in later])
    assert told["last"] == [2] * number  # it began half a second after the first
    assert told["number"] == [number] * 3 and told["counts"] == [3] * number
    assert told["titles"] == ["Ranks on one clock", "Rank 0", "Rank 1", "Rank 2"]
    assert "the last to come" in told["tip"] and f"of {number}" in told["tip"]


def test_the_exchanges_of_a_simulated_rank_run_beside_its_calls():
    recording, _, _ = recorded(ranks=modelled(4), budget="80MiB")
    recording.check()
    exchanged = [event for event in recording.events if event.op in BESIDE and event.kind is EventKind.CALL]
    assert len(exchanged) > 10 and all(event.end_s > event.start_s for event in exchanged)
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in zip(exchanged, exchanged[1:], strict=False))
    calls = [event for event in recording.events if event.kind is EventKind.CALL and event.op not in EXCHANGES]
    beside = sum(max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s)) for a in exchanged for b in calls)
    assert beside > 0.0  # some of their time is that of calls
    times = [event.time_s for event in recording.events]
    assert times == sorted(times)
    alone = recorded()[0]
    assert not any(event.op in EXCHANGES for event in alone.events)
