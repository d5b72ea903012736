"""Draws the curves of run folders: the loss of every step, and the score on test data where one was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minidl.cli.app.run_folder import METRICS, RunFolder
from minidl.errors import UserError
from minidl.lab.drawing import figure_of
from minidl.outside.reading import is_file

WIDE, HIGH = 3.2, 2.6  # of one run, in inches
SCORES = {"top1": "test accuracy", "dice": "test Dice", "masked_lm_loss": "held-out masked-LM loss",
          "next_token_loss": "held-out loss"}
Rows = Sequence[Mapping[str, Any]]


def points(rows: Rows, column: str) -> tuple[list[int], list[float]]:
    """Return (step numbers, values) of the rows that have a value in ``column``, in the order of the rows."""
    known = [row for row in rows if row[column] is not None]
    return [row["step"] for row in known], [row[column] for row in known]


def score_of(rows: Rows) -> str | None:
    """Return the column of SCORES in which the rows have values; None if the test data was never evaluated."""
    return next((name for name in SCORES if points(rows, name)[0]), None)


def rows_of(folder: Path) -> Rows:
    """Return the rows of a run folder. Raises UserError for another folder, and for a run without losses."""
    if not is_file(folder / METRICS):
        raise UserError(f"{folder} is no run folder: it has no {METRICS}")
    rows = RunFolder(folder, keep=1).rows()
    if not points(rows, "loss")[0]:
        raise UserError(f"{folder}: a run without losses: a simulated device computes none")
    return rows


def picture(runs: Mapping[str, Rows]) -> bytes:
    """Return a PNG file's bytes with one diagram for each run. runs: its name -> its rows.
    Raises UserError without matplotlib."""
    with figure_of(WIDE * len(runs), HIGH) as (figure, axes, done):
        axes.remove()
        for number, (name, rows) in enumerate(runs.items(), 1):
            panel = figure.add_subplot(1, len(runs), number)
            panel.plot(*points(rows, "loss"), color="0.7", linewidth=0.6)
            panel.set_title(name, fontsize=9)
            panel.set_xlabel("step", fontsize=8)
            panel.set_ylabel("loss", fontsize=8)
            panel.set_ylim(bottom=0)
            panel.tick_params(labelsize=7)
            score = score_of(rows)
            if score is None:
                continue  # without test data, or stopped before the first test: there is a loss alone
            is_loss = score.endswith("loss")  # then it has the scale of the training's
            scored = panel if is_loss else panel.twinx()
            scored.plot(*points(rows, score), "o-", color="C0", markersize=2.5, linewidth=1, label=SCORES[score])
            scored.tick_params(labelsize=7)
            scored.legend(fontsize=7, loc="upper right" if is_loss else "center right", frameon=False)
        return done()
