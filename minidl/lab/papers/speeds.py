"""Capuchin's figures of speeds: what each mechanism is worth, and how speed goes with the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from minidl.errors import UserError
from minidl.lab import cell, own
from minidl.lab.drawing import figure_of
from minidl.lab.fitting import share
from minidl.lab.papers.page import Content, percent
from minidl.lab.papers.tables import BATCHES, EAGER, P100
from minidl.memory.switches import Switches
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.policies.capuchin.policy import CapuchinRecompute, CapuchinSwap
from minidl.runtime import Runtime

SETTLED = 5  # steps of which the median counts
STEPS = {"capuchin": 20}
FEW = 4
GRAPH = {  # batches of Figure 9, from what TensorFlow runs to what Capuchin does
    "vgg16": (208, 228, 250, 260, 300, 350), "resnet50": (190, 228, 300, 400, 540, 760, 1014),
    "resnet152": (86, 103, 200, 330, 440, 598, 798), "inception_v3": (160, 192, 300, 400, 537, 716),
    "inception_v4": (88, 106, 150, 220, 351, 468), "bert-base": (64, 100, 150, 210, 300, 450)}
SYSTEMS = ("vdnn-conv", "openai-memory", "openai-speed", "capuchin")


@dataclass(frozen=True)
class Mechanism:
    """One bar of Figure 8: what is on, and what the paper says that it gained over the one before, at two batches."""

    label: str
    switches: Switches
    paper: tuple[str, str]


SEPARATE = own.SEPARATE
SWAPS = (Mechanism("none of them", replace(SEPARATE, decoupled_swap=False, feedback=False, measured_times=False),
                   ("vDNN: 1", "vDNN: 1")),
         Mechanism("measured times, decoupled swap", replace(SEPARATE, feedback=False), ("+73.9%", "")),
         Mechanism("and feedback", SEPARATE, ("+21.9%", "together +5.5%")))
RECOMPUTES = (Mechanism("none of them", replace(SEPARATE, collective=False, measured_times=False),
                        ("OpenAI-S: 1", "OpenAI-M: 1")),
              Mechanism("measured times", replace(SEPARATE, collective=False), ("+37.9%", "+10.7%")),
              Mechanism("and collective recomputation", SEPARATE, ("0", "+7.1%")))


def breakdown(content: Content, quick: bool) -> None:
    """Figure 8."""
    content.say("Mechanisms turned off in one engine, so \"none of them\" is the nearest to the systems that the paper "
                "adds them to, not the same. Images a second, in brackets the share of the unmanaged speed, and the "
                "gain over the row above; the paper's gain behind it. Nothing is fused.")
    for title, model, batches, policy, mechanisms, steps in (
            ("(a) Swapping alone", "inception_v3", (200, 400), CapuchinSwap(), SWAPS, 40),
            ("(b) Recomputing alone", "resnet50", (300, 540), CapuchinRecompute(), RECOMPUTES, 8)):
        content.say(f"## {title}, {model}")
        rows: list[list[object]] = []
        before: list[float] = []
        for mechanism in mechanisms[-1:] if quick else mechanisms:
            speeds = [_speed(model, batch, policy, mechanism.switches, SETTLED + 1 if quick else steps)
                      for batch in batches]
            row: list[object] = [mechanism.label]
            for n, (batch, speed) in enumerate(zip(batches, speeds, strict=True)):
                gain = f"{speed / before[n] - 1:+.1%}" if before else ""
                row += [f"{speed:.1f} ({speed * _unmanaged(model, batch) / batch:.1%})", gain, mechanism.paper[n]]
            before = speeds
            rows.append(row)
        content.table(("", *(head for batch in batches for head in (f"at {batch}", "gain", "paper"))), rows)
        if quick:
            break
    content.say("**Where they differ.** vDNN and OpenAI's checkpointing plan for what they know of layers; ours "
                "without mechanisms still plans on a trace. Feedback gains little, since transfers that queue on the "
                "link are counted when the plan is made. At 400 the link is what is short, here as in the paper.")


def _unmanaged(model: str, batch: int) -> float:
    return cell.unmanaged(_trace(model, batch), P100)[0]


@cache
def _trace(model: str, batch: int) -> Trace:
    return own.trace_of(model, batch, switches=SEPARATE)


def _speed(model: str, batch: int, policy: Policy, switches: Switches, steps: int) -> float:
    with Runtime(device="sim:p100", policy=policy, switches=switches) as runtime:
        step = own.training_step(model, batch)
        ends = []
        for _ in range(steps):
            with runtime.iteration():
                step()
            ends.append(runtime.stats().seconds)
    return batch / median(b - a for a, b in zip(ends[-SETTLED - 1:], ends[-SETTLED:], strict=False))


def graph_speeds(content: Content, quick: bool) -> None:
    """Figure 9."""
    content.say("Images (BERT: sequences of 128 tokens) a second over the batch, on a P100, nothing fused; in brackets "
                "the share of the speed that the same batch has with unlimited memory. The paper's figure is a drawing "
                "without numbers; its text says: within 3% at 20% above TensorFlow's largest batch, within 26% up to "
                "75% of its own largest, up to 3.86 times vDNN and 1.55 times OpenAI.")
    for model, batches in list(GRAPH.items())[:1 if quick else None]:
        _curve(content, model, batches[:1] if quick else batches, SYSTEMS[-1:] if quick else SYSTEMS, "figure9",
               BATCHES[model])


def eager_speeds(content: Content, quick: bool) -> None:
    """Figure 10."""
    content.say("Images a second over the batch, nothing fused. In the paper ResNet-50 at +83.6% of eager mode's "
                "largest batch (122 to 224) is 23.1% slower; DenseNet gains, as its kernels fill the GPU better.")
    for model, batches in (("resnet50", (100, 122, 160, 224, 300)), ("densenet121", (60, 70, 100, 130, 190))):
        _curve(content, model, batches[:1] if quick else batches, ("capuchin",), "figure10", EAGER[model])
        if quick:
            break


def _curve(content: Content, model: str, batches: Sequence[int], systems: Sequence[str], figure: str,
           published: Sequence[int | None]) -> None:
    rows: list[list[object]] = []
    lines: dict[str, list[tuple[int, float]]] = {name: [] for name in ("unmanaged", *systems)}
    for batch in batches:
        trace = own.trace_of(model, batch, switches=SEPARATE)
        seconds, peak = cell.unmanaged(trace, P100)
        budget = P100.described().memory_bytes
        row: list[object] = [batch, f"{batch / seconds:.1f}" + ("" if peak <= budget else " (does not fit)")]
        lines["unmanaged"].append((batch, batch / seconds))
        for system in systems:
            found = cell.run(f"{model}:{batch}", trace, P100, system, budget, steps=STEPS.get(system, FEW))
            if found.settled_s is None:
                row.append(found.status.split(":")[0])
            else:
                row.append(f"{batch / found.settled_s:.1f} ({percent(share(found))})")
                lines[system].append((batch, batch / found.settled_s))
        rows.append(row)
    largest = ", ".join(str(n) for n in published if n)
    content.say(f"## {model}\n\nLargest batches in the paper: {largest}.")
    content.table(("batch", "unlimited memory", *(f"`{name}`" for name in systems)), rows)
    content.picture(f"{figure}-{model}.png", curves(lines), f"{model}: speed over the batch")


def curves(lines: Mapping[str, Sequence[tuple[int, float]]]) -> bytes | None:
    """A line a name; None without matplotlib."""
    try:
        with figure_of(5.0, 2.8) as (_, axes, done):
            for name, points in lines.items():
                axes.plot([x for x, _ in points], [y for _, y in points], "o-", markersize=3, linewidth=1, label=name)
            axes.set_xlabel("batch")
            axes.set_ylabel("examples/s")
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=7, frameon=False)
            return done()
    except UserError:
        return None
