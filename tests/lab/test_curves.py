"""``minidl lab curves``: the loss and the score of run folders as a picture."""

import json
import sys

import pytest

from minidl.__main__ import main
from minidl.cli.app.run_folder import METRICS
from minidl.lab import curves

ROWS = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 1.5, "top1": 0.25}, {"step": 3, "loss": 1.25},
        {"step": 4, "loss": 1.0, "top1": 0.75}]


def folder(path, rows):
    """A run folder with these rows."""
    path.mkdir()
    (path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_points_are_the_losses_of_all_steps_and_the_scores_of_those_that_were_tested(tmp_path):
    rows = curves.rows_of(folder(tmp_path / "run", ROWS))
    assert curves.points(rows, "loss") == ([1, 2, 3, 4], [2.5, 1.5, 1.25, 1.0])
    assert curves.score_of(rows) == "top1" and curves.points(rows, "top1") == ([2, 4], [0.25, 0.75])
    stopped = curves.rows_of(folder(tmp_path / "stopped", ROWS[:3]))  # its last step was not tested, its second was
    assert curves.score_of(stopped) == "top1"
    assert curves.score_of(curves.rows_of(folder(tmp_path / "untested", ROWS[:1]))) is None


def test_two_runs_become_one_picture_and_a_strangers_file_is_left_alone(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="extra viz")
    runs = [str(folder(tmp_path / name, rows)) for name, rows in (("a", ROWS), ("b", ROWS[:1]))]
    out = tmp_path / "c.png"
    assert main(["lab", "curves", *runs, "--out", str(out)]) == 0
    width, height = (int.from_bytes(out.read_bytes()[at:at + 4], "big") for at in (16, 20))  # of the header of a PNG
    assert width / height == pytest.approx(2 * curves.WIDE / curves.HIGH, abs=0.01)
    out.write_text("mine")
    assert main(["lab", "curves", *runs, "--out", str(out)]) == 2
    assert out.read_text() == "mine" and "c.png" in capsys.readouterr().err
    assert main(["lab", "curves", *runs, "--out", str(out), "--force"]) == 0 and out.read_bytes() != b"mine"


@pytest.mark.parametrize(("rows", "why"), [
    (None, "is no run folder: it has no metrics.jsonl"),
    ([{"step": 1, "seconds": 2}], "a simulated device computes none")])
def test_a_folder_without_losses_is_refused(tmp_path, rows, why, capsys):
    path = tmp_path if rows is None else folder(tmp_path / "run", rows)
    assert main(["lab", "curves", str(path), "--out", str(tmp_path / "c.png")]) == 2
    assert why in capsys.readouterr().err and not (tmp_path / "c.png").exists()


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it was not installed
    assert main(["lab", "curves", str(folder(tmp_path / "run", ROWS)), "--out", str(tmp_path / "c.png")]) == 2
    assert 'pip install "minidl[viz]"' in capsys.readouterr().err
