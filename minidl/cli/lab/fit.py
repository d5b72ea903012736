"""``minidl fit``: prints the bytes that a program needs, and its largest batch and speed under each policy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from minidl import policies
from minidl.cli.app.kinds import count, size, whole
from minidl.cli.app.options import OPTIMIZERS
from minidl.cli.command import Parser, finish
from minidl.cli.lab import kinds
from minidl.errors import UserError
from minidl.lab import sources
from minidl.lab.cell import Machine, RankedNetwork
from minidl.lab.fitting import KNOWN_ERRORS, Needs, ProgramAtBatch, peak, share
from minidl.lab.training_step import Setting
from minidl.outside.stages import stage
from minidl.outside.tables import table
from minidl.outside.units import format_bytes
from minidl.plan.trace import Trace
from minidl.policies import beside

HEADINGS = ("device", "memory", "host", "policy", "largest batch", "examples/s", "of unmanaged", "error")


def parser() -> Parser:
    """Return the parser of the command's flags."""
    found = Parser(prog="minidl fit", description=__doc__,
                   epilog="Bytes of a PyTorch program at other batches follow from those at BATCH and twice that; "
                          "speeds are of traces that were taken at the batch that is told.")
    found.add_argument("program", metavar="NAME:BATCH", help="like resnet50:32, torch:package.module:function:8, or "
                       "torch:FOLDER:8 for the config.json of a model of transformers")
    found.add_argument("--devices", type=kinds.words, metavar="A,B", help="several profiles, instead of --device")
    found.add_argument("--policies", type=kinds.chosen_policies, default=["none", "passive", "capuchin"], metavar="A,B")
    found.add_argument("--steps", type=count, default=12, help="at most so many iterations for a speed")
    found.add_argument("--ranks", type=count, default=1, metavar="N",
                       help="so many devices train a network of minidl, each with BATCH examples")
    found.add_argument("--memory", type=size, metavar="SIZE", help="of the device, instead of its own")
    found.add_argument("--layers", action="store_true", help="of a PyTorch program, a row for each layer")
    found.add_argument("--advice", action="store_true",
                       help="of a PyTorch program, changes that lower its memory, on the first device")
    found.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    alone = found.add_argument_group("the step", "of a network of minidl, or of a PyTorch network given without a step")
    alone.add_argument("--tokens", type=whole, metavar="N",
                       help="of a text (default: the network's; of PyTorch's, 128)")
    alone.add_argument("--lora", type=whole, metavar="RANK",
                       help="of minidl's networks: freeze all, and train adapters of this rank")
    alone.add_argument("--image-size", type=whole, metavar="PIXELS",
                       help="of PyTorch's networks, a side (default: the configuration's, or 224)")
    alone.add_argument("--optimizer", choices=OPTIMIZERS,
                       help="(default: momentum, which is SGD with it; adamw for text)")
    alone.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32",
                       help="bf16, fp16: PyTorch's step, also one of your own, runs under torch.autocast; minidl's "
                            "networks compute in it (default: fp32)")
    kinds.add_machine(found)
    return found


def story(arguments: argparse.Namespace) -> int:
    """Print the assumptions, the bytes that the program needs, a line for each device and policy, and the answers."""
    name, batch = sources.named(arguments.program)
    one = kinds.machine(arguments)
    machines = [replace(one, profile=device, ranks=arguments.ranks) for device in arguments.devices or [one.profile]]
    looked: list[Any] = []
    if arguments.advice and not name.startswith(sources.TORCH):
        raise UserError("--advice takes a PyTorch program, like torch:package.module:function:8")
    if arguments.lora and name.startswith(sources.TORCH):
        raise UserError("--lora is for networks of minidl; a PyTorch program adapts its layers itself")
    if arguments.ranks > 1 and name.startswith(sources.TORCH):
        raise UserError("--ranks is for networks of minidl: a trace of PyTorch's has no exchanges between devices")
    kinds.refuse_for_ranks(arguments.ranks, arguments)
    setting = Setting(arguments.tokens, arguments.precision, arguments.lora, ranks=arguments.ranks,
                      optimizer=arguments.optimizer)
    if arguments.advice or any(policies.create(policy).plans for policy in arguments.policies):
        beside.begin()

    def load(device: str, count: int) -> Trace:
        if not name.startswith(sources.TORCH):
            return sources.load(f"{name}:{count}", device, setting=setting)
        with stage("loading PyTorch"):
            from minidl.lab.torch_capture import look

        asked = _asked(arguments)
        with stage(f"taking the step of {name} at {count}"):
            looked.append(look(name.removeprefix(sources.TORCH), count, device, asked))
        return sources.checked(looked[-1].trace)

    def ranked(count: int) -> RankedNetwork:
        return RankedNetwork(name, count, setting=setting)

    said: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    answers: list[str] = []
    for number, machine in enumerate(machines):
        profile = machine.described()
        program = ProgramAtBatch(name, partial(load, machine.profile), batch,
                                 interpolates=name.startswith(sources.TORCH),
                                 network=ranked if arguments.ranks > 1 else None)
        budget = arguments.memory or profile.memory_bytes
        host = machine.host_memory
        if not number:
            said = {"program": name, "batch": batch, "ranks": arguments.ranks,
                    "assumed": looked[0].assumed if looked else setting.said(name),
                    "needs": asdict(Needs.of(program.at(batch)) if not looked else _needs(looked[0])),
                    "layers": [asdict(layer) for layer in looked[0].layers] if looked else [], "rows": rows}
            said["speeds"] = {each.described().name: KNOWN_ERRORS.get(each.described().name) for each in machines}
            if not arguments.json:
                print("\n".join(_head(said, layers=arguments.layers)), flush=True)
        for policy in arguments.policies:
            largest, row, status = program.fitted(machine, policy, budget, steps=arguments.steps or None)
            ran = row is not None and row.settled_s is not None
            rows.append({"device": profile.name, "memory_bytes": budget, "host_bytes": host, "policy": policy,
                         "largest_batch": largest, "fits": largest >= batch,
                         "examples_per_second": largest / row.settled_s if row and row.settled_s else None,
                         "share_of_unmanaged": share(row) if row is not None and ran else None,
                         "known_error": KNOWN_ERRORS.get(profile.name), "status": status})
        answers.append(_answer(batch, rows[-len(arguments.policies):], peak(program.at(batch))))
    if not arguments.json:
        print("\n".join([*table([HEADINGS, *map(_words, rows)], left=(0, 3, 8)), *answers]), flush=True)
    if arguments.advice:
        _advise(said, name.removeprefix(sources.TORCH), machines[0], arguments, looked[0])
    if arguments.json:
        print(json.dumps(said, indent=1))
    return 0


def _asked(arguments: argparse.Namespace) -> Any:
    """Return the inputs and precision that the flags ask for, of a PyTorch network."""
    from minidl.lab.torch_programs import Asked

    return Asked(arguments.tokens or 128, arguments.image_size, arguments.precision, optimizer=arguments.optimizer)


def _advise(said: dict[str, Any], name: str, machine: Machine, arguments: argparse.Namespace, looked: Any) -> None:
    """Add the changes that lower the program's memory to ``said``, and print them unless JSON was asked for."""
    from minidl.lab.changes import changes  # loads PyTorch

    asked = _asked(arguments)
    memory = arguments.memory or machine.described().memory_bytes
    found = changes(name, said["batch"], machine, memory, asked, looked)
    said["changes"] = [asdict(change) for change in found]
    if not arguments.json:
        title = (f"change, at batch {said['batch']} on {machine.profile}", "memory", "seconds",
                 f"batch in {format_bytes(memory)}")
        print("\n".join(table([title, *((each.text, format_bytes(each.peak_bytes), f"{each.seconds:.4g}",
                                         f"about {each.batch}") for each in found)])))


def _needs(look: Any) -> Needs:
    """Return the bytes that a program needs, by kind:
    parameters, gradients, optimizer state with buffers and, for the rest of its peak, activations. The program's layers
    must be known."""
    found = Needs.of(look.trace)
    kinds_of = {kind: sum(getattr(layer, kind) for layer in look.layers) for kind in
                ("parameters", "gradients", "states")}
    lasting = sum(t.nbytes for t in look.trace.tensors.values() if t.persistent)
    return replace(found, parameters=kinds_of["parameters"], gradients=kinds_of["gradients"],
                   state=max(kinds_of["states"], lasting - kinds_of["parameters"]),
                   activations=max(peak(look.trace) - lasting - kinds_of["gradients"], 0))


def _head(said: dict[str, Any], *, layers: bool) -> list[str]:
    """Return the lines above the table; ``said``: the facts that they state.
    layers: True to add a row for each layer, if the layers are known."""
    needs = {kind: format_bytes(nbytes) for kind, nbytes in said["needs"].items()}
    assumed = ", ".join(f"{topic} {text}" for topic, text in said["assumed"].items())
    lines = [f"assumed: {assumed}"] if assumed else []
    errors = (f"{device} {'not compared with any' if error is None else f'within {error}'}"
              for device, error in said["speeds"].items())
    lines.append(f"simulated speeds, beside published ones: {', '.join(errors)}")
    each = f" on each of {said['ranks']} ranks" if said["ranks"] > 1 else ""
    lines.append(f"{said['program']} at {said['batch']}{each}: parameters {needs['parameters']}, gradients "
                 f"{needs['gradients']}, optimizer state and buffers {needs['state']}, activations "
                 f"{needs['activations']}, largest workspace {needs['workspace']}")
    if layers and said["layers"]:
        kinds_of = ("parameters", "gradients", "states", "activations")
        total = sum(layer[kind] for layer in said["layers"] for kind in kinds_of)
        lines += table([("layer", *kinds_of, "share"), *(
            (layer["path"], *(format_bytes(layer[kind]) for kind in kinds_of),
             f"{sum(layer[kind] for kind in kinds_of) / total:.1%}") for layer in said["layers"])])
    return lines


def _words(row: dict[str, Any]) -> tuple[str, ...]:
    start = (row["device"], format_bytes(row["memory_bytes"]), format_bytes(row["host_bytes"]), row["policy"],
             str(row["largest_batch"]))
    if row["examples_per_second"] is None:
        return *start, "", "", "", row["status"]
    return (*start, f"{row['examples_per_second']:.4g}", f"{row['share_of_unmanaged']:.1%}",
            row["known_error"] or "unknown")


def _answer(batch: int, rows: Sequence[dict[str, Any]], peak_bytes: int) -> str:
    """Return one sentence: does the batch fit a device, as it is or by a policy of the device's rows?
    peak_bytes: the unmanaged peak of the step at this batch."""
    first = rows[0]
    needs = f"{format_bytes(peak_bytes)} of {format_bytes(first['memory_bytes'])}"
    if peak_bytes <= first["memory_bytes"] and all(row["fits"] for row in rows if row["policy"] == "none"):
        return f"batch {batch} fits {first['device']} with nothing moved: {needs}"
    found = {row["policy"]: row["largest_batch"] for row in rows if row["fits"]}
    tried = ", ".join(row["policy"] for row in rows)
    moved = (f"it fits under {', '.join(found)}, up to {max(found.values())}" if found
             else f"nor does it fit under any policy of this table ({tried})")
    return f"batch {batch} does not fit {first['device']} with nothing moved, {needs}; {moved}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's own); return its exit code: 0, or 2 after one line about an error."""
    return finish("minidl fit", lambda: story(parser().parse_args(argv)))
