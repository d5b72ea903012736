"""Types for flags that several lab commands share, beside ``app.kinds``; and the flags that describe a machine."""

import argparse
from math import nextafter

from minidl import placements, policies
from minidl.cli.app import kinds
from minidl.errors import UserError
from minidl.lab.cell import Machine
from minidl.lab.training_step import BATCHES
from minidl.outside.validation import real, whole
from minidl.placements import Unplaced
from minidl.policies.literature import SOLVERS

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_ABOVE_0 = nextafter(0, 1)


def words(text: str) -> list[str]:
    """Return the comma-separated words of a text, each once. Raises ArgumentTypeError if there is none."""
    found = list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
    if not found:
        raise argparse.ArgumentTypeError("names nothing")
    return found


def counts(text: str) -> list[int]:
    """Return the numbers from 1 in a comma-separated text. Raises ArgumentTypeError for another text."""
    return [kinds.read(whole, word, least=1, wanted="numbers from 1, like 1,2,4") for word in words(text)]


def refuse_for_ranks(ranks: int, arguments: argparse.Namespace) -> None:
    """Raise UserError if a machine's flags do not go with several ranks: random errors, no recomputation."""
    if ranks > 1 and arguments.no_recompute:
        raise UserError("--ranks and --no-recompute do not go together: ranks run the network, and no trace of it")
    if ranks > 1 and arguments.noise:
        raise UserError("--ranks and --noise do not go together: errors of ranks would not be the same")


def chosen_policies(text: str) -> list[str]:
    """Return the policy names in a comma-separated text; ``all``: those that evict and solve no integer program.
    Raises ArgumentTypeError for an unknown name."""
    names = [name for word in words(text) for name in (
        _without_solvers() if word == "all" else [kinds.current_policy(kinds.policy(word))])]
    for name in names:
        if ":" in name:
            kinds.read(policies.create, name)  # imports the user's, to refuse it before anything runs
    return list(dict.fromkeys(names))


def _without_solvers() -> list[str]:
    return [name for name in policies.names() if name not in SOLVERS and policies.create(name).moves_tensors]


def chosen_models(text: str) -> list[str]:
    """Return the network names in a comma-separated text, unchecked; ``all``: every network with a batch in BATCHES."""
    return [name for word in words(text) for name in (BATCHES if word == "all" else [word])]


def budgets(text: str) -> list[int | float]:
    """Return budgets in bytes, or as parts of the unmanaged peak (0.5 for ``50%``).
    text: sizes and percentages with commas between. Raises ArgumentTypeError for another text."""
    found = [kinds.budget(word) for word in words(text)]
    return [each.of_peak if isinstance(each, kinds.Share) else each for each in found]


def grid_budgets(text: str) -> list[int | float | None]:
    """Return budgets as ``budgets`` does; ``device`` gives None, which means the whole memory of the device."""
    return [None if word == "device" else budgets(word)[0] for word in words(text)]


def link(text: str) -> tuple[float, float]:
    """Return (bytes per second to the host, bytes per second to the device) of a text: ``12GB/s`` for both, or
    ``12GB/s,10GB/s``. Raises ArgumentTypeError for another text, and for 0."""
    rates = [kinds.size(part.strip().removesuffix("/s")) for part in text.split(",")]
    if len(rates) > 2 or not all(rates):
        raise argparse.ArgumentTypeError(f"{text} is no link: write it like 12GB/s, or 12GB/s,10GB/s for out and in")
    return float(rates[0]), float(rates[-1])


def seconds(text: str) -> float:
    """Return the seconds of a text such as ``1e-5``, ``10us`` or ``2ms``. Raises ArgumentTypeError for another text."""
    unit = next(unit for unit in _SECONDS if text.endswith(unit))
    number = text[:len(text) - len(unit)]
    return kinds.read(real, number, wanted="seconds, like 1e-5 or 10us") * _SECONDS[unit]


def duration(text: str) -> float:
    """Return the number above 0 in a text, in seconds, without a unit. Raises ArgumentTypeError for another text."""
    return kinds.read(real, text, least=_ABOVE_0, wanted="seconds above 0")


def part(text: str) -> float:
    """Return a text as a number from 0 to 1. Raises ArgumentTypeError for another text."""
    return kinds.read(real, text, most=1.0, wanted="a part from 0 to 1")


def chosen_placements(text: str) -> list[str]:
    """Return the placements in a comma-separated text; ``none`` is a memory without addresses."""
    return [word if word == Unplaced.name else kinds.placement(word) for word in words(text)]


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe the simulated machine on which a trace is run."""
    group = parser.add_argument_group("machine")
    group.add_argument("--device", default="p100", metavar="PROFILE", help="a GPU's name or file, without sim: (p100)")
    group.add_argument("--link", type=link, metavar="OUT[,IN]", help="its link, like 12GB/s or 12GB/s,10GB/s")
    group.add_argument("--latency", type=seconds, metavar="SECONDS", help="of a copy, like 10us")
    group.add_argument("--host", type=kinds.size, metavar="SIZE", help="host memory for swapped tensors")
    group.add_argument("--no-swap", action="store_true", help="no host memory at all: tensors can only be recomputed")
    group.add_argument("--no-recompute", action="store_true", help="no call runs again: tensors can only be swapped")
    group.add_argument("--spill-bytes", type=kinds.size, default=0, metavar="SIZE",
                       help="of a file on a disk, which continues host memory")
    group.add_argument("--placement", type=chosen_placements, default=[placements.DEFAULT], metavar="A,B",
                       help=f"where blocks go in device memory: {', '.join(placements.names())}; none: no addresses, "
                            f"only bytes are counted (default: {placements.DEFAULT})")
    group.add_argument("--noise", type=part, default=0.0, metavar="PART",
                       help="by which each call may be off; unmanaged_s and bound_s have no noise")
    group.add_argument("--seed", type=int, default=0, help="of the noise")


def machine(arguments: argparse.Namespace) -> Machine:
    """Return the simulated machine that the flags describe. Raises UserError for several, or an unknown profile."""
    found = machines(arguments)
    if len(found) > 1:
        raise UserError("--placement takes one placement here, and several in lab run and lab trace replay")
    return found[0]


def machines(arguments: argparse.Namespace) -> list[Machine]:
    """Return the simulated machines that the flags describe, which differ in their placements.
    Raises UserError for an unknown profile."""
    found = [Machine(arguments.device, arguments.link, arguments.latency, 0 if arguments.no_swap else arguments.host,
                     arguments.noise, arguments.seed, placement, arguments.spill_bytes,
                     recomputes=not arguments.no_recompute)
             for placement in arguments.placement]
    found[0].described()
    return found
