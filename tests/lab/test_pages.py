"""What the documents of the laboratory show runs; pages of the paper are made, and say how old they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.papers import PAGES, age, page
from bench.papers import command as paper
from bench.papers.page import Content, Page
from minidl.cli.lab import fit
from minidl.errors import UserError
from minidl.lab import cell
from minidl.lab.fitting import Needs, ProgramAtBatch, between
from minidl.lab.sources import checked
from minidl.lab.training_step import trace_of
from minidl.meta import Algorithm
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.plan.trace_format import trace_from_json

ROOT = Path(__file__).parents[2]


def test_the_trace_that_the_guide_makes_of_a_log_runs():
    text = (ROOT / "docs" / "guides" / "trace.md").read_text(encoding="utf-8")
    source = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "kernels" in text)
    names: dict = {}
    exec(source, names)
    trace = checked(trace_from_json(names["trace"]))
    assert len(trace.calls) == 14 and any(call.saves for call in trace.calls)
    for policy in ("passive", "capuchin"):
        row = cell.run("own", trace, cell.Machine(), policy, 0.8, steps=4)
        assert row.status == "ok" and row.settled_s > row.unmanaged_s


def test_a_page_names_its_commit_and_says_when_the_code_has_gone_on(tmp_path, monkeypatch):
    said = {"rev-parse": "abcdef012345\n", "status": "", "log": ""}
    monkeypatch.setattr(page, "git", lambda *words: said[words[0]])
    made = Page("table9", "Table 9: nothing", lambda content, quick: content.table(("a", "b"), [(1, 2)]))
    assert age.age(str(tmp_path), "table9") == "not made"
    path = made.write(str(tmp_path))
    assert Path(path).read_text(encoding="utf-8") == (
        "# Table 9: nothing\n\nMade by `minidl lab paper table9` at commit `abcdef012345`.\n\n"
        "| a | b |\n|---|--:|\n| 1 | 2 |\n")
    assert age.age(str(tmp_path), "table9") == "up to date"
    said["log"] = "one\ntwo\n"
    assert age.age(str(tmp_path), "table9") == "2 commits older than the code"
    said["status"] = " M minidl/op.py\n"
    made.write(str(tmp_path))
    assert age.age(str(tmp_path), "table9") == "made at abcdef012345 with changes of its own"
    former = Path(path).read_text(encoding="utf-8").replace("`minidl lab", "`python -m minidl.lab")
    Path(path).write_text(former, encoding="utf-8")
    made.write(str(tmp_path))  # over a page with the former head
    Path(path).write_text("mine")
    with pytest.raises(UserError):
        made.write(str(tmp_path))


def test_what_no_page_shows_is_loaded_by_none(tmp_path):
    """What pages and a grid's worker load, in a process of its own: tests load more."""
    code = ("import sys; from bench.papers import command as paper; from minidl.lab.worker import load_planners\n"
            f"load_planners(); paper.main(['figure1', '--quick', '--out', {str(tmp_path)!r}])\n"
            "print(*sys.modules, sep='\\n', file=sys.stderr)")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=ROOT)
    loaded = [f"{name.replace('.', '/')}.py" for name in ended.stderr.splitlines()]
    assert "minidl/lab/cell.py" in loaded
    assert not [name for name in loaded if name.startswith(tuple(f"minidl/{part}" for part in age.UNSEEN))]


def test_a_page_is_older_for_the_code_that_it_shows_and_no_other():
    usual, captured = age.shown(), age.shown(PAGES["captured"].shows)
    assert usual[:2] == ["minidl", "models"] and ":(exclude)minidl/kernels/cuda" in usual
    assert set(usual) - set(captured) == {f":(exclude)minidl/{part}" for part in age.CAPTURE}
    for part in age.UNSEEN:
        assert (ROOT / "minidl" / part).exists(), part


def test_every_page_of_the_paper_is_told_by_its_command(tmp_path, capsys):
    assert paper.main(["check", "--out", str(tmp_path)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(PAGES)
    assert paper.main(["table7"]) == 2
    Page("grid", "A grid", lambda content, quick: None).write(str(tmp_path))
    assert paper.main(["check", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "grid"


@pytest.mark.parametrize("name", [
    "figure3", *(pytest.param(name, marks=pytest.mark.full) for name in PAGES if name != "figure3")])
def test_a_page_is_made(name):
    if name == "captured":
        pytest.importorskip("torchvision")
    content = Content()
    PAGES[name].fill(content, True)
    assert any(part.startswith("|") for part in content.parts)
    assert all(part.count("\n") >= 2 for part in content.parts if part.startswith("|"))  # a row below the head


def test_what_a_program_needs_at_a_batch_follows_from_two():
    program = ProgramAtBatch("lenet", lambda n: trace_of("lenet", n), 32)
    near, there = program.at(100), trace_of("lenet", 100)
    assert {i: t.nbytes for i, t in near.tensors.items()} == {i: t.nbytes for i, t in there.tensors.items()}
    assert near.seconds == pytest.approx(there.seconds, rel=0.02)
    needs = Needs.of(there)
    assert needs.parameters == needs.gradients == needs.state == 4 * 61_706
    peak = cell.unmanaged(there, cell.Machine())[1]
    largest = program.largest(cell.Machine(), "none", peak)
    assert abs(largest - 100) <= 1
    with pytest.raises(UserError):
        between(there, trace_of("mlp", 100), 0.5)


@pytest.mark.parametrize(("update", "state"), [
    ([((4, 2), (4,)), ((1, 4), (1,))], {4}),  # SGD: a momentum takes the gradient, then the parameter the momentum
    ([((1,), (1,)), ((4, 2), (4,)), ((5, 2), (5,)), ((5,), (6,)), ((1, 4, 6), (1,))], {4, 5}),  # AdamW: 6 is a root
    ([((1, 2), (6,)), ((4, 6), (4,)), ((1, 4), (1,))], {4}),  # weight decay: 6 is the gradient with it
    ([((1,), (1,)), ((4,), (6,)), ((4, 6, 2), (4,)), ((1, 4), (1,))], {4})])  # 6 is of a state as it was before
def test_what_parameters_gradients_and_states_are_follows_from_the_order_of_reads_and_writes(update, state):
    """A parameter 1 of 100 bytes and the batch's statistics 3 of 5; a step reads the gradient 2, of 100 as each state
    is. Names: what a call reads, and what it makes or writes."""
    lasting = {1, 3, *state}
    step = [((0, 1, 3), (3, 8)), ((8, 1), (2,)), *update]  # forward, backward, the optimizer
    calls = tuple(TraceCall("op", reads, tuple(i for i in makes if i not in reads), 1.0, (Algorithm("op", 1.0),), (),
                            writes=tuple(i for i in makes if i in reads)) for reads, makes in step)
    sizes = {0: 7, 3: 5, 8: 9}
    trace = Trace(calls, {i: TraceTensor(i, sizes.get(i, 100), i in lasting) for i in range(9)})
    needs = Needs.of(trace)
    assert (needs.parameters, needs.gradients, needs.state) == (100, 100, 100 * len(state) + 5)


def test_fit_tells_what_is_needed_and_a_line_a_policy(capsys):
    assert fit.main(["mlp:64", "--policies", "none", "--device", "t4", "--steps", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "assumed: precision fp32, images 1x28x28, optimizer momentum"
    assert out[1] == "simulated speeds, beside published ones: t4 not compared with any"
    assert out[2].startswith("mlp at 64: parameters ")
    assert out[4].split()[:6] == ["t4", "14.5", "GiB", "59.6", "GiB", "none"]
    assert fit.main(["mlp"]) == 2
