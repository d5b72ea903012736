"""Draws the curves of run folders: the loss of every step, and the score on test data after each epoch.

    python -m bench.curves RUN [RUN ...] --out curves.png

Needs matplotlib (the extra viz). Knows the columns of a run's rows, and nothing else of it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from minidl.cli.app.run_folder import RunFolder
from minidl.cli.command import Parser, finish
from minidl.errors import UserError

SCORES = {"top1": "test accuracy", "dice": "test Dice", "masked_lm_loss": "held-out masked-LM loss"}


def draw(runs: list[Path], out: Path) -> None:
    """Draw one panel for each run folder. Raises UserError for a run on a simulated device, which has no losses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(runs), figsize=(3.2 * len(runs), 2.6), squeeze=False)
    for panel, run in zip(panels[0], runs, strict=True):
        rows = RunFolder(run, keep=1).rows()
        known = [row for row in rows if row["loss"] is not None]
        if not known:
            raise UserError(f"{run}: a run without losses: a simulated device computes none")
        panel.plot([row["step"] for row in known], [row["loss"] for row in known], color="0.7", linewidth=0.6)
        panel.set_title(run.name, fontsize=9)
        panel.set_xlabel("step", fontsize=8)
        panel.set_ylabel("loss", fontsize=8)
        panel.set_ylim(bottom=0)
        panel.tick_params(labelsize=7)
        score = next((name for name in SCORES if rows and rows[-1].get(name) is not None), None)
        if score is None:
            continue  # a run that was stopped, or without test data: there is a loss alone
        scored = [row for row in rows if row[score] is not None]
        own = panel if score.endswith("loss") else panel.twinx()
        own.plot([row["step"] for row in scored], [row[score] for row in scored], "o-", color="C0", markersize=2.5,
                 linewidth=1, label=SCORES[score])
        own.tick_params(labelsize=7)
        own.legend(fontsize=7, loc="upper right" if score.endswith("loss") else "center right", frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = Parser(prog="python -m bench.curves", description="Draw what run folders say.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), metavar="FILE.png")

    def story() -> int:
        options = parser.parse_args(arguments)
        draw(options.runs, options.out)
        return 0

    return finish("curves", story)


if __name__ == "__main__":
    sys.exit(main())
