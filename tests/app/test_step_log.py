"""--csv, --tensorboard, --logger: a row a step, also of a run that goes on; a stranger's file stays as it is."""

import csv
import sys
from importlib import util

import pytest
from flags import NET

import train
from minidl.__main__ import main as minidl_command
from minidl.cli.app.flags import parse
from minidl.cli.app.run_folder import COLUMNS
from minidl.cli.app.step_log import StepLog
from minidl.errors import UserError

STEPS = [*NET, "--policy", "passive", "--quiet"]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_has_a_row_for_every_step_and_is_that_of_the_run_folder(tmp_path):
    table = tmp_path / "steps.csv"
    assert train.main([*STEPS, "--steps", "3", "--csv", str(table), "--run-dir", str(tmp_path / "run")]) == 0
    assert table.read_bytes() == (tmp_path / "run" / "metrics.csv").read_bytes()
    found = rows(table)
    assert tuple(found[0]) == COLUMNS and [row["step"] for row in found] == ["1", "2", "3"]
    assert all(float(row["seconds"]) > 0 and int(row["swapped_out_bytes"]) > 0 for row in found)
    assert all(row["loss"] == "" for row in found)  # a simulator has none


def test_a_run_that_goes_on_keeps_the_rows_of_the_steps_before_it_and_no_later_ones(tmp_path):
    table = tmp_path / "steps.csv"
    log = StepLog(parse(["--csv", str(table)]))
    log.begin(0)
    for step in (1, 2, 3):
        log.add({"step": step, "loss": step / 2})
    log.begin(2)
    log.add({"step": 3, "loss": float("nan")})
    assert [(row["step"], row["loss"]) for row in rows(table)] == [("1", "0.5"), ("2", "1.0"), ("3", "")]


def test_a_strangers_file_is_refused_before_the_first_step(tmp_path, capsys):
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("name,value\na,1\n")
    assert train.main([*STEPS, "--steps", "1", "--csv", str(theirs)]) == 2
    assert "theirs.csv" in capsys.readouterr().err and theirs.read_text() == "name,value\na,1\n"
    assert train.main([*STEPS, "--steps", "1", "--csv", str(theirs), "--json", str(theirs), "--force"]) == 2
    assert "is named for two files" in capsys.readouterr().err


@pytest.mark.skipif(util.find_spec("tensorboardX") is not None, reason="tensorboardX is installed")
def test_tensorboard_without_its_library_is_an_error_that_names_the_extra(tmp_path):
    with pytest.raises(UserError, match=r"minidl\[tensorboard\]"):
        StepLog(parse(["--tensorboard", str(tmp_path)]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_place_where_no_folder_can_be_is_an_error_that_names_it(tmp_path):
    pytest.importorskip("tensorboardX", reason="extra tensorboard")
    (tmp_path / "file").write_text("theirs")
    log = StepLog(parse(["--tensorboard", str(tmp_path / "file" / "board")]))
    with pytest.raises(UserError, match=r"cannot write .*board"):
        log.begin(0)
    log.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboards_files_hold_the_numbers_of_each_step(tmp_path):
    pytest.importorskip("tensorboardX", reason="extra tensorboard")
    from tensorboardX.proto.event_pb2 import Event

    log = StepLog(parse(["--tensorboard", str(tmp_path / "board")]))
    log.begin(0)
    log.add({"step": 1, "seconds": 0.5, "loss": float("nan")})
    log.add({"step": 2, "seconds": 0.25, "peak_bytes": 1 << 40})
    log.close()
    (file,) = (tmp_path / "board").iterdir()
    data, found = file.read_bytes(), []
    while data:  # a record: its length in 8 bytes, a checksum in 4, the event, a checksum in 4
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12:12 + length])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        data = data[16 + length:]
    assert found == [(1, "seconds", 0.5), (2, "seconds", 0.25), (2, "peak_bytes", float(1 << 40))]


LOGGER = """
seen = []


def log(numbers, step):
    seen.append((step, numbers))


def full(numbers, step):
    raise OSError("the disk is full")


nothing = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the current folder, with functions for --logger; yields the module's name."""
    (tmp_path / "my_logger.py").write_text(LOGGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_logger"
    sys.modules.pop("my_logger", None)


def test_a_logger_gets_the_numbers_of_every_step_and_the_steps_number_and_no_empty_columns(mine):
    assert train.main([*STEPS, "--steps", "2", "--logger", f"{mine}:log"]) == 0
    (first, numbers), (second, _) = sys.modules[mine].seen
    assert (first, second) == (1, 2) and numbers["seconds"] > 0 and numbers["swapped_out_bytes"] > 0
    assert set(numbers) < set(COLUMNS) - {"step", "loss"} and None not in numbers.values()


def test_a_logger_that_fails_ends_the_run_with_its_name_and_the_step_is_in_the_run_folder(mine, tmp_path, capsys):
    run = tmp_path / "run"
    assert train.main([*STEPS, "--steps", "2", "--logger", f"{mine}:full", "--run-dir", str(run)]) == 2
    assert f"--logger {mine}:full: OSError: the disk is full" in capsys.readouterr().err
    assert [row["step"] for row in rows(run / "metrics.csv")] == ["1"]


@pytest.mark.parametrize(("name", "why"), [
    ("no_such_module:log", "nor is it in the current folder"), ("my_logger:nothing", "cannot be called"),
    ("my_logger:lgo", "has no attribute"), ("my_logger", "package.module:function names one")])
def test_a_logger_that_is_no_function_is_refused_before_the_first_step(mine, name, why, capsys):
    assert train.main([*STEPS, "--steps", "1", "--logger", name]) == 2
    said = capsys.readouterr()
    assert why in said.err and "step 1" not in said.out + said.err


def test_the_logger_of_a_run_folder_is_not_called_without_trust(mine, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert train.main([*STEPS, "--steps", "1", "--logger", f"{mine}:log", "--run-dir", run]) == 0
    assert train.main(["--resume", run, "--steps", "2"]) == 2
    assert f"its logger is {mine}:log, code that is not minidl's: --trust runs it" in capsys.readouterr().err
    assert parse(["--resume", run, "--steps", "2", "--trust"]).logger == f"{mine}:log"
    assert parse(["--resume", run, "--steps", "2", "--logger", "their:own"]).logger == "their:own"  # given now


def test_to_view_a_run_folder_writes_no_second_row_and_calls_no_logger(mine, tmp_path):
    table, run = tmp_path / "steps.csv", str(tmp_path / "run")
    assert train.main([*STEPS, "--steps", "3", "--csv", str(table), "--logger", f"{mine}:log", "--run-dir", run]) == 0
    before, seen = table.read_bytes(), list(sys.modules[mine].seen)
    assert minidl_command(["view", run, "--out", str(tmp_path / "page.html")]) == 0
    assert table.read_bytes() == before and sys.modules[mine].seen == seen
