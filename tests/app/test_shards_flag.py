"""--shard-bytes: when parameters are kept in shards, what is told, and what it changes."""

import json

import pytest

import train

VGG = ["--model", "vgg11", "--batch", "4", "--device", "sim:p100", "--policy", "passive", "--steps", "2"]
ON_DIGITS = ["--model", "lenet", "--data", "digits", "--batch", "100", "--device", "cpu", "--host-memory", "64MiB",
             "--memory-budget", "16MiB"]


def test_parameters_are_whole_where_they_fit_and_in_shards_where_they_do_not(tmp_path, capsys):
    assert train.main([*VGG, "--memory-budget", "2GiB"]) == 0
    assert "in shards" not in capsys.readouterr().out
    assert train.main([*VGG, "--memory-budget", "200MiB", "--json", str(tmp_path / "result")]) == 0
    assert "parameters of more than 25.0 MiB in shards of no more" in capsys.readouterr().out
    assert json.loads((tmp_path / "result").read_text())["peak_bytes"] <= 200 << 20


def test_a_run_in_shards_learns_as_a_whole_one_and_goes_on_in_shards_alone(tmp_path, capsys):
    losses = {}
    for shards in ("auto", "8KiB"):
        flags = [*ON_DIGITS, "--steps", "4", "--shard-bytes", shards]
        assert train.main([*flags, "--json", str(tmp_path / shards), "--run-dir", str(tmp_path / f"run-{shards}")]) == 0
        losses[shards] = json.loads((tmp_path / shards).read_text())["loss"]
    assert losses["8KiB"] == pytest.approx(losses["auto"], rel=1e-5)
    capsys.readouterr()
    going_on = ["--resume", str(tmp_path / "run-8KiB"), "--steps", "6"]
    assert train.main([*going_on, "--shard-bytes", "9KiB"]) == 2
    assert "--shard-bytes" in capsys.readouterr().err
    assert train.main(going_on) == 0


@pytest.mark.parametrize("wrong", ["0", "-1", "two"])
def test_a_wrong_size_is_refused(capsys, wrong):
    assert train.main(["--shard-bytes", wrong]) == 2
    assert "--shard-bytes" in capsys.readouterr().err
