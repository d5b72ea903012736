"""Ranks that share the host's link, on simulated devices: speed, and how plans shift from swapping to recomputation.

    python -m bench.ranks [--devices p100,h100] [--models resnet50,...] [--ranks 1,2,4,8] [--steps 16] [--alone]
        [--divide nothing,states,gradients] [--batch N]

Each rank has the same batch whatever their number, so memory is as short on each. n ranks have an n-th of the host's
bandwidth each; exchanges have what copies leave of a device's own link at that moment, or its NVLink. Sums of gradients
run beside the backward pass.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minidl.cli.app.train import main as train
from minidl.device import profiles
from minidl.outside.units import format_bytes
from minidl.plan.trace_format import trace_from_json
from minidl.planning.bound import bound

HEAD = """# Ranks that share the host's link

Made by `python -m bench.ranks{words}`: simulated devices, policy auto, the last half of {steps} steps.
Linear: the share of n times the speed of one rank. Alone: the same share with unlimited memory, where only exchanges
between ranks and uploads of batches over the shared link take time. Of the bound: the time that no plan of one rank can
beat, apart from waits for exchanges, by the step's time. Copies and recomputation: of one rank in a step.
"""
COLUMNS = ("network", "batch a rank", "device", "ranks", "divided", "needs", "samples/s a rank", "linear", "alone",
           "of the bound", "swapped out", "recomputed", "waiting")
BATCHES = {("resnet50", "p100"): 320, ("bert-base", "p100"): 200, ("gpt2", "p100"): 12,
           ("resnet50", "h100"): 1700, ("bert-base", "h100"): 1000, ("gpt2", "h100"): 60}


@dataclass(frozen=True)
class Row:
    """A step of one rank of ``count``: seconds and bytes."""

    count: int
    step_seconds: float
    unmanaged_step_seconds: float
    unmanaged_peak_bytes: int
    swapped_out_bytes: int
    recomputed_bytes: int
    stall_seconds: float
    bound_seconds: float


def measure(model: str, device: str, batch: int, count: int, steps: int, divide: str, policy: str = "auto") -> Row:
    """One training on ``count`` ranks with ``batch`` samples each. divide: what is divided among the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        words = ["--model", model, "--device", f"sim:{device}", "--batch", str(batch * count), "--steps", str(steps),
                 "--json", str(found), "--quiet", "--slices", str(count),
                 "--policy", policy, "--ranks-divide", divide, "--save-trace", str(Path(folder) / "trace.json")]
        code = train([*words, "--ranks", str(count)])
        if code:
            raise SystemExit(code)
        result = json.loads(found.read_text(encoding="utf-8"))
        costs = profiles.shared(profiles.get(device), count).link_costs
        trace = trace_from_json((Path(folder) / "trace.json").read_text(encoding="utf-8"))
        least = 0.0 if policy != "auto" else bound(trace, costs, result["budget_bytes"]).seconds
    return Row(count, bound_seconds=least, **{name: result[name] for name in Row.__annotations__ if name in result})


def line(model: str, device: str, row: Row, batch: int, divide: str, one: Row) -> str:
    """A line of the table. one: the row of one rank."""
    return "| " + " | ".join((
        model, f"{batch:,}", device, str(row.count), divide, format_bytes(row.unmanaged_peak_bytes),
        f"{batch / row.step_seconds:.1f}", f"{one.step_seconds / row.step_seconds:.1%}",
        f"{one.unmanaged_step_seconds / row.unmanaged_step_seconds:.1%}",
        f"{row.bound_seconds / row.step_seconds:.1%}", format_bytes(row.swapped_out_bytes),
        format_bytes(row.recomputed_bytes), f"{row.stall_seconds / row.step_seconds:.1%}")) + " |"


def alone(model: str, device: str, batch: int, counts: Sequence[int], divides: Sequence[str]) -> None:
    """Print the lines of one network with unlimited memory: no plan is searched."""
    one = 0.0
    for divide in divides:
        for count in counts:
            if count == 1 and divide != divides[0]:
                continue
            row = measure(model, device, batch, count, 2, divide, "passive")
            seconds = row.unmanaged_step_seconds
            one = one or seconds
            print(f"| {model} | {batch:,} | {device} | {count} | {divide} | {format_bytes(row.unmanaged_peak_bytes)} | "
                  f"{batch / seconds:.1f} | {one / seconds:.1%} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="p100")
    parser.add_argument("--models", default="resnet50,bert-base,gpt2")
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--divide", default="nothing", help="what is divided among the ranks, with commas")
    parser.add_argument("--batch", type=int, help="samples a rank (default: the table's)")
    parser.add_argument("--alone", action="store_true", help="with unlimited memory only")
    options = parser.parse_args(arguments)
    counts = [int(count) for count in options.ranks.split(",")]
    divides = options.divide.split(",")
    if options.alone:
        print("| network | batch a rank | device | ranks | divided | needs | samples/s a rank | linear |\n"
              "|---|--:|---|--:|---|--:|--:|--:|")
        for device in options.devices.split(","):
            for model in options.models.split(","):
                alone(model, device, options.batch or BATCHES[model, device], counts, divides)
        return
    words = "".join(f" --{name} {value}" for name, value in vars(options).items() if value != parser.get_default(name))
    print(HEAD.format(words=words, steps=options.steps))
    print("| " + " | ".join(COLUMNS) + " |\n|---|--:|---|--:|---|" + "--:|" * (len(COLUMNS) - 5))
    for device in options.devices.split(","):
        for model in options.models.split(","):
            batch = options.batch or BATCHES[model, device]
            one: Row | None = None
            for divide in divides:
                for count in counts:
                    if count == 1 and one is not None:
                        continue
                    row = measure(model, device, batch, count, options.steps, divide)
                    one = one or row
                    print(line(model, device, row, batch, divide, one), flush=True)


if __name__ == "__main__":
    main()
