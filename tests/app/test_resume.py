"""Going on with a run: killed, interrupted or ended, it ends with the bytes of one that was never stopped."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import killed
import numpy as np
import pytest
from forged import forge
from killed import STEPS, TRAINING

import train
from minidl import Runtime
from minidl.checkpoint import CorruptFile, Store, documents_of, durable, read_checkpoint, restore, tensors_of
from minidl.cli.app import train as program
from minidl.cli.app.flags import parse
from minidl.cli.app.interrupt import stop_after_the_step
from minidl.cli.app.run_folder import COLUMNS
from minidl.errors import UserError
from minidl.ops import cross_entropy
from minidl.optim import SGD, Schedule
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal, SavedProposal
from minidl.policies.capuchin.policy import Capuchin
from minidl.report.meter import Meter
from minidl.training import Trainer

ROOT = Path(__file__).parents[2]
EPOCH = 9  # 1438 // 150


def run(*flags):
    assert train.main([*TRAINING, *map(str, flags)]) == 0


def table(folder):
    lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    assert tuple(lines[0]) == COLUMNS
    return [dict(zip(COLUMNS, line, strict=True)) for line in lines[1:]]


def message_of(capsys, *flags):
    assert train.main([*map(str, flags)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("train.py: error: ")
    return lines[-1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped: its folder, and its parameters as bytes."""
    folder = tmp_path_factory.mktemp("whole")
    run("--run-dir", folder / "run", "--checkpoint-every", 5, "--keep-checkpoints", 9,
        "--save-weights", folder / "parameters", "--json", folder / "json")
    (folder / "json").rename(folder / "result.json")  # a run that goes on from it writes its own
    return folder / "run", (folder / "parameters").read_bytes()


# From each checkpoint ------------------------------------------------------------------------------------------------
@pytest.mark.default(step=[10])
@pytest.mark.parametrize("step", [5, 10, STEPS])
def test_from_any_checkpoint_the_end_is_the_same_even_under_another_policy_and_budget(whole, tmp_path, step):
    folder, parameters = whole
    shutil.copytree(folder, tmp_path / "run")
    at = tmp_path / "run" / "checkpoints" / f"step-{step:08}"
    assert train.main(["--trust", "--resume", str(at), "--policy", "passive", "--memory-budget", "2MiB",
                       "--save-weights", str(tmp_path / "parameters")]) == 0
    assert (tmp_path / "parameters").read_bytes() == parameters


def test_the_training_was_one_in_which_tensors_had_to_leave(whole):
    assert all(float(row["recomputed_bytes"]) > 0 for row in table(whole[0]))


def test_a_longer_run_begins_like_a_shorter_one(tmp_path):
    flags = ["--schedule", "constant", "--run-dir"]
    run(*flags, tmp_path / "long", "--save-weights", tmp_path / "whole", "--steps", 10)
    run(*flags, tmp_path / "short", "--steps", 4)
    assert train.main(["--trust", "--resume", str(tmp_path / "short"), "--steps", "10",
                       "--save-weights", str(tmp_path / "parts")]) == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()


def test_a_run_that_is_done_does_nothing_and_still_saves(whole, tmp_path, capsys):
    folder, parameters = whole
    shutil.copytree(folder, tmp_path / "run")
    assert train.main(["--trust", "--resume", str(tmp_path / "run"),
                       "--save-weights", str(tmp_path / "parameters")]) == 0
    assert "nothing was left to do: all 12 steps are done" in capsys.readouterr().out
    assert (tmp_path / "parameters").read_bytes() == parameters


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path, capsys):
    run("--run-dir", tmp_path, "--checkpoint-every", 5)
    newest = tmp_path / "checkpoints" / f"step-{STEPS:08}"
    data = bytearray((newest / "tensors.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "tensors.safetensors").write_bytes(data)
    capsys.readouterr()
    assert train.main(["--trust", "--resume", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"not used: .*step-00000012/tensors.safetensors: at byte \d+: the checksum does not agree", out)
    assert "going on after step 10" in out
    assert read_checkpoint(newest).step == STEPS  # written anew
    data = (newest / "state.json").read_text()
    (newest / "state.json").write_text(data.replace("5", "6", 1))
    assert "state.json: at byte 0: the checksum" in message_of(capsys, "--trust", "--resume", newest)


# The run folder ------------------------------------------------------------------------------------------------------
def test_a_run_folder_has_arguments_metrics_summary_result_and_checkpoints(whole):
    folder, _ = whole
    assert {p.name for p in folder.iterdir()} == {"arguments.json", "metrics.csv", "metrics.jsonl", "summary.txt",
                                                  "result.json", "checkpoints"}
    assert json.loads((folder / "arguments.json").read_text())["arguments"][:2] == ["--model", "killed:network"]
    rows, lines = table(folder), [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in lines] == list(range(1, STEPS + 1))
    assert [row["epoch"] for row in lines] == [1] * EPOCH + [2] * (STEPS - EPOCH)
    for row, line in zip(rows, lines, strict=True):  # the same, to the last digit
        assert {name: "" if line[name] is None else str(line[name]) for name in COLUMNS} == row
    assert [n for n, line in enumerate(lines, 1) if line["top1"] is not None] == [EPOCH, STEPS]
    assert lines[-1]["lr"] == Schedule(0.001, "cosine", 3, STEPS)(STEPS - 1)
    result = json.loads((folder / "result.json").read_text())
    assert result == json.loads((folder.parent / "result.json").read_text()) and result["accuracy"] == lines[-1]["top1"]
    assert (folder / "summary.txt").read_text().startswith("killed:network, batch 150, on cpu:virtual")


def test_losses_and_scores_of_a_resumed_run_are_those_of_the_whole_one(whole, tmp_path):
    run("--run-dir", tmp_path, "--checkpoint-every", 5)
    store = Store(tmp_path / "checkpoints", keep=1)
    assert store.steps() == [5, 10, STEPS]
    for step in (10, STEPS):  # as if it had been killed before step 10: rows 6 to 12 are to be written again
        durable.remove_folder(store.path(step))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "lo')
    assert train.main(["--trust", "--resume", str(tmp_path)]) == 0
    names = ("step", "epoch", "loss", "lr", "top1", "top5")
    assert [[row[name] for name in names] for row in table(tmp_path)] == [
        [row[name] for name in names] for row in table(whole[0])]


def test_a_checkpoint_of_which_a_file_is_gone_gives_way_to_the_one_before_it(whole, tmp_path, capsys):
    folder, parameters = whole
    shutil.copytree(folder, tmp_path / "run")
    for step, gone in ((STEPS, "manifest.json"), (10, "tensors.safetensors")):
        (tmp_path / "run" / "checkpoints" / f"step-{step:08}" / gone).unlink()
    assert train.main(["--trust", "--resume", str(tmp_path / "run"), "--save-weights", str(tmp_path / "resumed")]) == 0
    told = capsys.readouterr().out
    assert told.count("there is no such file") == 2 and "going on after step 5" in told
    assert (tmp_path / "resumed").read_bytes() == parameters


def test_a_run_without_a_checkpoint_says_that_it_begins_again(whole, tmp_path, capsys):
    folder, parameters = whole
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert train.main(["--trust", "--resume", str(tmp_path / "run"), "--save-weights", str(tmp_path / "resumed")]) == 0
    assert f"there is no checkpoint in {tmp_path / 'run'}: beginning again" in capsys.readouterr().out
    assert (tmp_path / "resumed").read_bytes() == parameters


@pytest.mark.parametrize("name", ["batch", "memory_budget"])
def test_what_was_resolved_is_no_nothing(whole, tmp_path, capsys, name):
    noted = json.loads((whole[0] / "arguments.json").read_text())
    noted["resolved"][name] = 0
    (tmp_path / "arguments.json").write_text(json.dumps(noted))
    assert train.main(["--resume", str(tmp_path)]) == 2
    assert "expected an object with a list of strings, arguments, and the numbers" in capsys.readouterr().err


def test_a_simulator_keeps_a_run_folder_without_checkpoints(tmp_path):
    assert train.main(["--model", "lenet", "--steps", "2", "--run-dir", str(tmp_path / "run")]) == 0
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"arguments.json", "metrics.csv", "metrics.jsonl",
                                                              "summary.txt", "result.json"}
    assert [row["loss"] for row in table(tmp_path / "run")] == ["", ""]


def test_resume_takes_the_arguments_of_the_run_and_the_new_ones_count_more(whole):
    folder, _ = whole
    first = parse([*TRAINING, "--run-dir", str(folder)])
    again = parse(["--trust", "--resume", str(folder), "--policy", "none"])
    assert (again.model, again.steps, again.run) == (first.model, first.steps, str(folder))
    assert (first.policy, again.policy) == ("recompute", "none")
    assert parse(["--resume", "auto", "--run-dir", str(folder / "other"), "--model", "mlp"]).model == "mlp"  # a new run


# What is refused -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("flags", "message"), [
    (["--lr", "0.5"], "was made with no --lr, not --lr 0.5: to continue it, use the same value"),
    (["--seed", "6"], "was made with --seed 5, not --seed 6"),
    (["--batch", "100"], "was made with --batch 150, not --batch 100"),
    (["--steps", "20"], "was made with --steps 12, not --steps 20"),  # the cosine ends elsewhere
    (["--weight-decay", "0.5"], "was made with --weight-decay 0.0001, not --weight-decay 0.5"),
])
def test_a_checkpoint_of_another_training_is_refused(whole, capsys, flags, message):
    before = {p: p.read_bytes() for p in whole[0].rglob("*.*") if p.is_file()}
    assert message in message_of(capsys, "--trust", "--resume", whole[0], *flags)
    assert before == {p: p.read_bytes() for p in whole[0].rglob("*.*") if p.is_file()}


def test_flags_that_make_no_sense_are_refused(whole, capsys, tmp_path):
    assert "there is a run in it already; --resume" in message_of(capsys, *TRAINING, "--run-dir", whole[0])
    assert "there is no run folder, and no checkpoint" in message_of(capsys, "--resume", tmp_path)
    assert "give --run-dir DIR" in message_of(capsys, *TRAINING, "--resume", "auto")
    assert "give --run-dir DIR" in message_of(capsys, *TRAINING, "--checkpoint-every", "5")
    for flags in (["--checkpoint-every", 5], ["--resume", "auto"]):
        assert f"{flags[0]}: sim:p100 computes no values" in message_of(capsys, "--run-dir", tmp_path / "a", *flags)
    (tmp_path / "file").write_text("")
    assert "that is a file" in message_of(capsys, *TRAINING, "--run-dir", tmp_path / "file")
    (tmp_path / "arguments.json").write_text('{"arguments": [1]}')
    assert "expected an object with a list of strings" in message_of(capsys, "--resume", tmp_path)
    assert not (tmp_path / "a").exists()


# Stopped -------------------------------------------------------------------------------------------------------------
def signalled(number, at):
    """``Meter.add``, during the at-th call of which the program gets a signal."""
    add, calls = Meter.add, count(1)

    def patched(meter, loss):
        if next(calls) == at:
            os.kill(os.getpid(), number)
        return add(meter, loss)
    return patched


@pytest.mark.parametrize(("name", "typed"), [("train.py", "python train.py"), ("minidl train", "minidl train"),
                                             ("minidl explain", "minidl train")])
def test_the_way_to_go_on_is_the_command_that_was_typed(tmp_path, capsys, monkeypatch, name, typed):
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "add", signalled(signal.SIGINT, 2))
        assert program.main([*TRAINING, "--run-dir", str(tmp_path / "run")], name=name) == 130
    assert f"To go on: {typed} --resume " in capsys.readouterr().out.splitlines()[-1]
    assert program.main(["--help"], name=name) == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint_and_the_command_to_go_on(whole, tmp_path, capsys,
                                                                                        monkeypatch, number, code):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "add", signalled(number, 7))
        assert train.main([*TRAINING, "--run-dir", str(tmp_path / "a run")]) == code
    assert signal.getsignal(number) == before
    out = capsys.readouterr().out.splitlines()[-1]
    assert out.startswith("stopped after step 7 of 12, and saved. To go on: python train.py --resume '")
    assert train.main(["--trust", "--resume", str(tmp_path / "a run"),
                       "--save-weights", str(tmp_path / "parameters")]) == 0
    assert (tmp_path / "parameters").read_bytes() == whole[1]


def test_a_second_ctrl_c_does_what_it_always_did():
    with stop_after_the_step() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop and stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)  # the handler runs between two instructions


def test_ctrl_c_before_the_first_step_shows_no_traceback(capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "read_data", interrupted)
    assert train.main(TRAINING) == 130
    assert capsys.readouterr().err == "train.py: stopped\n"


def test_ctrl_c_in_a_terminal_ends_the_program_with_a_checkpoint(tmp_path):
    child = subprocess.Popen([sys.executable, str(ROOT / "train.py"), "--model", "mlp", "--data", "digits", "--steps",
                              "1000000", "--memory-budget", "64MiB", "--host-memory", "1MiB",
                              "--run-dir", str(tmp_path)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "metrics.csv").exists() or len((tmp_path / "metrics.csv").read_text()) < 200:
        time.sleep(0.02)
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in err
    assert Store(tmp_path / "checkpoints", keep=1).steps()


def test_without_a_run_folder_a_stop_says_that_nothing_was_saved(capsys, monkeypatch):
    monkeypatch.setattr(Meter, "add", signalled(signal.SIGINT, 1))
    assert train.main(TRAINING) == 130
    assert "stopped after step 1 of 12; nothing was saved: --run-dir DIR keeps" in capsys.readouterr().out


# Plans ---------------------------------------------------------------------------------------------------------------
def small_training(runtime):
    model = killed.network()
    images = np.random.default_rng(1).standard_normal((64, 1, 8, 8), np.float32)

    def loss(batch):
        return cross_entropy(model(runtime.tensor(images)), runtime.tensor(np.arange(64) % 10))
    return Trainer(model, SGD(model.parameters(), lr=0.1, momentum=0.9), loss, Schedule(0.1))


def save(runtime, trainer, folder):
    with runtime.iteration():
        return Store(folder, keep=1).save(trainer.steps_done, tensors_of(trainer.model, trainer.optimizer),
                                          documents_of(runtime, {}))


@pytest.mark.default(policy=["capuchin"])
@pytest.mark.parametrize("policy", ["capuchin", "auto"])
def test_the_plan_is_followed_again_after_one_iteration_without_being_made_again(tmp_path, policy):
    settings = {"memory_budget": "300KiB", "host_memory": "8MiB", "policy": policy}
    with Runtime("cpu:virtual", **settings) as runtime:
        trainer = small_training(runtime)
        for _ in range(5):
            trainer.step(None)
        saved, = [entry for entry in runtime.guide.entries if entry.plan.evictions]
        best = runtime.policy.keep(saved.proposal).plan
        path = save(runtime, trainer, tmp_path)
    with Runtime("cpu:virtual", **settings) as runtime:
        trainer = small_training(runtime)
        restore(read_checkpoint(path), runtime, trainer.model, trainer.optimizer, {})
        runtime.guide.policy.plan = None  # would be called to make one
        trainer.step(None)
        entry, = runtime.guide.entries
        assert (entry.trace, entry.plan.evictions, entry.plan.prefetches) == (saved.trace, best.evictions,
                                                                              best.prefetches)
        before = runtime.guide.diverged
        for _ in range(5):  # the policy goes on to improve it
            trainer.step(None)
        assert runtime.guide.diverged == before  # it was followed to its end
        runtime.check()


def test_the_runtime_shows_the_plan_that_is_followed_and_how_the_last_iteration_under_it_went():
    with Runtime("cpu:virtual", memory_budget="300KiB", host_memory="8MiB", policy="capuchin") as runtime:
        trainer = small_training(runtime)
        trainer.step(None)
        assert runtime.guide is not None and runtime.plan is None and runtime.followed() is None
        trainer.step(None)
        plan = runtime.plan
        assert plan.evictions and runtime.followed() is None  # made, and not followed yet
        trainer.step(None)
        trace, last = runtime.followed()
        assert last.plan is plan and trace is runtime.guide.entries[-1].trace
        assert last.seconds > 0 and (runtime.host_bytes, runtime.budget_bytes) == (8 << 20, 300 << 10)


def test_a_policy_without_plans_has_none_to_show():
    with Runtime("cpu:virtual", memory_budget="300KiB", host_memory="8MiB", policy="passive") as runtime:
        trainer = small_training(runtime)
        for _ in range(3):
            trainer.step(None)
        assert (runtime.guide, runtime.plan, runtime.followed()) == (None, None, None)


def test_a_plan_for_another_budget_is_made_anew(tmp_path):
    paths = []
    for budget in ("300KiB", "320KiB"):
        with Runtime("cpu:virtual", memory_budget=budget, host_memory="8MiB", policy="capuchin") as runtime:
            trainer = small_training(runtime)
            if paths:
                restore(read_checkpoint(paths[0]), runtime, trainer.model, trainer.optimizer, {})
            trainer.step(None)
            assert not any(entry.plan.evictions for entry in runtime.guide.entries)
            trainer.step(None)
            trainer.step(None)
            paths.append(save(runtime, trainer, tmp_path))


class Told(Capuchin):
    """Plans as Capuchin, and answers for checkpoints what it was told."""

    def __init__(self, answer):
        super().__init__()
        self.keep = self.recall = lambda _: answer


@pytest.mark.parametrize("answer, words", [
    (None, "not None"), (NO_PLAN, "not Proposal"), (SavedProposal({}), "not SavedProposal"),
    (SavedProposal(Plan(), {"share": -1.0}), "not SavedProposal"), (SavedProposal(Plan(), None), "not SavedProposal"),
])
def test_what_a_checkpoint_cannot_store_of_a_policy_is_an_error_that_names_it(tmp_path, answer, words):
    with Runtime("cpu:virtual", memory_budget="300KiB", host_memory="8MiB", policy=Told(answer)) as runtime:
        trainer = small_training(runtime)
        for _ in range(3):
            trainer.step(None)
        with pytest.raises(UserError, match=r"^policy 'capuchin': keep\(\) must return a SavedProposal .*, " + words):
            save(runtime, trainer, tmp_path)


@pytest.mark.parametrize("answer, words", [
    (None, "must return a Proposal with a Plan, not NoneType"),
    (Proposal(Plan({(99, 1): Action.DROP})), "returns a plan that cannot be followed: it names access 1 of tensor 99"),
])
def test_what_a_policy_recalls_is_checked_before_anything_is_restored(tmp_path, answer, words):
    settings = {"memory_budget": "300KiB", "host_memory": "8MiB"}
    with Runtime("cpu:virtual", **settings, policy="capuchin") as runtime:
        trainer = small_training(runtime)
        for _ in range(3):
            trainer.step(None)
        path = save(runtime, trainer, tmp_path)
    with Runtime("cpu:virtual", **settings, policy=Told(answer)) as runtime:
        trainer = small_training(runtime)
        before = [parameter.numpy().tobytes() for parameter in trainer.model.parameters()]
        with pytest.raises(UserError, match=r"^policy 'capuchin': recall\(\) " + words):
            restore(read_checkpoint(path), runtime, trainer.model, trainer.optimizer, {})
        assert [parameter.numpy().tobytes() for parameter in trainer.model.parameters()] == before


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A checkpoint with a plan, and the settings that it was made under."""
    settings = {"memory_budget": "300KiB", "host_memory": "8MiB", "policy": "auto"}
    with Runtime("cpu:virtual", **settings) as runtime:
        trainer = small_training(runtime)
        for _ in range(8):  # enough for a plan to have been tried
            trainer.step(None)
        return save(runtime, trainer, tmp_path_factory.mktemp("planned")), settings


def rows(key, name, value, at=0):
    """Change a field of a row of a document."""
    return lambda document: document[key][at].__setitem__(name, value)


@pytest.mark.parametrize(("document", "change", "message"), [
    ("state.json", lambda state: state["plans"][0].update(share=0.0), "state.json.*plans: a plan for 0 of the budget"),
    ("state.json", lambda state: state["plans"][0].update(share=10**400), r"plans\[0\]: expected numbers"),
    ("state.json", lambda state: state["plans"][0].update(share=float("nan")), r"plans\[0\]: expected numbers"),
    ("state.json", lambda state: state["counters"].update(steps=3), "after 3 steps, in the folder of step 8"),
    ("state.json", lambda state: state["counters"].update(steps=10**400), "expected counters"),
    ("state.json", lambda state: state["counters"].pop("seeds"), "no counter seeds, which this training has"),
    ("state.json", lambda state: state["plans"].append({}), "trace-1.json: at byte 0: there is no such file"),
    ("state.json", lambda state: state.update(counters=[]), "expected counters, plans and fixed arguments"),
    ("plan-0.json", rows("evictions", "tensor", 12345), "plan-0.json.*evicts tensor 12345, unused"),
    ("plan-0.json", rows("evictions", "access", 999), "plan-0.json.*it names access 999 of tensor"),
    ("plan-0.json", rows("offsets", "tensor", 12345), "plan-0.json.*gives an address to tensor 12345"),
    ("plan-0.json", rows("offsets", "offset", 100), "plan-0.json.*multiple of 256"),
    ("trace-0.json", rows("calls", "algorithms", []), r"trace-0.json.*length >= 1 - at `\$.calls\[0\].algorithms`"),
    ("trace-0.json", lambda trace: trace["calls"][0]["algorithms"][0].update(workspace=1 << 70), "trace-0.json.*<= "),
    ("trace-0.json", lambda trace: trace["tensors"].pop(), "trace-0.json.*is not listed in tensors"),
])
def test_a_checkpoint_that_was_changed_and_signed_again_is_refused_with_the_document(planned, tmp_path, document,
                                                                                     change, message):
    path, settings = planned
    copy = tmp_path / path.name
    shutil.copytree(path, copy)
    forge(copy, document, change)
    with Runtime("cpu:virtual", **settings) as runtime:
        trainer = small_training(runtime)
        before = [tensor.numpy().copy() for tensor in trainer.model.parameters()]
        with pytest.raises(CorruptFile, match=message):
            restore(read_checkpoint(copy), runtime, trainer.model, trainer.optimizer, {})
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_nothing_is_restored_from_a_checkpoint_of_another_model(tmp_path):
    with Runtime("cpu:virtual", memory_budget="8MiB", host_memory="8MiB", policy="none") as runtime:
        trainer = small_training(runtime)
        path = save(runtime, trainer, tmp_path)
        trainer.step(None)
        before = trainer.model.state_dict()
        plain = SGD(trainer.model.parameters(), lr=0.1)
        with pytest.raises(UserError, match="6 tensors are missing or unexpected, the first is optimizer.momentum.0"):
            restore(read_checkpoint(path), runtime, trainer.model, plain, {})
        wider = killed.network(num_classes=11)
        optimizer = SGD(wider.parameters(), lr=0.1, momentum=0.9)
        with pytest.raises(UserError, match=r"must be float32\[11, 128\]"):
            restore(read_checkpoint(path), runtime, wider, optimizer, {})
        after = trainer.model.state_dict()
        assert all(np.array_equal(before[name], after[name]) for name in before)
