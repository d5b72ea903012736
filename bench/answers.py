"""Processor seconds until ``minidl train --batch max`` answers, for each network and policy, on a simulated GPU.

    python -m bench.answers [--networks lenet,...] [--policies auto,...] [--device sim:p100] --csv FILE.csv

Two numbers a row: the processor seconds (user and system, of all threads and children) of the command until the line
with the largest batch, and until the line with what larger batches cost. The command is ended there. On quiet cores no
more wall seconds pass than these, because the search never waits; on busy ones wall seconds say little.
Rows are appended at once, and those that are there are not measured again.
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

from minidl import models

FIELDS = ("network", "policy", "device", "batch", "answer seconds", "costs seconds", "answer")
TICKS = os.sysconf("SC_CLK_TCK")
ANSWER = "the largest batch is "


def used(process: int) -> float:
    """Return the processor seconds of a process, of its children that have ended, and of those that run."""
    folder = Path(f"/proc/{process}")
    numbers = (folder / "stat").read_text().rpartition(")")[2].split()
    children = [int(child) for task in folder.glob("task/*/children") for child in task.read_text().split()]
    return sum(map(int, numbers[11:15])) / TICKS + sum(map(used, children))


def measured(network: str, policy: str, device: str) -> dict[str, str]:
    """Run the command until it has answered; return the row."""
    row = {"network": network, "policy": policy, "device": device, "answer": "none"}
    command = ["train", "--model", network, "--policy", policy, "--device", device, "--batch", "max", "--steps", "1"]
    with subprocess.Popen([sys.executable, "-u", "-m", "minidl", *command], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith(ANSWER):
                row["answer"] = line.strip().removeprefix(ANSWER)
                row["batch"] = row["answer"].split()[0].rstrip(":")
                row["answer seconds"] = f"{used(run.pid):.1f}"
            elif line.startswith("of the unmanaged speed"):
                row["answer"] += "; " + line.strip()
                row["costs seconds"] = f"{used(run.pid):.1f}"
                break
            elif line.startswith(f"{network}, batch "):
                break
        run.kill()
    return row


def main() -> None:
    """Read the command line, and measure what the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(models.MODELS))
    parser.add_argument("--policies", default="auto")
    parser.add_argument("--device", default="sim:p100")
    parser.add_argument("--csv", type=Path, required=True)
    args = parser.parse_args()
    rows = list(csv.DictReader(args.csv.open())) if args.csv.exists() else []
    known = {(row["network"], row["policy"], row["device"]) for row in rows}
    with args.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
        if not rows:
            writer.writeheader()
        for policy in args.policies.split(","):
            for network in args.networks.split(","):
                if (network, policy, args.device) not in known:
                    writer.writerow(measured(network, policy, args.device))
                    file.flush()


if __name__ == "__main__":
    main()
