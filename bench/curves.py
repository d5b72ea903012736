"""Draw what run folders say: the loss of every step, and the score on test data after each epoch.

    python -m bench.curves RUN [RUN ...] --out curves.png

Needs matplotlib (the extra viz). Knows the columns of metrics.jsonl, and nothing else of a run.
"""

import argparse
import json
from pathlib import Path
from typing import Any

SCORES = {"top1": "test accuracy", "dice": "test Dice", "masked_lm_loss": "held-out masked-LM loss"}


def rows_of(run: Path) -> list[dict[str, Any]]:
    """A row a step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def draw(runs: list[Path], out: Path) -> None:
    """A panel a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(runs), figsize=(3.2 * len(runs), 2.6), squeeze=False)
    for panel, run in zip(panels[0], runs, strict=True):
        rows = rows_of(run)
        panel.plot([row["step"] for row in rows], [row["loss"] for row in rows], color="0.7", linewidth=0.6)
        panel.set_title(run.name, fontsize=9)
        panel.set_xlabel("step", fontsize=8)
        panel.set_ylabel("loss", fontsize=8)
        panel.set_ylim(bottom=0)
        score = next(name for name in SCORES if rows[-1].get(name) is not None)
        scored = [row for row in rows if row[score] is not None]
        own = panel if score.endswith("loss") else panel.twinx()
        own.plot([row["step"] for row in scored], [row[score] for row in scored], "o-", color="C0", markersize=2.5,
                 linewidth=1, label=SCORES[score])
        own.legend(fontsize=7, loc="upper right" if score.endswith("loss") else "center right", frameon=False)
        for axes in (panel, own):
            axes.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description="Draw what run folders say.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), metavar="FILE.png")
    arguments = parser.parse_args()
    draw(arguments.runs, arguments.out)


if __name__ == "__main__":
    main()
