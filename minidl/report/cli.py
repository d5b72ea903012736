"""The flags of train.py, by the names that timm and torchvision give them. Checks each alone; knows no model."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, NoReturn

from minidl.errors import UserError
from minidl.memory.policies import POLICIES
from minidl.report.result import KEYS
from minidl.units import parse_bytes

SYNTHETIC_STEPS = 10
SYNTHETIC_BATCH = 32
DIGITS_EPOCHS = 15
DIGITS_BATCH = 24  # half of the unmanaged peak is enough for lenet at this one
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
DATA = ("synthetic", "digits")


@dataclass(frozen=True, slots=True)
class Share:
    """A budget as a part of the unmanaged peak: 0.5 is half."""

    of_peak: float


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. None: not given; ``batch`` None: as large as fits."""

    model: str
    image_size: int | None
    num_classes: int | None
    data: str
    batch: int | None
    steps: int | None
    epochs: int | None
    seed: int
    optimizer: str | None
    lr: float | None
    momentum: float | None
    weight_decay: float
    device: str
    policy: str
    memory_budget: int | Share | None
    host_memory: int | None
    json: str | None
    save: str | None


def parse(arguments: Sequence[str] | None) -> Options:
    """Read a command line. Raises UserError; ``--help`` ends the program."""
    parser = _parser()
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        near = get_close_matches(unknown[0].split("=")[0], flags, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see --help"
        raise UserError(f"unknown argument {unknown[0]}{hint}")
    values = vars(known)
    values.setdefault("batch", DIGITS_BATCH if known.data == "digits" else SYNTHETIC_BATCH)
    options = Options(**values)
    if options.data == "synthetic" and options.epochs is not None:
        raise UserError("synthetic data has no epochs: give --steps")
    if options.optimizer in ("adam", "adamw") and options.momentum is not None:
        raise UserError(f"{options.optimizer} takes no --momentum")
    if options.batch is None and isinstance(options.memory_budget, Share):
        raise UserError("--batch max needs a --memory-budget in bytes: a percentage is one of the peak at a batch")
    return options


class _Parser(argparse.ArgumentParser):
    """Errors are raised, so that they are shown like all others."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="train.py", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Train a network in as much memory as you allow it.",
                     epilog="keys of --json, null where the device has none:\n" + "\n".join(
                         f"  {key:21} {meaning}" for key, meaning in KEYS.items()))
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="resnet50", metavar="NAME",
                       help="vgg11, vgg13, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, resnet152, lenet, "
                            "mlp, or package.module:function for one of your own (default: resnet50)")
    group.add_argument("--image-size", "--img-size", type=_whole, metavar="PIXELS",
                       help="a side (default: the model's; with digits at most 32)")
    group.add_argument("--num-classes", type=_whole, metavar="N", help="(default: the data's, or the model's)")

    group = parser.add_argument_group("data and length")
    group.add_argument("--data", choices=DATA, default="synthetic",
                       help="synthetic noise, to study memory and time, or scikit-learn's digits (default: synthetic)")
    group.add_argument("--batch", "--batch-size", "-b", type=_batch, default=argparse.SUPPRESS,
                       metavar="N|max", help="images a step; max: the largest that budget and policy allow "
                                             f"(default: {SYNTHETIC_BATCH}; with digits {DIGITS_BATCH})")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_whole, metavar="N", help=f"(default: {SYNTHETIC_STEPS} with synthetic data)")
    length.add_argument("--epochs", type=_whole, metavar="N", help=f"(default: {DIGITS_EPOCHS} with digits)")
    group.add_argument("--seed", type=_seed, default=0, metavar="N",
                       help="all random numbers follow from it (default: 0)")

    group = parser.add_argument_group("optimizer")
    group.add_argument("--optimizer", "--opt", choices=OPTIMIZERS, default=None,
                       help="(default: momentum, which is sgd with --momentum 0.9; for text adamw)")
    group.add_argument("--lr", type=_rate, metavar="RATE", help="learning rate (default: 0.05; adam 0.001)")
    group.add_argument("--momentum", type=_rate, metavar="M", help="(default: 0.9; sgd 0)")
    group.add_argument("--weight-decay", "--wd", type=_rate, default=1e-4, metavar="W", help="(default: 1e-4)")

    group = parser.add_argument_group("device and memory")
    group.add_argument("--device", default="auto", metavar="auto|cuda|cpu|sim:NAME",
                       help="sim:p100, sim:h100, ... compute no values, but know memory exactly and model time "
                            "(default: auto, which is cpu with real data and sim:p100 with synthetic)")
    group.add_argument("--memory-budget", type=_budget, metavar="16GiB|50%",
                       help="device memory, in bytes or as a part of what an unmanaged run needs "
                            "(default: the device's; on cpu at most 60%% of the free memory)")
    group.add_argument("--host-memory", type=_size, metavar="64GiB",
                       help="for swapped tensors (default: the device's; on cpu at most 30%% of the free memory)")
    group.add_argument("--policy", type=_policy, default="auto", metavar="|".join(POLICIES),
                       help="what to do when memory is short (default: auto)")

    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write the result there; keys below")
    group.add_argument("--save", metavar="FILE.safetensors", help="write parameters and buffers there")
    return parser


# One function a kind of value; argparse puts the flag's name before the message.


def _whole(text: str) -> int:
    return _number(text, int, "a whole number of at least 1", lambda n: n >= 1)


def _seed(text: str) -> int:
    return _number(text, int, "a whole number of at least 0", lambda n: n >= 0)


def _rate(text: str) -> float:
    return _number(text, float, "a number of at least 0", lambda x: x >= 0 and isfinite(x))


def _number(text: str, kind: Callable[[str], Any], wanted: str, good: Callable[[Any], bool]) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not good(number):
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return number


def _batch(text: str) -> int | None:
    return None if text == "max" else _number(text, int, "max or a whole number of at least 1", lambda n: n >= 1)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _budget(text: str) -> int | Share:
    if text.endswith("%"):
        return Share(_number(text[:-1], float, "a percentage above 0", lambda x: x > 0 and isfinite(x)) / 100)
    nbytes = _size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, not {text}")
    return nbytes


def _policy(name: str) -> str:
    near = get_close_matches(name, POLICIES, n=2, cutoff=0.4) or list(POLICIES)
    if name not in POLICIES:
        raise argparse.ArgumentTypeError(f"there is no policy {name!r}; did you mean {' or '.join(near)}?")
    return name
