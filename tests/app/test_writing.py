"""Files that commands leave: whole or not at all, by rename, never over a stranger's; a run folder has one writer."""

import json
import os
import stat
from pathlib import Path

import killed
import numpy as np
import pytest
from killed import TRAINING
from watched_os import watch

import train
from minidl.checkpoint import Store
from minidl.checkpoint.safetensors import is_own, read_arrays, write_arrays
from minidl.cli.app.flags import parse
from minidl.cli.app.run_folder import RunFolder, read_arguments
from minidl.cli.app.run_lock import RunLock
from minidl.cli.app.words import without
from minidl.cli.convert import main as convert
from minidl.cli.lab.placement import main as placement
from minidl.device import profiles
from minidl.errors import UserError
from minidl.outside import machine, writing
from minidl.outside.units import flag_bytes, parse_bytes
from minidl.outside.writing import begins_with, open_whole, require_place, write_whole
from minidl.plan.formats import is_plan
from minidl.plan.trace_format import is_trace
from minidl.report import result
from minidl.training import Trainer

MLP = ["--model", "mlp", "--data", "digits", "--device", "cpu:virtual", "--memory-budget", "64MiB", "--host-memory",
       "1MiB", "--batch", "24", "--steps", "3"]
OURS = begins_with(b"ours")


def refusal(capsys, main, *arguments):
    assert main([*map(str, arguments)]) == 2
    line, = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert "unforeseen" not in line
    return line


def kept(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


# A file -----------------------------------------------------------------------------------------------------------
def test_a_file_has_the_mode_that_the_umask_leaves_and_replaces_ours(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write_whole(path, b"ours 1", OURS)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        write_whole(path, [b"ours", memoryview(b" 2")], OURS)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"ours 2" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("make", "message"), [
    (lambda path: path.write_bytes(b"theirs"), "minidl did not write the existing file; --force"),
    (lambda path: path.symlink_to("elsewhere"), "it is a link"),
    (lambda path: path.mkdir(), "Is a directory"),
    (lambda path: os.mkfifo(path), "it is a pipe"),
])
@pytest.mark.parametrize("act", [lambda path, **how: require_place(path, OURS, **how),
                                 lambda path, **how: write_whole(path, b"ours", OURS, **how)])
def test_what_is_not_ours_stays_as_it_is(tmp_path, make, message, act):
    path = tmp_path / "file"
    make(path)
    before = os.lstat(path)
    with pytest.raises(UserError, match=f"^cannot write {path}: .*{message}"):
        act(path)
    assert os.lstat(path) == before and os.listdir(tmp_path) == ["file"]
    if not path.is_file():
        with pytest.raises(UserError, match=message):
            act(path, force=True)


def test_force_writes_over_a_strangers_file_and_an_empty_one_is_nobodys(tmp_path):
    (tmp_path / "a").write_bytes(b"theirs")
    write_whole(tmp_path / "a", b"ours", OURS, force=True)
    (tmp_path / "b").touch()
    write_whole(tmp_path / "b", b"ours", OURS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"ours"
    for path, message in ((tmp_path / "no" / "a", "No such file"), (tmp_path / ("n" * 300), "File name too long"),
                          (tmp_path / "a" / "b", "Not a directory"), ("/dev/full", "it is a device"),
                          ("a\0b", "cannot contain NUL")):
        with pytest.raises(UserError, match=message):
            require_place(path, OURS)
    write_whole(tmp_path / ("n" * 255), b"ours", OURS)  # the longest name that there may be


def test_what_fails_half_way_leaves_what_was_there(tmp_path):
    def failing():
        yield b"ours 2, first part"
        raise ZeroDivisionError

    write_whole(tmp_path / "file", b"ours 1", OURS)
    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "file", failing(), OURS)
    with pytest.raises(KeyboardInterrupt), open_whole(tmp_path / "other", OURS) as file:
        file.write(b"ours")
        raise KeyboardInterrupt
    assert kept(tmp_path) == {tmp_path / "file": b"ours 1"}


def test_files_of_ours_are_known_by_their_beginning(tmp_path):
    write_arrays(tmp_path / "w", {"a": np.zeros(3, np.float32)})
    assert is_own((tmp_path / "w").read_bytes()) and read_arrays(tmp_path / "w").keys() == {"a"}
    assert train.main(["--model", "lenet", "--steps", "4", "--memory-budget", "60%", "--save-plan", str(tmp_path / "p"),
                       "--save-trace", str(tmp_path / "t"), "--json", str(tmp_path / "j")]) == 0
    heads = {name: (tmp_path / name).read_bytes()[:writing.HEAD_BYTES] for name in "wptj"}
    heads["c"] = profiles.to_json(profiles.get("p100")).encode()
    owners = {"w": is_own, "p": is_plan, "t": is_trace, "j": result.is_own, "c": profiles.is_own}
    assert [(name, other) for name, own in owners.items() for other, head in heads.items() if own(head)] == [
        (name, name) for name in owners]


# At the end of a run ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flag", ["--save-weights", "--json", "--save-trace"])
@pytest.mark.parametrize("place", ["theirs", "folder", "link", "no/where"])
def test_a_place_that_cannot_be_written_is_refused_before_training(capsys, tmp_path, flag, place):
    (tmp_path / "theirs").write_text("important")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("theirs")
    before = sorted(os.listdir(tmp_path))
    line = refusal(capsys, train.main, *MLP, "--run-dir", tmp_path / "run", flag, tmp_path / place)
    assert f"cannot write {tmp_path / place}: " in line
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "theirs").read_text() == "important"


def test_one_name_for_two_files_is_refused(capsys, tmp_path):
    assert "is named for two files" in refusal(capsys, train.main, *MLP, "--save-weights", tmp_path / "a", "--json",
                                               f"{tmp_path}/./a")


@pytest.mark.parametrize("run", [True, False])
def test_a_disk_that_is_full_at_the_end_costs_the_file_and_says_where_the_state_is(capsys, tmp_path, monkeypatch, run):
    def refuse(change):  # neither in the run folder nor where places are checked before training
        if change.name == "fsync" and Path(change.paths[0]).name.startswith((".w.", ".j.")):
            raise OSError(28, "No space left on device")

    watch(refuse, monkeypatch.setattr)
    flags = ["--run-dir", tmp_path / "run"] if run else []
    line = refusal(capsys, train.main, *MLP, *flags, "--save-weights", tmp_path / "w", "--json", tmp_path / "j")
    assert f"cannot write {tmp_path / 'w'}: No space left on device; cannot write {tmp_path / 'j'}: No space" in line
    assert not (tmp_path / "w").exists() and not (tmp_path / "j").exists()
    if not run:
        assert line.endswith("nothing else keeps the state of this run: --run-dir DIR does")
        assert not list(tmp_path.iterdir())
        return
    assert f"the state of the run is in {tmp_path / 'run' / 'checkpoints' / 'step-00000003'}" in line
    assert {"summary.txt", "result.json"} < set(os.listdir(tmp_path / "run"))
    monkeypatch.undo()
    assert train.main(["--resume", str(tmp_path / "run"), "--save-weights", str(tmp_path / "w")]) == 0
    assert (tmp_path / "w").exists()


def test_a_last_checkpoint_that_cannot_be_written_keeps_no_other_file_from_being_written(capsys, tmp_path, monkeypatch):
    def refuse(change):
        if ".step-00000003" in change.paths[0]:
            raise OSError(28, "No space left on device")

    watch(refuse, monkeypatch.setattr)
    line = refusal(capsys, train.main, *MLP, "--run-dir", tmp_path / "run", "--checkpoint-every", "2", "--save-weights",
                   tmp_path / "w", "--json", tmp_path / "j")
    assert "cannot write the checkpoint " in line and "the state of the run is in " in line and "step-00000002" in line
    assert {"w", "j"} < set(os.listdir(tmp_path)) and (tmp_path / "run" / "summary.txt").exists()


def test_other_commands_write_over_nothing_of_a_strangers(capsys, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    (tmp_path / "log.csv").write_text("id,lower,upper,size\na,0,2,5\n")
    (tmp_path / "b.safetensors").write_text("important")
    for main, arguments in ((convert, [tmp_path / "a.npz", tmp_path / "b.safetensors"]),
                            (placement, [tmp_path / "log.csv", "--save", tmp_path / "log.csv"])):
        before = kept(tmp_path)
        assert "minidl did not write the existing file" in refusal(capsys, main, *arguments)
        assert kept(tmp_path) == before
        assert main([*map(str, arguments), "--force"]) == 0
        assert main([*map(str, arguments)]) == 0  # it is ours now
    assert read_arrays(tmp_path / "b.safetensors")["x"].shape == (2,)


# Run folders --------------------------------------------------------------------------------------------------------
def test_a_folder_has_one_writer(capsys, tmp_path):
    first = RunLock(tmp_path)
    first.take()
    first.take()
    assert "another run is writing in it" in refusal(capsys, train.main, *MLP, "--run-dir", tmp_path)
    assert not list(tmp_path.iterdir())
    first.close()
    assert train.main([*MLP, "--run-dir", str(tmp_path)]) == 0
    RunLock(tmp_path / "nowhere").take()
    RunLock(None).take()


def test_who_comes_second_to_a_new_folder_is_refused_when_it_would_begin(capsys, tmp_path):
    folder = RunFolder(tmp_path / "run", keep=1)
    assert train.main([*MLP, "--run-dir", str(tmp_path / "run")]) == 0
    before = kept(tmp_path)
    with pytest.raises(UserError, match="there is a run in it already"):
        folder.begin([], None, RunLock(tmp_path / "run"), after=0, anew=True)
    assert kept(tmp_path) == before


def test_a_start_that_failed_does_not_occupy_its_folder(capsys, tmp_path):
    (tmp_path / "w.safetensors").write_text("no weights")
    refusal(capsys, train.main, *MLP, "--run-dir", tmp_path / "run", "--weights", tmp_path / "w.safetensors")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "arguments.json").write_text('{"arguments": []}')  # and no step done
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert train.main([*MLP, "--run-dir", str(tmp_path / "run")]) == 0
    assert "there is a run in it already" in refusal(capsys, train.main, *MLP, "--run-dir", tmp_path / "run")


def test_what_a_killed_run_has_left_goes_when_it_goes_on_though_nothing_is_left_to_do(tmp_path):
    assert train.main([*MLP, "--run-dir", str(tmp_path)]) == 0
    before = kept(tmp_path)
    (tmp_path / ".summary.txt").write_text("half of")
    (tmp_path / "checkpoints" / ".step-00000002.old").mkdir()
    assert train.main(["--resume", str(tmp_path)]) == 0
    assert kept(tmp_path).keys() == before.keys() and len(os.listdir(tmp_path / "checkpoints")) == 1


def test_a_run_that_goes_on_has_the_memory_that_was_resolved(tmp_path, monkeypatch):
    flags = ["--model", "mlp", "--data", "digits", "--device", "cpu:virtual", "--steps", "2", "--batch", "24"]
    monkeypatch.setattr("minidl.cli.app.default_memory.free_memory", lambda: 100 << 20)
    assert train.main([*flags, "--run-dir", str(tmp_path)]) == 0
    _, resolved = read_arguments(tmp_path)
    assert (resolved.device, resolved.memory_budget, resolved.host_memory, resolved.batch) == (
        "cpu:virtual", (60 << 20) // 256 * 256, 30 << 20, 24)
    again = parse(["--resume", str(tmp_path)])
    assert (again.memory_budget, again.host_memory, again.batch) == (resolved.memory_budget, 30 << 20, 24)
    assert parse(["--resume", str(tmp_path), "--memory-budget", "1MiB"]).memory_budget == 1 << 20
    assert parse(["--resume", str(tmp_path), "--device", "cpu"]).memory_budget is None


def test_steps_take_the_place_of_epochs_when_a_run_goes_on_and_a_policy_that_of_a_plan(tmp_path):
    assert train.main([*MLP[:-2], "--epochs", "1", "--batch", "400", "--run-dir", str(tmp_path)]) == 0
    assert train.main(["--resume", str(tmp_path), "--steps", "5"]) == 0
    assert train.main(["--resume", str(tmp_path), "--epochs=2"]) == 0
    words, _ = read_arguments(tmp_path)
    assert "--steps" not in words and "--epochs=2" in words and "1" not in words
    assert Store(tmp_path / "checkpoints", keep=1).steps()[-1] == 6
    assert without(["--plan", "a", "--model", "b", "--plan=c", "-b"], "--plan") == ["--model", "b", "-b"]


def test_a_folders_own_code_runs_only_for_who_trusts_it(capsys, tmp_path, monkeypatch):
    assert train.main([*TRAINING, "--steps", "13", "--run-dir", str(tmp_path)]) == 0
    monkeypatch.setattr(killed, "network", None)  # it is not even loaded
    line = refusal(capsys, train.main, "--resume", tmp_path)
    assert f"--resume {tmp_path}: its model is killed:network, code that is not minidl's: --trust runs it" in line
    noted = json.loads((tmp_path / "arguments.json").read_text())
    noted["arguments"].append("--trust")  # a folder does not speak for itself
    (tmp_path / "arguments.json").write_text(json.dumps(noted))
    assert "--trust runs it" in refusal(capsys, train.main, "--resume", tmp_path)
    assert parse(["--trust", "--resume", str(tmp_path)]).model == "killed:network"
    assert parse(["--model", "killed:network", "--resume", str(tmp_path)]).model == "killed:network"


def test_a_folder_does_not_say_that_a_strangers_file_may_be_written_over(capsys, tmp_path):
    (tmp_path / "theirs").write_text("important")
    words = [*MLP, "--force", "--save-weights", str(tmp_path / "theirs")]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "arguments.json").write_text(json.dumps({"arguments": words}))
    assert "--force overwrites it" in refusal(capsys, train.main, "--resume", tmp_path / "run")
    assert (tmp_path / "theirs").read_text() == "important"
    assert train.main(["--resume", str(tmp_path / "run"), "--force"]) == 0
    assert "--force" not in read_arguments(tmp_path / "run")[0]


# Whatever ends a run, what was done is written first ------------------------------------------------------------------
@pytest.mark.parametrize(("error", "saved"), [(UserError("no"), True), (KeyboardInterrupt, False)])
def test_a_run_that_ends_in_its_evaluation_has_its_row_and_its_checkpoint(tmp_path, monkeypatch, capsys, error, saved):
    def failing(trainer, batches):
        raise error

    monkeypatch.setattr(Trainer, "evaluate", failing)
    assert train.main([*MLP, "--run-dir", str(tmp_path)]) == (2 if saved else 130)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    # In the middle of an interrupted operation nobody knows what memory holds.
    assert Store(tmp_path / "checkpoints", keep=1).steps() == ([3] if saved else [])


def test_a_step_that_fails_leaves_the_checkpoint_of_the_steps_before_it_alone(tmp_path, monkeypatch, capsys):
    step = Trainer.step

    def failing(trainer, batch):
        if trainer.steps_done == 2 and batch.images is not None:  # and not in a trial
            trainer.sound = False  # as within a step
            raise UserError("no")
        return step(trainer, batch)

    monkeypatch.setattr(Trainer, "step", failing)
    assert train.main([*MLP, "--run-dir", str(tmp_path), "--checkpoint-every", "1"]) == 2
    assert Store(tmp_path / "checkpoints", keep=3).steps() == [1, 2]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_batch_that_cannot_be_read_ends_the_run_with_the_steps_before_it_saved(tmp_path, monkeypatch, capsys):
    from minidl.data import Digits

    batches = Digits.batches

    def failing(data, batch, *, seed=0, skip=0):
        for number, made in enumerate(batches(data, batch, seed=seed, skip=skip)):
            if number == 2:
                raise UserError("broken")
            yield made

    monkeypatch.setattr(Digits, "batches", failing)
    assert "broken" in refusal(capsys, train.main, *MLP, "--run-dir", tmp_path)
    assert Store(tmp_path / "checkpoints", keep=3).steps() == [2]


def test_a_loss_that_is_no_number_is_noted_and_not_saved(tmp_path, capsys):
    assert "the loss is nan" in refusal(capsys, train.main, *MLP, "--lr", "1e30", "--run-dir", tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() and not Store(tmp_path / "checkpoints", keep=3).steps()


# Sizes --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nbytes", [1, 700, 3071, 3072, 5_000_000, 83_051_532_032, 2**50 + 1])
def test_an_advised_size_is_one_that_flags_take_and_enough(nbytes):
    assert nbytes <= parse_bytes(flag_bytes(nbytes)) <= nbytes * 301 // 300
    assert flag_bytes(83_051_532_032) == "77.35GiB" and len(flag_bytes(nbytes)) <= 10


def test_the_limit_of_a_container_counts_and_so_do_those_around_it(tmp_path):
    def group(folder, limit, used, inactive):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("max", limit), ("current", used), ("stat", f"inactive_file {inactive}")):
            (folder / f"memory.{name}").write_text(f"{text}\n")

    membership = tmp_path / "membership"
    membership.write_text("0::/outer/inner\n")
    groups = tmp_path / "groups"
    group(groups / "outer" / "inner", "max", 70, 5)
    assert machine.free_in_groups(groups, membership) is None
    group(groups / "outer", 100, 70, 5)
    assert machine.free_in_groups(groups, membership) == 35
    group(groups / "outer" / "inner", 80, 70, 5)
    assert machine.free_in_groups(groups, membership) == 15
    assert machine.free_in_groups(groups, tmp_path / "nothing") is None
