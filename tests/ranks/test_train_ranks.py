"""``train.py`` on ranks, without MPI: the memory of a machine that ranks share, and the largest batch."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rank_programs import together

from minidl.cli.app import choices
from minidl.cli.app.flags import parse
from minidl.cli.app.train import main


@pytest.mark.parametrize("in_host, flags, budget, host", [
    (True, [], 400, 200), (False, [], 1200, 200), (True, ["--memory-budget", "70"], 70, 200),
    (False, ["--host-memory", "50"], 1200, 50)])
def test_ranks_divide_the_memory_of_their_machine_and_follow_the_smallest(monkeypatch, in_host, flags, budget, host):
    options = parse(["--model", "lenet", *flags])
    device = SimpleNamespace(arena_in_host_memory=in_host)
    found = iter([(1200, 660), (1800, 600), (1500, 690)])
    monkeypatch.setattr(choices, "default_memory", lambda device: next(found))
    agreed = together(3, lambda ranks: choices.agree_on_memory(replace(options), device, ranks))
    assert [(one.memory_budget, one.host_memory) for one in agreed] == [(budget, host)] * 3


def test_the_largest_batch_is_that_of_all_ranks_together(tmp_path):
    def largest(*flags):
        assert main(["--model", "lenet", "--device", "sim:p100", "--batch", "max", "--policy", "none", "--steps", "1",
                     "--memory-budget", "8MiB", "--quiet", "--json", str(tmp_path / "result"), *flags]) == 0
        return json.loads((tmp_path / "result").read_text())
    one, four = largest(), largest("--ranks", "4")
    assert 3 * one["batch"] < four["batch"] <= 4 * one["batch"]  # each rank holds whole parameters
    assert four["peak_bytes"] <= 8 << 20
