"""The parser of train.py's flags; the names are those of timm and torchvision. It checks each flag's value by itself.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from minidl import policies
from minidl.cli.app import kinds
from minidl.cli.app.config import FLAG, expanded
from minidl.cli.app.flags_memory import add_device_and_memory, add_switches
from minidl.cli.app.kinds import Share
from minidl.cli.app.options import (
    BAD_FILES,
    DECAYED,
    DIGITS_BATCH,
    EPOCHS,
    EXPLAINED,
    KEPT_CHECKPOINTS,
    MODEL,
    OPTIMIZERS,
    POLICY,
    SYNTHETIC_BATCH,
    SYNTHETIC_STEPS,
    VOCAB_SIZE,
    WORKERS,
    Options,
)
from minidl.cli.app.run_folder import ARGUMENTS, AUTO, folder_of, read_arguments
from minidl.cli.app.trust import require_trust
from minidl.cli.app.words import renamed, without
from minidl.cli.command import Parser, running
from minidl.errors import UserError
from minidl.optim import SHAPES
from minidl.outside.reading import is_there
from minidl.ranks.group import NOTHING
from minidl.report.result import KEYS

TRUST, FORCE = "--trust", "--force"
# What only the command line itself grants, and no run folder: it may be a stranger's.
GRANTS = (TRUST, FORCE)
# What takes the place of another flag, which a run folder may have: the name of its value, and that flag.
INSTEAD = (("steps", "--epochs"), ("epochs", "--steps"), ("plan", "--policy"), ("policy", "--plan"))


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of a command line. Raises UserError for wrong flags; ``--help`` ends the program.

    With ``--resume`` the earlier run's flags apply, too; flags given now override them. Values that the earlier run
    chose by itself, such as the batch of ``--batch max``, stay the same.
    """
    parser = all_flags()
    words = renamed(expanded(sys.argv[1:] if arguments is None else arguments, GRANTS), told=True)
    given, unknown = parser.parse_known_args(words)
    known, resolved = given, None
    folder = _resumed_folder(given.run, given.resume)
    if folder is not None and not unknown:
        noted, resolved = read_arguments(folder)
        earlier = [word for word in renamed(noted) if word not in GRANTS]
        for flag, other in INSTEAD:
            if vars(given)[flag] is not None:
                earlier = without(earlier, other)
        words = earlier if earlier[len(earlier) - len(words):] == words else earlier + words
        known, unknown = parser.parse_known_args(words)
        known.run = str(folder)
        require_trust(folder, known, given, trusted=given.trust)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        near = get_close_matches(unknown[0].split("=")[0], flags, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see --help"
        raise UserError(f"unknown argument {unknown[0]}{hint}")
    values = vars(known)
    del values["config"]  # it has become words
    values["model"] = MODEL if known.model is None else known.model
    # Beneath a plan the policy decides what fits.
    values["policy"] = "passive" if known.plan else kinds.current_policy(known.policy or POLICY)
    values.setdefault("batch", DIGITS_BATCH if known.data == "digits" else SYNTHETIC_BATCH)
    if resolved is not None and resolved.device == known.device:
        for name in ("memory_budget", "host_memory", "batch"):
            if values[name] is None:
                values[name] = getattr(resolved, name)
    options = Options(**values, arguments=tuple(word for word in words if word not in GRANTS))
    _refuse_what_does_not_go_together(options)
    return options


def _refuse_what_does_not_go_together(options: Options) -> None:
    """Raise UserError for flags that exclude each other."""
    if options.run is None and (options.resume or options.checkpoint_every):
        raise UserError("checkpoints are kept in a run folder: give --run-dir DIR")
    if options.data == "synthetic" and options.epochs is not None:
        raise UserError("synthetic data has no epochs: give --steps")
    if options.vocab is not None and options.vocab_size is not None:
        raise UserError("--vocab-size is for a vocabulary that is trained, and --vocab names one")
    for flag, given in (("--lora-alpha", options.lora_alpha), ("--lora-targets", options.lora_targets)):
        if options.lora is None and given is not None:
            raise UserError(f"{flag} is for adapters: give --lora RANK")
    if options.optimizer in ("adam", "adamw") and options.momentum is not None:
        raise UserError(f"{options.optimizer} takes no --momentum")
    if options.plan is None and not policies.create(options.policy).plans:
        for flag, value in (("--explain", options.explain), ("--save-plan", options.save_plan)):
            if value is not None:
                raise UserError(f"{flag}: policy {options.policy} makes no plans; auto and capuchin do")
    if (options.spill is None) != (options.spill_bytes is None):
        raise UserError("--spill DIR and --spill-bytes N go together")
    if options.ranks is None and options.ranks_divide != NOTHING:
        raise UserError(f"--ranks-divide {options.ranks_divide} is for several ranks: give --ranks mpi or --ranks N")
    if options.batch is None and isinstance(options.memory_budget, Share):
        raise UserError("--batch max needs a --memory-budget in bytes: a percentage is one of the peak at a batch")


def _resumed_folder(run: str | None, resume: str | None) -> Path | None:
    """Return the run folder that ``--resume`` continues; None without that flag.
    ``--resume auto`` means the folder of ``--run-dir``, or None if no run is in it yet. Raises UserError for a path
    without a run."""
    if resume is None or (resume == AUTO and run is None):
        return None
    if resume != AUTO:
        return folder_of(resume)[0]
    return Path(run or "") if is_there(Path(run or "") / ARGUMENTS) else None


def all_flags() -> argparse.ArgumentParser:
    """Return the parser of a training's command line."""
    parser = Parser(prog=running() or "train.py", allow_abbrev=False,
                     formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Train a network in as much memory as you allow it.",
                     epilog="keys of --json, null where the device has none:\n" + "\n".join(
                         f"  {key:21} {meaning}" for key, meaning in KEYS.items()))
    _model(parser)
    _data_and_length(parser)
    _optimizer(parser)
    add_device_and_memory(parser)
    add_switches(parser)
    _output(parser)
    return parser


def _model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="NAME",
                       help="one of --list-models, or package.module:function for one of your own "
                            f"(default: {MODEL})")
    group.add_argument("--list-models", action="store_true", help="print the names of all models, and leave")
    group.add_argument("--weights", type=kinds.path, metavar="FILE.safetensors",
                       help="start from these parameters, by the names of torchvision, timm or Hugging Face")
    group.add_argument("--lora", type=kinds.whole, metavar="RANK",
                       help="freeze the model, and train adapters of this rank in its linear layers")
    group.add_argument("--lora-alpha", type=kinds.positive, metavar="ALPHA",
                       help="multiply the adapters' results by ALPHA / RANK (default: RANK)")
    group.add_argument("--lora-targets", type=kinds.names, metavar="NAME,NAME",
                       help="the last parts of the names of the adapted layers (default: all linear layers)")
    group.add_argument("--image-size", "--img-size", type=kinds.whole, metavar="PIXELS",
                       help="a side (default: the model's; with digits at most 32, with shapes 64)")
    group.add_argument("--num-classes", type=kinds.whole, metavar="N", help="(default: the data's, or the model's)")


def _data_and_length(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data and length")
    group.add_argument("--data", type=kinds.path, default="synthetic", metavar="PATH|digits|shapes|synthetic",
                       help="a folder or file of images or text (docs/data.md; text also as text:PATH), scikit-learn's "
                            "digits, generated shapes with masks, or noise, for memory and time (default: synthetic)")
    group.add_argument("--workers", "-j", type=kinds.whole, default=min(WORKERS, os.cpu_count() or 1), metavar="N",
                       help="threads that decode images; no result depends on it "
                            f"(default: the cores, at most {WORKERS})")
    group.add_argument("--on-bad-file", choices=BAD_FILES, default="error",
                       help="stop at a broken file, or leave it out and count it (default: error)")
    group.add_argument("--sequence-length", type=kinds.whole, metavar="N", help="tokens (default: the model's)")
    group.add_argument("--vocab", type=kinds.path, metavar="FILE",
                       help="word pieces, one a line (default: trained on the text)")
    group.add_argument("--vocab-size", type=kinds.whole, metavar="N",
                       help=f"how many to train, at most (default: {VOCAB_SIZE})")
    group.add_argument("--token-file", type=kinds.path, metavar="FILE",
                       help="where the text is kept as numbers (default: beside it, *.tokens)")
    group.add_argument("--batch", "--batch-size", "-b", type=kinds.batch, default=argparse.SUPPRESS,
                       metavar="N|max", help="images, or sequences, a step; max: the largest that budget and policy "
                                             f"allow (default: {SYNTHETIC_BATCH}; with digits {DIGITS_BATCH})")
    group.add_argument("--thorough", action="store_true",
                       help="with --batch max, search without the limit that makes it answer within a minute")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--steps", type=kinds.whole, metavar="N",
                        help=f"(default: {SYNTHETIC_STEPS} with synthetic data)")
    length.add_argument("--epochs", type=kinds.whole, metavar="N", help=f"(default: {EPOCHS}, where data has an end)")
    group.add_argument("--seed", type=kinds.count, default=0, metavar="N",
                       help="all random numbers follow from it (default: 0)")


def _optimizer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("optimizer")
    group.add_argument("--optimizer", "--opt", choices=OPTIMIZERS, default=None,
                       help="(default: momentum, which is sgd with --momentum 0.9; for text adamw)")
    group.add_argument("--lr", type=kinds.rate, metavar="RATE", help="learning rate (default: 0.05; adam 0.001)")
    group.add_argument("--momentum", type=kinds.rate, metavar="M", help="(default: 0.9; sgd 0)")
    group.add_argument("--weight-decay", "--wd", type=kinds.rate, default=1e-4, metavar="W", help="(default: 1e-4)")
    group.add_argument("--decay", choices=DECAYED, default="all",
                       help="what the weight decay is for; matrices: not for biases and norms (default: all)")
    group.add_argument("--schedule", "--sched", "--lr-scheduler", choices=SHAPES, default="constant",
                       help="of the learning rate (default: constant)")
    group.add_argument("--warmup-steps", type=kinds.count, default=0, metavar="N",
                       help="in which the learning rate grows to --lr (default: 0)")
    group.add_argument("--decay-steps", type=kinds.whole, default=1000, metavar="N",
                       help="with --schedule step, how often the learning rate falls (default: 1000)")
    group.add_argument("--decay-rate", type=kinds.rate, default=0.1, metavar="R",
                       help="and to what part (default: 0.1)")
    group.add_argument("--clip-grad", "--clip-grad-norm", type=kinds.positive, metavar="NORM",
                       help="scale gradients down so that their global norm is at most this")
    group.add_argument("--grad-accum-steps", dest="accumulate", type=kinds.whole, default=1, metavar="N",
                       help="add up the gradients of N batches for one step (default: 1)")
    group.add_argument("--label-smoothing", "--smoothing", type=kinds.part, default=0.0, metavar="E",
                       help="part of the target that all classes share (default: 0)")
    group.add_argument("--detect-anomaly", action="store_true",
                       help="look at every result, and name the first operation that makes NaN (slow)")


def _output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--explain", type=kinds.whole, nargs="?", const=EXPLAINED, metavar="N",
                       help="tell the plan at the end: why each tensor leaves the device, what that should cost and "
                            f"did (the N largest; default {EXPLAINED})")
    group.add_argument("--save-plan", type=kinds.path, metavar="FILE",
                       help="write the plan at the end there, for --plan")
    group.add_argument("--save-trace", type=kinds.path, metavar="FILE",
                       help="write what the last step did there: calls and tensors")
    group.add_argument("--report", type=kinds.path, metavar="FILE.html",
                       help="write a page there that shows the memory of the last step: what lay where, what was "
                            "copied, who waited (docs/view.md)")
    group.add_argument("--csv", type=kinds.path, metavar="FILE.csv", help="write a row there for every step")
    group.add_argument("--tensorboard", type=kinds.path, metavar="DIR", help="write TensorBoard's files there")
    group.add_argument("--logger", metavar="MODULE:FUNCTION",
                       help="call this function of yours after every step: function(numbers, step=N), like "
                            "mlflow:log_metrics")
    group.add_argument("--quiet", "-q", action="store_true", help="tell errors alone")
    group.add_argument(FLAG, metavar="FILE.yaml", help="flags by their names, like `batch: 32`; those given here count "
                                                       "more")
    group.add_argument("--json", type=kinds.path, metavar="FILE|-",
                       help="write the result there; keys below. With - it goes to stdout, and what is told beside it "
                            "to stderr")
    group.add_argument("--save-weights", dest="save", type=kinds.path, metavar="FILE.safetensors",
                       help="write parameters and buffers there; with --lora the adapters alone")
    group.add_argument(FORCE, action="store_true", help="write over files that minidl did not write, too")
    group.add_argument("--run-dir", dest="run", type=kinds.path, metavar="DIR",
                       help="keep arguments, the numbers of every step, the summary and checkpoints in this folder")
    group.add_argument("--resume", type=kinds.path, metavar="auto|DIR",
                       help="go on from the newest checkpoint of a run folder, with its arguments, or from one of its "
                            "checkpoints; auto: that of --run-dir, or a new run if there is none")
    group.add_argument(TRUST, action="store_true",
                       help="with --resume, run the code of a model that the run folder names and that is not minidl's")
    group.add_argument("--checkpoint-every", type=kinds.whole, metavar="STEPS",
                       help="(default: at the end of each epoch, and of the run)")
    group.add_argument("--keep-checkpoints", dest="keep", type=kinds.whole, default=KEPT_CHECKPOINTS, metavar="N",
                       help=f"checkpoints in the run folder (default: {KEPT_CHECKPOINTS})")
