"""Random command lines, good and hostile, for every command that minidl has.

    python -m tests.campaigns.flag_vectors [--count N] [--seed S]

Each runs in this process, in a folder of its own, and must end with exit code 0 or 2 and at most one line on stderr
(beside the bar), none of it unforeseen; a stranger's file stays as it is unless --force is given, and nothing is left
behind that was not asked for.
"""

import argparse
import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import train
from minidl.cli.calibrate import main as calibrate
from minidl.cli.compare import main as compare
from minidl.cli.convert import main as convert
from minidl.cli.lab.placement import main as placement
from tests.campaigns.progress import PROGRESS

SECONDS = 900  # after which one hangs: the first that computes may have to compile, on a busy machine
NUMBERS = ["0", "1", "2", "7", "-1", "1.5", "nan", "inf", "-inf", "1e308", "1e-320", "9" * 400, "9" * 5000, "0x10",
           "1_0", " 3", "3 ", "", "x", "max", "é", "\x1b[31m", "a\nb", "\udcff", "--", "1e", "٣"]
SIZES = ["0", "1", "255", "256", "64KiB", "1MiB", "8MiB", "64MiB", "1GiB", "16G", "1e9", "-1MiB", "50%", "100%", "1%",
         "1e300%", "0%", "nan%", "%", "9" * 400 + "GiB", "1.5.5MiB", *NUMBERS[5:]]
TARGETS = ["new", "theirs", "folder", "link", "dangling", "pipe", "no/where", "n" * 300, "n" * 255, "/dev/full", ".",
           "", "theirs/x", "\x1bnew", "é"]
NAMES = ["lenet", "mlp", "resnet20", "bert-tiny", "gpt3", "numpy:zeros", "builtins:dict", "minidl.nn:Linear", "os:path",
         ":", "a:", ":a", "minidl.models:MODELS", "x" * 5000, "sys:exit", "builtins:len", "json:loads", *NUMBERS[9:]]
DEVICES = ["sim:p100", "sim:h100", "sim:t4", "cpu:virtual", "cpu", "sim:x", "sim:theirs.json", "cuda", "cuda:9",
           "cpu:theirs.json", *NUMBERS[9:]]
COUNTED = ("--num-classes", "--workers", "--sequence-length", "--vocab-size", "--seed", "--lr", "--momentum",
           "--weight-decay", "--warmup-steps", "--decay-steps", "--decay-rate", "--clip-grad", "--label-smoothing",
           "--checkpoint-every", "--keep-checkpoints", "--lora", "--lora-alpha", "--nonsense")
NAMED = ("--plan", "--save-plan", "--save-trace", "--save-weights", "--run-dir", "--weights", "--token-file", "--vocab",
         "--report", "--config", "--csv", "--tensorboard")
SWITCHES = ("--detect-anomaly", "--cupti", "--no-decoupled-swap", "--no-collective", "--no-feedback",
            "--no-measured-times", "--no-fused", "--force", "--quiet", "--trust", "--list-models", "--thorough",
            "--help")
FLAGS = dict.fromkeys(COUNTED, NUMBERS) | dict.fromkeys(NAMED, TARGETS) | dict.fromkeys(SWITCHES, []) | {
    "--model": NAMES, "--logger": NAMES, "--image-size": ["8", "28", "32", *NUMBERS],
    "--data": ["digits", "synthetic", "shapes", *TARGETS], "--on-bad-file": ["skip", "error", "x"],
    "--batch": ["1", "8", "max", *NUMBERS], "--steps": NUMBERS[:7], "--epochs": NUMBERS[:7],
    "--optimizer": ["sgd", "adam", "adamw", "x"], "--decay": ["all", "matrices", "x"],
    "--schedule": ["step", "linear", "cosine", "constant", "x"],
    "--grad-accum-steps": ["1", "2", "nan", "9" * 400, "0"], "--device": DEVICES,
    "--attention": ["auto", "fused", "composed", "x"], "--precision": ["fp32", "tf32", "bf16", "fp8"],
    "--memory-budget": SIZES, "--host-memory": SIZES, "--spill": TARGETS, "--spill-bytes": SIZES,
    "--policy": ["none", "passive", "lru", "recompute", "dtr", "vdnn-conv", "capuchin", "capuchin-swap", "exact", "x",
                 "\x1b"],
    "--ranks-divide": ["nothing", "states", "gradients", "x"],
    "--ranks": ["1", "2", "3", "mpi", "0", "x", "9" * 400], "--slices": ["1", "2", "5", "auto", "0", "x", "9" * 400],
    "--host-update": ["never", "auto", "always", "x"],
    "--shard-bytes": ["64KiB", "1MiB", "auto", "1", "0", "-1", "x", "9" * 400],
    "--placement": ["best-fit", "first-fit", "bfc", "caching", "x"], "--explain": ["3", "0", "x", "9" * 400],
    "--lora-targets": ["fc", "query,value", "fc,", ",", *NUMBERS[9:]],
    "--json": ["-", *TARGETS], "--resume": ["auto", *TARGETS],
}
QUICK = ["--model", "lenet", "--steps", "2", "--batch", "4"]
FILES = ["a.plan", "b.plan", "log.csv", "a.npz", "theirs", "folder", "no/where", "\x1b", "n" * 300, ""]


def vector(rng):
    """(command, its arguments)"""
    kind = rng.choice(["train"] * 16 + ["compare", "placement", "convert", "calibrate"])
    if kind == "train":
        words = [*QUICK, *(["--device", "cpu:virtual", "--memory-budget", "8MiB", "--host-memory", "1MiB"]
                           if rng.random() < 0.3 else [])]
        for flag in rng.sample(sorted(FLAGS), rng.choice([1, 1, 2, 2, 3, 5])):
            words += [flag, *([rng.choice(FLAGS[flag])] if FLAGS[flag] else [])]
        return train.main, words
    if kind == "compare":
        return compare, [*rng.choices(FILES, k=rng.randint(0, 3)), *rng.choice([[], ["--rows", rng.choice(NUMBERS)]])]
    if kind == "placement":
        return placement, [rng.choice(FILES), *rng.choice([[], ["--save", rng.choice(TARGETS)], ["--strategy", "x"],
                                                           ["--strategy", "bfc", "--capacity", rng.choice(SIZES)]])]
    if kind == "convert":
        return convert, [rng.choice(FILES), rng.choice(["o.safetensors", "theirs", "folder", *TARGETS]), *rng.choice(
            [[], ["--force"], ["--x"]])]
    return calibrate, ["--out", rng.choice([name for name in TARGETS if not name.endswith(".json")])]


def prepare(folder):
    """What a vector may run into."""
    (folder / "theirs").write_text("important")
    (folder / "theirs.json").write_text("{}")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("theirs")
    (folder / "dangling").symlink_to("nothing")
    (folder / "log.csv").write_text("id,lower,upper,size\na,0,2,5\nb,1,3,7\n")
    np.savez(folder / "a.npz", x=np.zeros(3))


def problems(main, words, folder):
    """(exit code, what is wrong with how this ends)"""
    out, err = io.StringIO(), io.StringIO()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
    names = set(os.listdir(folder))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    told = [line for line in err.getvalue().splitlines() if line.strip() and not PROGRESS.search(line)]
    text, found = out.getvalue() + err.getvalue(), []
    if code not in (0, 2):
        found.append(f"exit code {code}")
    if "-" not in words and len(told) > 1 or code == 2 and not told:
        found.append(f"{len(told)} lines on stderr: {told[:3]}")
    found += [f"{word!r} is told" for word in ("unforeseen", "Traceback", "\x1b", "\udcff") if word in text]
    found += [told[0][-300:]] if told and "unforeseen" in told[0] else []
    if max(map(len, told), default=0) > 2500:
        found.append("a line that is too long")
    if "--force" not in words:
        found += [f"{name} was written over" for name, data in before.items() if (folder / name).read_bytes() != data]
    left = set(os.listdir(folder)) - names
    asked = {word.split("/")[0] for word in words} | {"cpu.json"}
    mine = tuple(f"{word}." for word in asked if word)  # a token file has a vocabulary beside it
    found += [f"{name} was left behind" for name in left
              if "." not in asked and name not in asked and not name.startswith(mine)]
    return code, found


def campaign(count, seed):
    """Run so many; returns how often each exit code came, and a line for each that ended wrongly."""
    codes, wrong, home = Counter(), [], os.getcwd()

    def too_long(number, frame):
        raise RuntimeError("takes too long")

    alarm = signal.signal(signal.SIGALRM, too_long)
    try:
        for number in range(count):
            main, words = vector(random.Random(f"{seed} {number}"))
            with tempfile.TemporaryDirectory() as name:
                prepare(Path(name))
                os.chdir(name)
                signal.alarm(SECONDS)
                try:
                    code, found = problems(main, words, Path(name))
                finally:
                    signal.alarm(0)
                    os.chdir(home)
            codes[code] += 1
            short = [word if len(word) < 60 else f"{word[:20]}...({len(word)})" for word in words]
            wrong += [f"{number}: {main.__module__} {short}: {problem}" for problem in found]
    finally:
        signal.signal(signal.SIGALRM, alarm)
    return codes, wrong


def main():
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.flag_vectors")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    codes, wrong = campaign(options.count, options.seed)
    print("\n".join(wrong))
    print(json.dumps({"vectors": options.count, "codes": codes, "wrong": len(wrong),
                      "seconds": round(time.perf_counter() - began)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
