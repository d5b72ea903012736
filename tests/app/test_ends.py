"""How commands end: exit code 0, 2, 130 or 143, at most one line on stderr; streams that take nothing fail nobody."""

import argparse
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import train
from minidl.__main__ import console
from minidl.cli import command
from minidl.cli.app.progress import Lines
from minidl.cli.command import finish
from minidl.cli.compare import main as compare
from minidl.cli.console import LONGEST_LINE, Printed, one_line, printable
from minidl.cli.convert import main as convert
from minidl.errors import UserError
from minidl.optim import Schedule
from minidl.training import Trainer

ROOT = Path(__file__).parents[2]
LENET = ["--model", "lenet", "--steps", "2", "--batch", "4"]


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def end_of(capsys, error):
    """(exit code, lines on stderr) of a command that raises this."""
    def story():
        raise error
    code = finish("prog", story)
    return code, lines(capsys)


# One line, one code --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("error", "code", "line"), [
    (UserError("no"), 2, "prog: error: no"),
    (MemoryError(), 2, "prog: error: this machine has less memory than was asked for"),
    (OSError(28, "No space left on device", "a/b"), 2, "prog: error: a/b: No space left on device"),
    (KeyboardInterrupt(), 130, "prog: stopped"),
    (UserError("a\nb\x1b[31mc\u202ed"), 2, "prog: error: a\\nb\\x1b[31mc\\u202ed"),
])
def test_whatever_ends_a_command_is_a_code_and_at_most_one_line(capsys, error, code, line):
    assert end_of(capsys, error) == (code, [line] if line else [])


@pytest.mark.parametrize("number", [7, 0])
def test_a_command_that_a_strangers_module_ends_says_where(capsys, number):
    code, (line,) = end_of(capsys, SystemExit(number))
    assert code == 2 and line.startswith(f"prog: error: SystemExit: {number} at ") and "test_ends.py:" in line


def test_help_is_a_success(capsys):
    assert finish("prog", lambda: int(bool(argparse.ArgumentParser().parse_args(["--help"])))) == 0
    assert capsys.readouterr().err == ""


def test_an_error_that_nobody_has_foreseen_is_one_line_with_its_place(capsys):
    code, (line,) = end_of(capsys, ZeroDivisionError("by\nzero"))
    assert code == 2 and line.startswith("prog: error: unforeseen ZeroDivisionError: by\\nzero at ")
    assert "test_ends.py:" in line


def test_what_is_long_is_shortened_and_a_path_is_not():
    path = "/".join(["a" * 50] * 5)
    assert one_line(f"cannot read {path}: no") == f"cannot read {path}: no"
    assert one_line("not " + "9" * 5000) == "not " + "9" * 150 + "..." + "9" * 150
    assert len(one_line("many words " * 10_000)) == LONGEST_LINE + 3
    assert printable("a\tb\r\x9b\udcff\x7f", keeps="\t") == "a\tb\\r\\x9b\\udcff\\x7f"


def test_a_value_of_a_flag_reaches_no_terminal_as_it_is(capsys):
    assert train.main(["--model", "\x1b[2Jx\ny" * 1000]) == 2
    line, = lines(capsys)
    assert "\x1b" not in line and len(line) < 1000
    assert train.main(["--batch", "9" * 5000 + "x"]) == 2
    line, = lines(capsys)
    assert len(line) < 1000


@pytest.mark.parametrize("main", [compare, convert])
@pytest.mark.parametrize("arguments", [[], ["--nothing"], ["a"], ["a\x1b", "b"], ["/nowhere/a.npz", "b.safetensors"]])
def test_other_commands_refuse_in_one_line(capsys, main, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    line, = lines(capsys)
    assert ": error: " in line and "unforeseen" not in line and "\x1b" not in line
    assert not list(tmp_path.iterdir())


# Signals -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_whatever_error_it_becomes_on_the_way(capsys, number, code):
    before = signal.getsignal(number)

    def story():
        try:
            os.kill(os.getpid(), number)
            time.sleep(1)
        except KeyboardInterrupt:  # as compiled code that was interrupted does
            raise SystemError("returned a result with an exception set") from None
    assert finish("prog", story) == code
    assert lines(capsys) == ["prog: stopped"] and signal.getsignal(number) == before


def test_a_look_at_test_data_tells_its_batches_and_stops_at_the_next_one(monkeypatch):
    """There are 15 of them."""
    seen, told = [], []

    def evaluate(trainer, batches):
        for batch in batches:
            seen.append(batch)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    monkeypatch.setattr(Lines, "set_description_str", lambda bar, text, refresh=True: told.append(text))
    code = train.main(["--model", "mlp", "--data", "digits", "--device", "cpu:virtual", "--batch", "24", "--steps", "1",
                       "--memory-budget", "64MiB", "--host-memory", "1MiB"])
    assert (code, len(seen), told[-1]) == (130, 1, "batch 1 of the test data")


class Freed:
    """Is interrupted while it is being freed: Python drops the exception."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)


def test_a_signal_that_comes_while_an_object_is_freed_is_not_lost(capsys):
    def story():
        Freed()
        for _ in range(500):
            time.sleep(0.01)
        return 0
    assert finish("prog", story) == 130
    assert lines(capsys) == ["prog: stopped"]


def test_a_command_in_another_thread_leaves_signals_alone(capsys):
    before, codes = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(target=lambda: codes.append(train.main(["--model", "nothing"])))
    thread.start()
    thread.join()
    assert codes == [2] and signal.getsignal(signal.SIGINT) == before


def test_a_command_that_ignores_ctrl_c_from_its_start_goes_on_ignoring_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["minidl"])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts what runs in its background
    try:
        assert console() == 0 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_while_modules_load_shows_no_traceback(tmp_path):
    """The first of two imports in a fresh process; whatever it is doing, nothing but the code may be seen of it."""
    script = ("import sys, runpy, os, signal, builtins\n"
              "found = builtins.__import__\n"
              "def load(name, *rest):\n"
              "    if name == 'minidl.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
              "    return found(name, *rest)\n"
              "builtins.__import__ = load\n"
              "sys.argv = ['train.py', '--list-models']; runpy.run_path('train.py', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (-signal.SIGINT, 130) and done.stderr == ""


# Streams -------------------------------------------------------------------------------------------------------------
class Full(io.StringIO):
    """A stream that takes nothing any more."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text=""):
        raise self.error

    flush = write


@pytest.mark.parametrize(("error", "code", "told"), [
    (BrokenPipeError(32, "Broken pipe"), 0, ""),  # who read it has seen enough
    (OSError(28, "No space left on device"), 2, "train.py: error: cannot write to standard output: No space left"),
    (ValueError("I/O operation on closed file"), 2, "train.py: error: cannot write to standard output: I/O operation"),
])
def test_a_stdout_that_takes_nothing_fails_no_training(monkeypatch, error, code, told, tmp_path):
    err = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Full(error))
    monkeypatch.setattr(sys, "stderr", err)
    assert train.main([*LENET, "--json", str(tmp_path / "r.json")]) == code
    assert (tmp_path / "r.json").exists()
    assert err.getvalue().splitlines()[-1].startswith(told) and err.getvalue().count("error") == bool(told)


@pytest.mark.parametrize("stream", [None, Full(OSError(5, "Input/output error"))])
def test_a_stderr_that_takes_nothing_fails_no_training(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    assert train.main(LENET) == 0
    assert "images/s" in capsys.readouterr().out


def test_a_stream_of_ascii_shows_the_rest_escaped():
    raw = io.BytesIO()
    stream = Printed(io.TextIOWrapper(raw, encoding="ascii"), keeps="\n")
    stream.write("é \udcff €\n")
    stream.flush()
    assert raw.getvalue() == b"\\xe9 \\udcff \\u20ac\n"


def shell(line):
    return subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)})


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code", "err"), [
    ("$PYTHON train.py --list-models | head -1", 0, 0),
    ("$PYTHON train.py --list-models > /dev/full", 2, 1),
    ("$PYTHON train.py --list-models >&-", 0, 0),
    ("$PYTHON train.py --model x 2>&-", 2, 0),
    ("$PYTHON train.py --model lenet --steps 1 >&- 2>&- <&-", 0, 0),
    ("PYTHONIOENCODING=ascii $PYTHON train.py --model é", 2, 1),
    ("$PYTHON -m minidl lab placement /dev/null", 2, 1),
])
def test_closed_and_full_streams_from_a_shell(line, code, err):
    done = shell(line)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, err)


def test_the_result_alone_goes_to_stdout_for_a_dash(capsys, tmp_path, monkeypatch):
    import json

    monkeypatch.chdir(tmp_path)
    assert train.main([*LENET, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["batch"] == 4 and "images/s" in err and not list(tmp_path.iterdir())


# What used to be a traceback -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("flags", "message"), [
    (["--model", "numpy:zeros"], "cannot make the model numpy:zeros: TypeError: zeros() missing"),
    (["--model", "builtins:dict"], "cannot make the model builtins:dict: its parameters cannot be inspected"),
    (["--model", "minidl.nn:Linear"], "cannot make the model minidl.nn:Linear: TypeError: "),
    (["--model", "this.is.nothing:x"], "cannot load the model this.is.nothing:x: ModuleNotFoundError"),
    (["--model", "sys:exit"], "cannot make the model sys:exit: SystemExit"),
    (["--model", "train:main"], "train.py is a command, and runs within no other"),
    (["--model", "mlp", "--data", "digits", "--epochs", str(1 << 53)], "--epochs 9007199254740992: 53"),
    (["--model", "bert-tiny", "--data", "tests/support/text/stories.txt", "--vocab-size", str(1 << 53)],
     "--vocab-size must be at most 1"),
    ([*LENET, "--schedule", "step", "--decay-steps", "1", "--decay-rate", "1e30", "--steps", "13"],
     "the learning rate of step 11 overflows: 0.05 x 1e+30 to the power of 11"),
])
def test_what_cannot_work_is_refused_by_name(capsys, flags, message):
    assert train.main(flags) == 2
    assert lines(capsys)[-1].startswith(f"train.py: error: {message}")


@pytest.mark.parametrize("function", ["numpy:zeros", "os:getcwd"])
def test_a_function_that_makes_no_model_is_told_what_one_is(capsys, function):
    assert train.main(["--model", function]) == 2
    assert ("a model is a function like build(num_classes=1000, in_channels=3), both with defaults, that returns a "
            "minidl.nn.Module") in lines(capsys)[-1]


@pytest.mark.parametrize("flag", ["--run-dir", "--resume", "--save-weights", "--json", "--plan", "--save-plan",
                                  "--save-trace", "--weights", "--data", "--vocab", "--token-file"])
def test_an_empty_name_is_none(capsys, flag):
    """What a shell makes of a variable that is not set."""
    assert train.main([*LENET, flag, ""]) == 2
    assert lines(capsys) == [f"train.py: error: argument {flag}: must name a file or a folder, and is empty"]


def test_what_is_no_archive_is_said_to_be_none(capsys, tmp_path):
    (tmp_path / "a.npz").write_bytes(b"neither a zip archive nor an array")
    assert convert([str(tmp_path / "a.npz"), str(tmp_path / "b.safetensors")]) == 2
    line, = lines(capsys)
    assert line.endswith("a.npz: not a readable .npz file: not an archive")


@pytest.mark.parametrize(("name", "value", "message"), [
    ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT=1: kernels and plans are compiled code"),
    ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS=0 must be from 1 to 1024"),
    ("NUMBA_NUM_THREADS", "100000", "NUMBA_NUM_THREADS=100000 must be from 1 to 1024"),
    ("NUMBA_THREADING_LAYER", "nonsense", "NUMBA_THREADING_LAYER=nonsense is none of default, tbb"),
])
def test_settings_of_numba_under_which_nothing_runs_are_refused_before_the_start(capsys, monkeypatch, name, value,
                                                                                message):
    monkeypatch.setenv(name, value)
    assert train.main(LENET) == 2
    assert message in lines(capsys)[-1]


def test_a_learning_rate_beyond_floats_is_refused():
    with pytest.raises(UserError, match="overflows"):
        Schedule(0.1, "step", every=1, rate=1e308)(2)


def test_a_transformer_can_be_explained(capsys):
    flags = ["--model", "bert-tiny", "--batch", "8", "--steps", "5", "--memory-budget", "60%", "--explain", "3",
             "--slices", "1"]
    assert train.main(flags) == 0
    assert "plan: what leaves the device" in capsys.readouterr().out


def test_the_development_mode_shows_where_an_unforeseen_error_comes_from():
    script = "from minidl.cli.command import finish\nfinish('prog', lambda: 1 / 0)"
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1 and "Traceback" in done.stderr and "ZeroDivisionError" in done.stderr
    assert command.REFUSED == 2
