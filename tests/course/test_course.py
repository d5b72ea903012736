"""The course: every lesson runs, needs no compiler, and begins with no exercise solved; every check takes the solution,
and neither the untouched start nor a typical mistake."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib import import_module, util
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from checks.verdict import Check
from checks.waits import PLANTED, planted, right
from llamas import KINDS, Training, at_the_peak
from minidl.models.llama import TINY
from minidl.planning.lifetimes import Lifetimes
from virtual import first_wrong, history, overlap, train

COURSE = Path(__file__).resolve().parents[2] / "course"
LESSONS = sorted(COURSE.glob("lesson_*.py"), key=lambda path: int(path.stem.split("_")[1]))
PATIENCE_S = 600
RUNS = """
import json, sys
sys.modules["numba"] = None  # what asks for it fails
from importlib import import_module
from checks.verdict import Verdict
found = {}
for name in json.loads(sys.argv[1]):
    outputs, _ = import_module(name).app.run()
    found[name] = [(output.right, output.says) for output in outputs if isinstance(output, Verdict)]
print(json.dumps(found))
"""
WITHOUT_PYTORCH = """
import importlib.util, json, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "torch" else find(name)
sys.modules["torch"] = None  # what asks for it fails
import lesson_8_pytorch as lesson
outputs, _ = lesson.app.run()
print(json.dumps(" ".join(getattr(output, "text", "") for output in outputs)))
"""
MANAGES = """
import json
from types import SimpleNamespace
import lesson_8_pytorch as lesson
outputs, there = lesson.app.run(defs={"compiled": SimpleNamespace(value=True)})
memory = there["managed"].report()
print(json.dumps([there["same"], memory.floor_bytes, memory.planned_bytes, there["half"], memory.unmanaged_bytes]))
"""
SLIDES = """
import base64, io, json, sys
from importlib import import_module
from types import SimpleNamespace
import marimo as mo
from matplotlib.figure import Figure

def text(output):
    if isinstance(output, Figure):
        picture = io.BytesIO()
        output.savefig(picture, format="png")
        return base64.b64encode(picture.getvalue()).decode()
    return output.text if type(output).__name__ == "_md" else ""  # elements have ids drawn by lot

found = {}
for name in json.loads(sys.argv[1]):
    app = import_module(name).app
    _, there = app.run()
    ends = {}
    for key, value in there.items():
        if isinstance(value, mo.ui.slider):
            ends[key] = (value.steps or [value.start, value.stop])[::len(value.steps or [0, 1]) - 1]
        elif isinstance(value, mo.ui.dropdown):
            ends[key] = [list(value.options)[0], list(value.options)[-1]]
    found[name] = {}
    for key, values in ends.items():
        defs = {other: SimpleNamespace(value=there[other].value) for other in ends}
        runs = [app.run(defs={**defs, key: SimpleNamespace(value=value)})[0] for value in values]
        found[name][key] = len({json.dumps([text(output) for output in run]) for run in runs})
print(json.dumps(found))
"""
PACKS = """
import json
from types import SimpleNamespace
import lesson_2_lifetimes as lesson
_, there = lesson.app.run(defs={"compiled": SimpleNamespace(value=True)})
offsets = there["packed"].offsets
print(json.dumps([there["floor"], there["packed"].peak_bytes,
                  [(offsets[one.id], one.size, one.lower, one.upper) for one in there["log"]]]))
"""


def topic(path: Path) -> str:
    """What a lesson's checks and solutions are called."""
    return path.stem.split("_", 2)[2]


def checks(name: str) -> dict[str, Check]:
    """The exercises of a lesson, in order."""
    return {key: value for key, value in vars(import_module(f"checks.{name}")).items() if isinstance(value, Check)}


WRONG = {
    "kept": {"feature_bytes": lambda batch, channels, height, width: batch * channels * height * width,
             "live_bytes": lambda calls, sizes: [sum(sizes[t] for t in {*reads, *makes}) for reads, makes, _ in calls],
             "largest_batch": lambda peaks, budget: int(budget / (peaks[128] / 128))},
    "lifetimes": {"game": {"a": 0, "b": 2, "c": 3, "d": 5, "e": 7, "f": 9, "g": 3},  # 12, as best fit has it
                  "fragmentation": lambda holes: 1 - 1 / len(holes) if holes else 0.0,
                  "largest_first": lambda buffers: {one.id: sum(other.size for other in buffers[:n])
                                                    for n, one in enumerate(buffers)}},
    "swapping": {"free_time": lambda evicted_at, back_at, out_s, in_s: back_at - evicted_at - in_s,
                 "in_trigger": lambda times, evict, back, in_s: back - 1,
                 "copy_ends": lambda ready, seconds: [a + b for a, b in zip(ready, seconds, strict=True)],
                 "corrections": lambda late_s, in_s: int(20 * late_s / in_s)},
    "recomputing": {"spacing": lambda n: n // 2,
                    "replayed": lambda made_by, there, wanted: {wanted},
                    "by_hand": {"T4 after T2": 14, "T1 after T2": 1, "T1 after T2 and T4": 1},
                    "cheaper": lambda swap_s, swap_bytes, replay_s, replay_bytes:
                        "swap" if swap_s < replay_s else "recompute"},
    "dtr": {"score": lambda seconds, nbytes, idle_calls: seconds / nbytes * (idle_calls + 1),
            "price": lambda made_by, seconds, missing, tensor: seconds[tensor] + sum(
                seconds[other] for other in made_by[tensor] if other in missing),
            "ranking": lambda resident: [r.tensor_id for r in sorted(resident, key=lambda r: -r.idle_calls)]},
    "capuchin": {"gaps": lambda calls, over: [(a, b) for a, b in pairwise(calls) if any(over[a:b + 1])],
                 "hidden_swaps": lambda candidates, needed: [name for name, _, free in candidates if free >= 0],
                 "figure_7": lambda computes, copies: (max(sum(computes), sum(copies)), sum(computes)),
                 "waited": lambda step_s, unmanaged_s, replay_s: step_s - unmanaged_s},
    "bounds": {"least_seconds": lambda compute_s, out_bytes, in_bytes, rate: compute_s + (out_bytes + in_bytes) / rate,
               "gap": lambda plan_s, bound_s: 1 - bound_s / plan_s,
               "operands": lambda inputs, outputs, over, sizes: sum(sizes[t] for t in [*inputs, *outputs]),
               "slices": lambda operation_bytes, budget: -(-operation_bytes // budget)},
    "pytorch": {"bytes_to_copy": lambda saves: sum({address: nbytes for address, _, nbytes in saves}.values()),
                "pack": lambda tensor: lambda: tensor.detach(),
                "again": lambda call, state: (import_module("torch").set_rng_state(state), call())[1],
                "smallest_budget": lambda points, slowest: max(
                    (budget for budget, slower in points if slower <= slowest), default=0)},
    "ranks": {"ordered_sum": lambda held: sum(map(sum, held)),  # each rank adds up its own slices first
              "parts_at": lambda programs: next((n for n, each in enumerate(zip(*programs, strict=False))
                                                 if len(set(each)) > 1), -1),
              "exchanges": lambda sizes, full: [sum(sizes)],
              "beside": lambda seconds, copy_s, share: seconds / (1 - share),
              "kept_bytes": lambda parameters, n, divided: 16 * parameters // (1 if divided == "nothing" else n)},
    "waits": {"starts": lambda work: [sum(seconds for other, seconds, _ in work[:n] if other == stream)
                                      for n, (stream, _, _) in enumerate(work)],  # as if nothing waited
              "must_wait": lambda earlier, later: any(a < d and c < b for a, b in earlier[2] for c, d in later[1]),
              "puzzles": {"A": "copy-out on compute", "B": "compute on copy-in", "C": "copy-in on compute"},
              "missing_wait": lambda log: next((
                  f"{later.stream} on {earlier.stream}" for n, later in enumerate(log) for earlier in log[:n]
                  if later.stream != earlier.stream and later.start < earlier.end), "")},  # whichever bytes they use
    "language": {"lasting_bytes": lambda parameters, trained, on_host: (8 if on_host else 16) * parameters,
                 "probability_bytes": lambda batch, length, heads, layers: 4 * batch * length**2 * layers,
                 "logits_bytes": lambda batch, length, vocabulary, rows: 4 * batch * length * vocabulary,
                 "layer_bytes": lambda batch, length, width, inner, heads:  # forgets the input and two numbers a norm
                     4 * batch * (length * (9 * width + 4 * inner) + heads * length**2)},
}
TAKES_PYTORCH = {"pytorch"}
SLIDERS = {"kept": ("network", "batch"), "swapping": ("card", "times", "room"), "recomputing": ("apart",),
           "dtr": ("roots",), "capuchin": ("share",), "language": ("batch",)}
NO_ANSWER = ("There is no answer so far", "This exercise takes PyTorch: pip install")


def test_every_exercise_of_every_lesson_has_a_check_a_solution_and_a_mistake():
    assert [topic(path) for path in LESSONS] == list(WRONG)
    for path in LESSONS:
        solutions = vars(import_module(f"solutions.{topic(path)}"))
        assert len(checks(topic(path))) >= 3
        for name in checks(topic(path)):
            assert name in solutions and name in WRONG[topic(path)], f"{path.stem}: {name}"


@pytest.mark.parametrize("name", WRONG)
def test_a_check_takes_the_solution_and_neither_nothing_nor_a_typical_mistake(name):
    if name in TAKES_PYTORCH:
        pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")
    solutions = vars(import_module(f"solutions.{name}"))
    for exercise, check in checks(name).items():
        solved = check(solutions[exercise])
        assert solved.right and solved.says == check.praise, f"{exercise}: {solved.says}"
        mistaken = check(WRONG[name][exercise])
        assert not mistaken.right and "ends with" not in mistaken.says, f"{exercise}: {mistaken.says}"
        for nothing in (None, lambda *arguments: None, lambda: 1):
            assert not check(nothing).right
        assert "ends with TypeError" in check(lambda: 1).says or isinstance(solutions[exercise], dict)


def test_a_verdict_is_shown_and_what_a_student_wrote_is_escaped():
    shown = checks("kept")["feature_bytes"](lambda *shape: "<script>")._repr_html_()
    assert "Not yet" in shown and "<script>" not in shown


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_of_a_size_to_teach_says_what_it_needs_and_checks_each_exercise_once(path):
    source = path.read_text(encoding="utf-8")
    assert 120 <= len(source.splitlines()) <= 270
    says = ast.get_docstring(ast.parse(source)) or ""
    assert re.search(r"Needs neither a GPU nor a compiler|needs Numba", says)
    assert set(re.findall(r"(\w+) = mo\.ui\.(?:slider|dropdown)\(", source)) == set(SLIDERS.get(topic(path), ()))
    assert ("compiled" in source) == ("needs Numba" in says)
    assert ("minidl.torch" in source) == ("Needs PyTorch" in says) == (topic(path) in TAKES_PYTORCH)
    assert sorted(re.findall(r"\bcheck\.(\w+)\((\w+)\)", source)) == sorted((n, n) for n in checks(topic(path)))
    assert len(re.findall(r"## Exercise \d", source)) == len(checks(topic(path)))


def printed(program: str, folder: Path, *words: str) -> Any:
    """What a program prints that runs lessons, as JSON."""
    if not util.find_spec("marimo") or not util.find_spec("matplotlib"):
        pytest.skip("the lessons are marimo notebooks with pictures: extra course")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(COURSE), str(COURSE.parent)]),
                   "MPLCONFIGDIR": str(folder)}
    ended = subprocess.run([sys.executable, "-c", program, *words], check=False, capture_output=True, text=True,
                           cwd=folder, timeout=PATIENCE_S, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


@pytest.mark.slow
def test_every_lesson_runs_without_a_compiler_and_nothing_is_solved_yet(tmp_path):
    found = printed(RUNS, tmp_path, json.dumps([path.stem for path in LESSONS]))
    for path in LESSONS:
        assert len(found[path.stem]) == len(checks(topic(path))), path.stem
        solved = [says for right, says in found[path.stem] if right or not says.startswith(NO_ANSWER)]
        assert solved == [], path.stem


def test_an_exercise_that_takes_pytorch_says_what_to_install_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    says = [check(lambda *arguments: 1).says for check in checks("pytorch").values()]
    assert sum(each.startswith(NO_ANSWER[1]) for each in says) == 2, says  # the other two run nothing of it


@pytest.mark.slow
def test_the_lesson_on_pytorch_says_what_to_install_where_it_is_missing(tmp_path):
    assert "PyTorch is missing." in printed(WITHOUT_PYTORCH, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", [
    pytest.param(name, marks=[] if name in ("swapping", "language") else [pytest.mark.full]) for name in SLIDERS])
def test_a_slider_s_first_and_last_positions_run_and_show_different_things(lesson, tmp_path):
    path, = (path for path in LESSONS if topic(path) == lesson)
    found = printed(SLIDES, tmp_path, json.dumps([path.stem]))
    assert found[path.stem] == dict.fromkeys(SLIDERS[lesson], 2)


def test_in_lesson_10_all_waits_give_the_bits_of_the_unmanaged_training():
    assert right().losses == train(share=1).losses
    assert any(work.stream == "copy-in" for work in right().log)


@pytest.mark.parametrize("name", PLANTED)
def test_in_lesson_10_a_training_without_a_wait_falls_has_other_bits_and_a_history_that_shows_the_wait(name):
    losses, log = planted(name).losses, planted(name).log
    assert losses[-1] < losses[0] and losses != right().losses
    told = [log[n] for n in history(log, *first_wrong(log, right().log))]
    late = {f"{later.stream} on {earlier.stream}" for n, later in enumerate(told) for earlier in told[:n]
            if later.start < earlier.end and (overlap(earlier.writes, [*later.reads, *later.writes])
                                              or overlap(earlier.reads, later.writes))}
    assert late == {import_module("solutions.waits").puzzles[name]}
    assert planted(name, poisoned=True).losses[-1] != planted(name, poisoned=True).losses[-1]  # NaN


@pytest.mark.parametrize("changes", [{}, {"chunks": True}, {"fused_attention": True}, {"adapters": 4, "on_host": True}],
                         ids=str)
def test_the_kinds_that_lesson_11_draws_are_all_that_is_live_at_the_peak_of_a_dry_run(changes):
    training = Training(TINY, 4, 64, **changes)
    trace, kinds = training.trace(), at_the_peak(training.trace())
    assert list(kinds) == list(KINDS)
    assert sum(kinds.values()) == max(Lifetimes.of(trace).live_bytes) == training.demand().unmanaged_peak_bytes
    assert (kinds["attention probabilities"] == 0) == training.fused_attention
    parameters, trained = training.numbers()
    assert kinds["parameters and states"] == 4 * parameters + (0 if training.on_host else 8) * trained


@pytest.mark.slow
def test_what_lesson_2_packs_when_it_is_asked_to_fits_into_hardly_more_than_what_is_live(tmp_path):
    floor, peak, placed = printed(PACKS, tmp_path)
    assert floor <= peak <= 1.01 * floor and peak == max(offset + size for offset, size, *_ in placed)
    for n, (offset, size, first, end) in enumerate(placed):
        assert all(offset >= low + high or low >= offset + size for low, high, other, stop in placed[:n]
                   if other < end and first < stop)


@pytest.mark.slow
def test_what_lesson_8_trains_in_half_of_the_bytes_has_the_bits_of_the_unmanaged_training(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")
    same, floor, planned, half, unmanaged = printed(MANAGES, tmp_path)
    assert same and floor < planned <= half < unmanaged
