"""``minidl fit``: the bytes that a program needs, and its largest batch and speed under each policy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from minidl.cli.app.kinds import count
from minidl.cli.command import Parser, finish
from minidl.cli.lab import kinds
from minidl.lab import sources
from minidl.lab.fitting import KNOWN_ERRORS, Needs, ProgramAtBatch, share
from minidl.outside.units import format_bytes


def parser() -> Parser:
    """The command's flags."""
    found = Parser(prog="minidl fit", description=__doc__,
                   epilog="Bytes at other batches follow from those at BATCH and twice that; speeds are of traces that "
                          "were taken at the batch that is told.")
    found.add_argument("program", metavar="NAME:BATCH", help="like resnet50:32, or torch:package.module:function:8")
    found.add_argument("--devices", type=kinds.words, metavar="A,B", help="several profiles, instead of --device")
    found.add_argument("--policies", type=kinds.chosen_policies, default=["none", "passive", "capuchin"], metavar="A,B")
    found.add_argument("--steps", type=count, default=12, help="at most so many iterations for a speed")
    kinds.add_machine(found)
    return found


def story(arguments: argparse.Namespace) -> int:
    """Print what is needed, and a line a device and policy."""
    name, batch = sources.named(arguments.program)
    one = kinds.machine(arguments)
    machines = [replace(one, profile=device) for device in arguments.devices or [one.profile]]
    for number, machine in enumerate(machines):
        profile = machine.described()
        program = ProgramAtBatch(name, lambda n, device=machine.profile: sources.load(f"{name}:{n}", device),  # type: ignore[misc]
                          batch)
        if not number:
            needs = Needs.of(program.at(batch))
            print(f"{name} at {batch}: parameters {format_bytes(needs.parameters)}, gradients "
                  f"{format_bytes(needs.gradients)}, optimizer state and buffers {format_bytes(needs.state)}, "
                  f"activations {format_bytes(needs.activations)}, largest workspace {format_bytes(needs.workspace)}")
            print(f"{'device':<14}{'memory':>10}  {'policy':<20}{'largest batch':>14}{'examples/s':>12}"
                  f"{'of unmanaged':>14}{'error':>9}")
        for policy in arguments.policies:
            budget = profile.memory_bytes
            largest = program.largest(machine, policy, budget)
            line = f"{profile.name:<14}{format_bytes(budget):>10}  {policy:<20}{largest:>14}"
            if largest:
                row = program.row(machine, policy, budget, largest, arguments.steps or None)
                error = KNOWN_ERRORS.get(profile.name, "unknown")
                line += (f"  {row.status}" if row.settled_s is None else
                         f"{largest / row.settled_s:>12.4g}{share(row):>14.1%}{error:>9}")
            print(line, flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code: 0, or 2 after one line about what the user got wrong."""
    return finish("minidl fit", lambda: story(parser().parse_args(argv)))
