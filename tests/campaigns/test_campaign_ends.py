"""The campaigns about ends of runs: a sample of each by default, all of it where it is asked for (``-m full``)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minidl.cli.app.flags import all_flags
from tests.campaigns import flag_vectors

ROOT = Path(__file__).parents[2]


def kills(*arguments):
    """How many attempts there were, in a process of its own that forks them."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    done = subprocess.run([sys.executable, "-m", "tests.campaigns.kills", *map(str, arguments)], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])["attempts"]


def test_every_flag_of_train_py_is_tried():
    flags = {action.option_strings[-1 if action.dest == "help" else 0] for action in all_flags()._actions}
    assert flags == flag_vectors.FLAGS.keys() - {"--nonsense"}


def test_random_command_lines_end_well():
    assert flag_vectors.campaign(40, 1)[1] == []


@pytest.mark.slow
def test_signals_kills_a_full_disk_and_two_writers_cost_no_bit():
    assert kills("signals", "--count", 3) == 3
    assert kills("points", "--first", 100, "--stride", 1000) == 2  # one of some 200
    assert kills("disk", "--first", 30, "--stride", 1000) == 2
    assert kills("writers", "--count", 1) == 1


@pytest.mark.full
def test_5000_random_command_lines_end_well():
    assert flag_vectors.campaign(5000, 0)[1] == []


@pytest.mark.full
def test_200_signals_cost_no_bit():
    assert kills("signals", "--count", 200) == 200


@pytest.mark.full
@pytest.mark.parametrize("kind", ["points", "disk"])
def test_what_happens_at_any_change_of_a_file_costs_no_bit(kind):
    assert kills(kind) > 100


@pytest.mark.full
def test_50_pairs_of_writers_cost_no_bit():
    assert kills("writers", "--count", 50) == 50
