"""A check that the largest batch trains: networks at ``--batch max``, under several policies, on simulated GPUs.

    python -m bench.batch_max [--networks lenet,...] [--devices sim:p100,sim:rtx3090] [--policies auto,...]
                              [--slices auto] [--steps 200] --rows FILE.jsonl > bench/results/batch_max.md

Each run is ``train.py`` in a process of its own: the search on twins, then so many steps. Each row is written
to FILE at once, and rows that are there are not run again, so the benchmark can be stopped and resumed. A signal ends
it and its run at once. It prints the table of all rows.
"""

import argparse
import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from minidl import models

TRAIN = Path(__file__).parents[1] / "train.py"
DEVICES = "sim:p100,sim:rtx3090"
POLICIES = "auto,passive,dtr,capuchin"
FOUND = re.compile(r"the largest batch is (\d+)(?: in (\d+) slices)?: (.*)")
ENDING = (signal.SIGINT, signal.SIGTERM)
CUT = re.compile(r"^in (\d+) slices", re.MULTILINE)


def children_seconds() -> float:
    """Return the processor seconds of all runs so far (child processes that have ended)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def end_at_once(number: int, frame: object) -> None:
    """Handle a signal: the error goes through ``carried_out``, which kills the run and waits for its end."""
    raise SystemExit(128 + number)


def carried_out(command: list[str]) -> tuple[int, str, str]:
    """Run a command; return its exit status and its output.
    Signals wait from its start until the wait for its end begins."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        out, errors = run.communicate()
    except BaseException:
        run.kill()
        run.wait()
        raise
    return run.returncode, out, errors


def cell(network: str, device: str, policy: str, asked: str, steps: int) -> dict[str, Any]:
    """Run one training; return its batch, slices and limit, and how it ended. asked: the value given to ``--slices``.
    """
    print(f"{network} on {device} under {policy}", file=sys.stderr, flush=True)
    before = children_seconds()
    status, out, errors = carried_out([sys.executable, str(TRAIN), "--model", network, "--device", device, "--policy",
                                       policy, "--batch", "max", "--slices", asked, "--steps", str(steps)])
    if status not in (0, 2):  # stopped, which says nothing of the network
        raise SystemExit(status if status > 0 else 128 - status)
    found, cut = FOUND.search(out), CUT.search(out)
    return {"network": network, "device": device, "policy": policy, "asked": asked, "steps": steps,
            "batch": int(found[1]) if found else None, "slices": int(cut[1]) if cut else 1,
            "limit": found[3] if found else None, "seconds": round(children_seconds() - before, 1),
            "ended": "" if status == 0 else errors.strip().splitlines()[-1][:300]}


def main() -> None:
    """Read the command line, run what the file of rows lacks, and print the table of all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(models.MODELS))
    parser.add_argument("--devices", default=DEVICES)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--slices", default="auto", help="as train.py has it")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=Path, required=True)
    args = parser.parse_args()
    for number in ENDING:
        signal.signal(number, end_at_once)
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()] if args.rows.exists() else []
    known = {(row["network"], row["device"], row["policy"], row["asked"]) for row in rows}
    for network in args.networks.split(","):
        for device in args.devices.split(","):
            for policy in args.policies.split(","):
                if (network, device, policy, args.slices) not in known:
                    rows.append(cell(network, device, policy, args.slices, args.steps))
                    with args.rows.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print("# The largest batch trains\n\nMade by `python -m bench.batch_max`: each row is a run of `train.py --batch "
          "max` of so many steps; seconds are the processor's, search included.\n")
    for asked in dict.fromkeys(row["asked"] for row in rows):
        print(f"## `--slices {asked}`\n")
        print("| network | device | policy | batch | slices | steps | limit | ended | seconds |\n"
              "|---|---|---|--:|--:|--:|---|---|--:|")
        for row in (each for each in rows if each["asked"] == asked):
            batch = f"{row['batch']:,}" if row["batch"] else ""
            print(f"| {row['network']} | {row['device']} | {row['policy']} | {batch} | {row['slices']} "
                  f"| {row['steps']} | {row['limit'] or ''} | {row['ended'] or 'well'} | {row['seconds']} |")
        print()


if __name__ == "__main__":
    main()
