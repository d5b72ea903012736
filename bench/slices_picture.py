"""Draw the table of slices: the share of the unmanaged speed by batch, a line for each number of slices.

    python -m bench.slices_picture [--model resnet50] [--table bench/results/slices.md] [--out docs/slices.png]

Needs matplotlib (the extra viz). Knows the columns of the table, and nothing else of it.
"""

import argparse
from pathlib import Path


def shares(text: str, model: str) -> dict[int, list[tuple[int, float]]]:
    """Read a model's rows:
    by number of slices, the pairs (batch, percent) in order of the batch, without what did not fit."""
    found: dict[int, list[tuple[int, float]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 6 and cells[0] == model and cells[6].endswith("%"):
            batch = int(cells[1].replace(",", ""))
            found.setdefault(int(cells[2]), []).append((batch, float(cells[6].rstrip("%"))))
    return {count: sorted(points) for count, points in sorted(found.items())}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--table", type=Path, default=Path("bench/results/slices.md"))
    parser.add_argument("--out", type=Path, default=Path("docs/slices.png"))
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2))
    lines = shares(args.table.read_text(), args.model)
    for count, points in lines.items():
        batches, percents = zip(*points, strict=True)
        label = "whole" if count == 1 else f"{count} slices"
        axes.plot(batches, percents, "o-", markersize=3.5, linewidth=1, label=label)
    axes.set_xscale("log")
    ticks = sorted({batch for points in lines.values() for batch, _ in points})
    axes.set_xticks(ticks, [f"{batch:,}" for batch in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel(f"batch of {args.model} on sim:p100", fontsize=8)
    axes.set_ylabel("% of the unmanaged speed", fontsize=8)
    axes.set_ylim(0, 100)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
