"""Flags from a file of YAML."""

import json
import sys

import pytest

from minidl.cli.app.flags import parse
from minidl.errors import UserError

pytest.importorskip("yaml")


def test_a_file_s_flags_are_those_of_the_command_line_which_counts_more(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: vgg16\nbatch: 340\nmemory-budget: 50%\nweight_decay: 1e-3\nno-fused: true\nquiet: false\n")
    options = parse(["--config", str(path), "--batch", "8"])
    words = ["--model", "vgg16", "--memory-budget", "50%", "--weight-decay", "1e-3", "--no-fused", "--batch", "8"]
    assert options == parse(words)
    assert options.arguments == ("--model=vgg16", "--batch=340", "--memory-budget=50%", "--weight-decay=1e-3",
                                 "--no-fused", "--batch", "8")
    assert parse([f"--config={path}"]).batch == 340


@pytest.mark.parametrize(("text", "message"), [
    ("- a\n- b\n", "a list of names and values"), ("a: [", "no YAML"),
    ("batch: [1, 2]\n", "--batch: one value, not list"),
    ("trust: true\n", "--trust is for the command line alone"), ("config: a.yaml\n", "for the command line alone"),
    ("nothing: 3\n", "unknown argument --nothing"), ("batch: many\n", "must be max or a whole number"),
    ("1: 2\n", "a list of names and values"), ("[" * 3000, "no YAML")])
def test_what_is_no_list_of_flags_is_refused(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        parse(["--config", str(path)])


def test_a_file_that_is_not_there_and_a_missing_package_are_told(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="nothing.yaml"):
        parse(["--config", str(tmp_path / "nothing.yaml")])
    with pytest.raises(UserError, match="one file"):
        parse(["--config", "a", "--config", "b"])
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UserError, match=r"pip install \"minidl\[config\]\""):
        parse(["--config", "a.yaml"])


def test_former_names_of_flags_and_policies_are_accepted_and_a_line_names_the_new_ones(capsys, tmp_path):
    now = parse(["--run-dir", "a", "--save-weights=b", "--keep-checkpoints", "7", "--no-measured-times",
                 "--policy", "str-ilp"])
    assert capsys.readouterr().err == ""
    assert parse(["--run", "a", "--save=b", "--keep", "7", "--static-times", "--policy", "str"]) == now
    assert capsys.readouterr().err.splitlines() == [
        "--run is now: --run-dir", "--save is now: --save-weights", "--keep is now: --keep-checkpoints",
        "--static-times is now: --no-measured-times", "policy str is now: str-ilp"]
    (tmp_path / "arguments.json").write_text(json.dumps({"arguments": ["--model", "mlp", "--keep", "5"]}))
    assert parse(["--resume", str(tmp_path)]).keep == 5  # a folder made before
    assert capsys.readouterr().err == ""
