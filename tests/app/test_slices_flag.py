"""--slices: how many, what is told, and what it changes."""

import json
import re

import pytest

import train

ON_DIGITS = ["--model", "lenet", "--data", "digits", "--batch", "400", "--steps", "3", "--host-memory", "64MiB"]


def result_of(tmp_path, capsys, *flags):
    path = tmp_path / "result.json"
    assert train.main([*flags, "--json", str(path)]) == 0
    found = re.search(r"in (\d+) slices: (.*)", capsys.readouterr().out)
    return json.loads(path.read_text()), (int(found[1]), found[2]) if found else None


@pytest.mark.slow
def test_what_is_too_large_whole_is_cut_and_what_fits_is_not(tmp_path, capsys):
    base = ["--model", "lenet", "--steps", "2", "--memory-budget", "4MiB", "--policy", "passive"]
    assert result_of(tmp_path, capsys, *base, "--batch", "50")[1] is None
    result, (count, why) = result_of(tmp_path, capsys, *base, "--batch", "1000")
    assert count == 64 and re.fullmatch(r"\S+ alone takes \S+ MiB of 4.0 MiB", why)
    assert result["peak_bytes"] <= 4 << 20
    result, (count, why) = result_of(tmp_path, capsys, *base, "--batch", "1000", "--slices", "20")
    assert (count, why) == (20, "as asked for")


def test_a_training_in_slices_learns_the_same_under_every_budget(tmp_path, capsys):
    losses = {}
    for slices, budget in (("1", "64MiB"), ("4", "64MiB"), ("4", "5MiB"), ("auto", "64MiB")):
        result, _ = result_of(tmp_path, capsys, *ON_DIGITS, "--slices", slices, "--memory-budget", budget)
        losses[slices, budget] = result["loss"]
    assert losses["4", "64MiB"] == losses["4", "5MiB"] and losses["1", "64MiB"] == losses["auto", "64MiB"]
    assert losses["4", "64MiB"] == pytest.approx(losses["1", "64MiB"], rel=1e-5)


def test_where_bits_matter_what_fits_whole_is_not_cut_however_little_room_it_leaves(tmp_path, capsys):
    """One operation takes 14 of the 16 MiB: without values that is reason enough."""
    flags = [*ON_DIGITS, "--memory-budget", "16MiB"]
    assert result_of(tmp_path, capsys, *flags)[1] is None
    assert result_of(tmp_path, capsys, *flags, "--device", "sim:p100")[1] is not None


def test_the_advice_of_a_run_in_slices_is_one_in_slices(capsys):
    """Its number of slices is the one that was tried."""
    flags = ["--model", "lenet", "--policy", "passive", "--memory-budget", "3MiB", "--steps", "2"]
    assert train.main([*flags, "--batch", "83"]) == 0
    advised = re.search(r"try next +--batch 166 --slices (\d+) fits this budget too$", capsys.readouterr().out, re.M)
    assert train.main([*flags, "--batch", "166", "--slices", advised[1]]) == 0


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5"])
def test_a_wrong_number_is_refused(capsys, wrong):
    assert train.main(["--slices", wrong]) == 2
    assert "--slices" in capsys.readouterr().err


def test_a_run_goes_on_only_in_as_many_slices(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert train.main([*ON_DIGITS, "--memory-budget", "64MiB", "--slices", "2", "--run-dir", run]) == 0
    assert train.main(["--resume", run, "--steps", "4", "--slices", "3"]) == 2
    assert "--slices" in capsys.readouterr().err
    assert train.main(["--resume", run, "--steps", "4"]) == 0
