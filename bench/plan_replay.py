"""The plans of the networks of ``BATCHES``, compared with the record, so that a changed plan is noticed.

    python -m bench.plan_replay                      # plan again, and compare with bench/results/plan_replay.json
    python -m bench.plan_replay --networks lenet,unet
    python -m bench.plan_replay --write              # record what is planned now; --networks: only of these

``bench/support/plan_replay.py`` says what is recorded, ``tests/policies/test_plan_replay.py`` compares, too. All
networks take a quarter of an hour of one core. A change that is meant to change plans makes the record again.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.support.plan_replay import network_of, read_record, replays, write_record
from minidl.lab.training_step import BATCHES

RECORD = Path(__file__).parent / "results" / "plan_replay.json"


def run(networks: Iterable[str], record: Path, *, write: bool) -> int:
    """Plan for some networks and print each run that differs from its record; returns how many there are.

    write: put the runs of a network into the file as soon as they are known.
    """
    kept, different = read_record(record), 0
    for network in networks:
        before = {name: run for name, run in kept.items() if network_of(name) == network}
        found = dict(replays(network))
        for name in before | found:
            if before.get(name) != found.get(name):
                different += 1
                print(f"{name}: {before.get(name)} -> {found.get(name)}", flush=True)
        if write:
            kept = {name: run for name, run in kept.items() if name not in before} | found
            write_record(record, kept)
    return different


def main() -> int:
    """The command line; returns 1 if a run differs from its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(BATCHES))
    parser.add_argument("--write", action="store_true", help="record what is planned now")
    args = parser.parse_args()
    networks = args.networks.split(",")
    if unknown := [name for name in networks if name not in BATCHES]:
        parser.error(f"no network is called {unknown[0]!r}; python train.py --list-models names all there are")
    different = run(networks, RECORD, write=args.write)
    print(f"{different} runs differ from the record" + (", which is written anew" if args.write else ""))
    return int(different > 0 and not args.write)


if __name__ == "__main__":
    sys.exit(main())
