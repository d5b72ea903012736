"""Capuchin's figures of speeds: what each mechanism is worth, and how speed goes with the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from bench.papers.drawing import curves
from bench.papers.page import Content, percent
from bench.papers.tables import BATCHES, EAGER, P100
from minidl.lab import cell
from minidl.lab.fitting import share
from minidl.lab.training_step import SEPARATE, trace_of, training_step
from minidl.memory.switches import Switches
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.policies.capuchin.policy import CapuchinRecompute, CapuchinSwap
from minidl.runtime import Runtime

SETTLED = 5  # steps of which the median counts
STEPS = {"capuchin": 12}
FEW = 4
GRAPH = {  # batches of Figure 9: TensorFlow's largest, 20% more, OpenAI's, 75% of Capuchin's largest, and that
    "vgg16": (208, 250, 262, 350), "resnet50": (190, 228, 460, 520, 760, 1014), "resnet152": (86, 103, 330, 598, 798),
    "inception_v3": (160, 192, 380, 537, 716), "inception_v4": (88, 106, 220, 351, 468),
    "bert-base": (64, 77, 140, 338, 450)}
SYSTEMS = ("vdnn-dyn", "openai-memory", "openai-speed", "capuchin")
Speeds = Mapping[str, Mapping[int, float]]  # policy -> batch -> examples a second


@dataclass(frozen=True)
class Mechanism:
    """One bar of Figure 8: what is on, and what the paper says that it gained over the one before, at two batches."""

    label: str
    switches: Switches
    paper: tuple[str, str]


SEPARATE = SEPARATE
SWAPS = (Mechanism("none of them", replace(SEPARATE, decoupled_swap=False, feedback=False, measured_times=False),
                   ("vDNN: 1", "vDNN: 1")),
         Mechanism("measured times, decoupled swap", replace(SEPARATE, feedback=False), ("+73.9%", "")),
         Mechanism("and feedback", SEPARATE, ("+21.9%", "together +5.5%")))
RECOMPUTES = (Mechanism("none of them", replace(SEPARATE, collective=False, measured_times=False),
                        ("OpenAI-S: 1", "OpenAI-M: 1")),
              Mechanism("measured times", replace(SEPARATE, collective=False), ("+37.9%", "+10.7%")),
              Mechanism("and collective recomputation", SEPARATE, ("0", "+7.1%")))


def breakdown(content: Content, quick: bool) -> None:
    """Fill the page of Figure 8: what each mechanism of Capuchin gains."""
    content.say("The paper adds Capuchin's mechanisms one by one to other systems. Here they are turned off in "
                "minidl's engine, so the row \"none of them\" is similar to those systems, but not the same. Each "
                "cell has images a second on a simulated P100, in brackets the share of the unmanaged speed; then the "
                "gain over the row above, and the gain in the paper. No operations are fused.")
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
    content.say("**Where they differ.** vDNN and OpenAI's checkpointing plan by the kinds of layers; minidl "
                "without the mechanisms still plans by a recorded trace. Feedback gains little, since the plan "
                "already takes into account that copies wait for each other on the link. At 400 the link limits "
                "the speed, here as in the paper.")


def _unmanaged(model: str, batch: int) -> float:
    return cell.unmanaged(_trace(model, batch), P100)[0]


@cache
def _trace(model: str, batch: int) -> Trace:
    return trace_of(model, batch, switches=SEPARATE)


def _speed(model: str, batch: int, policy: Policy, switches: Switches, steps: int) -> float:
    with Runtime(device="sim:p100", policy=policy, switches=switches) as runtime:
        step = training_step(model, batch)
        ends = []
        for _ in range(steps):
            with runtime.iteration():
                step()
            ends.append(runtime.stats().seconds)
    return batch / median(b - a for a, b in zip(ends[-SETTLED - 1:], ends[-SETTLED:], strict=False))


def graph_speeds(content: Content, quick: bool) -> None:
    """Fill the page of Figure 9: speeds by batch in TensorFlow's graph mode."""
    content.say("Images (BERT: sequences of 128 tokens) a second by batch, on a simulated P100, no operations fused; "
                "in brackets the share of the speed with unlimited memory at the same batch. The paper's figure "
                "is a drawing without numbers; the first table has the numbers that the paper's text gives.")
    curves_of: dict[str, Speeds] = {}
    after = Content()
    for model, batches in list(GRAPH.items())[:1 if quick else None]:
        curves_of[model] = _curve(after, model, batches[:1] if quick else batches,
                                  SYSTEMS[-1:] if quick else SYSTEMS, "figure9", BATCHES[model])
    content.table(("", "paper", *curves_of), [
        ("slower at 20% above TensorFlow's largest", "at most 3%", *(_slower(s, m, 1) for m, s in curves_of.items())),
        ("slower at 75% of Capuchin's largest", "at most 26%", *(_slower(s, m, -2) for m, s in curves_of.items())),
        ("vDNN loses, at most", "70.0% (resnet50), 74.4% (resnet152)",
         *(_loses(s, "vdnn-dyn") for s in curves_of.values())),
        ("Capuchin over vDNN, at most", "3.86", *(_lead(s, ("vdnn-dyn",)) for s in curves_of.values())),
        ("Capuchin over OpenAI, at most", "1.55", *(_lead(s, SYSTEMS[1:3]) for s in curves_of.values())),
        ("Capuchin is fastest, then OpenAI, then vDNN", "always", *(_order(s) for s in curves_of.values()))])
    content.parts += after.parts
    content.pictures |= after.pictures
    content.say("**Where they differ.** vDNN is `vdnn-dyn`: it offloads only the inputs of convolutions, which is "
                "faster, as long as that is enough, and otherwise all tensors that it can. So its speed falls as "
                "the batch grows; in the paper it does not. At TensorFlow's largest batch everything fits, so "
                "vDNN offloads nothing and is as fast as Capuchin. On the Inception networks OpenAI's speed mode "
                "recomputes only cheap operations and copies nothing: there it may be faster than Capuchin by up "
                "to 2%. VGG16: at its largest batches the tensors of the first layers fill the memory, so that "
                "swap-ins cannot start early. BERT: with 128 tokens the paper's batches need less memory here "
                "than in the paper. Capuchin's lead over vDNN: on ResNet-152 vDNN loses 74.4% of its speed in the "
                "paper, and a Capuchin that loses nothing is 3.86 times as fast. Here vDNN loses less, and "
                "Capuchin loses more at the batch at which its lead is largest. A second forward pass takes a "
                "third of a step, so OpenAI's memory mode takes up to 1.33 times as long as without management "
                "here; it takes 1.55 times as long in the paper, which does not say why.")


def _slower(speeds: Speeds, model: str, at: int) -> str:
    batch = GRAPH[model][at] if len(speeds["capuchin"]) > 1 else GRAPH[model][0]
    mine = speeds["capuchin"].get(batch)
    return "-" if mine is None else percent(1 - mine / speeds["unmanaged"][batch])


def _loses(speeds: Speeds, name: str) -> str:
    lost = [1 - speed / speeds["unmanaged"][batch] for batch, speed in speeds.get(name, {}).items()]
    return percent(max(lost)) if lost else "cannot"


def _lead(speeds: Speeds, names: Sequence[str]) -> str:
    """Return as text Capuchin's largest speed as a multiple of the fastest of ``names``, and the batch at which it is.
    """
    leads = [(mine / max(theirs), batch) for batch, mine in speeds["capuchin"].items()
             if (theirs := [speeds[name][batch] for name in names if batch in speeds.get(name, {})])]
    return "cannot" if not leads else f"{max(leads)[0]:.2f} (at {max(leads)[1]})"


def _order(speeds: Speeds) -> str:
    """Return as text at which batches the order of speeds is not Capuchin, OpenAI's checkpointing, vDNN."""
    other = []
    for batch, mine in speeds["capuchin"].items():
        openai = max((speeds[name][batch] for name in SYSTEMS[1:3] if batch in speeds.get(name, {})), default=0.0)
        vdnn = speeds.get("vdnn-dyn", {}).get(batch, 0.0)
        if openai > mine or vdnn > (openai or mine):
            other.append(f"{batch} (Capuchin leads by {percent(mine / max(openai, vdnn) - 1)})")
    return "not at " + ", ".join(other) if other else "always"


def eager_speeds(content: Content, quick: bool) -> None:
    """Fill the page of Figure 10: speeds by batch in eager mode."""
    content.say("Images a second by batch on a simulated P100, with no operations fused. In the paper ResNet-50 is "
                "23.1% slower at 224, which is 83.6% more than eager mode's largest batch of 122; DenseNet is faster "
                "with Capuchin, because at large batches its kernels use more of the GPU.")
    for model, batches in (("resnet50", (100, 122, 160, 224, 300)), ("densenet121", (60, 70, 100, 130, 190))):
        _curve(content, model, batches[:1] if quick else batches, ("capuchin",), "figure10", EAGER[model])
        if quick:
            break
    content.say("**Where they differ.** TensorFlow's eager mode keeps tensors that no gradient needs; minidl does "
                "not. So larger batches fit here without management, and little has to be moved at the paper's "
                "batches. How much of a GPU a small batch uses follows from the simulator's model, and there "
                "DenseNet gains less from large batches.")


def _curve(content: Content, model: str, batches: Sequence[int], systems: Sequence[str], figure: str,
           published: Sequence[int | None]) -> Speeds:
    """Add the table and picture of one network's speeds by batch; return the speeds."""
    rows: list[list[object]] = []
    lines: dict[str, list[tuple[int, float]]] = {name: [] for name in ("unmanaged", *systems)}
    for batch in batches:
        trace = trace_of(model, batch, switches=SEPARATE)
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
    names = ("TensorFlow", "vDNN", "OpenAI", "Capuchin") if len(published) == 4 else ("TensorFlow", "Capuchin")
    largest = ", ".join(f"{name} {n}" for name, n in zip(names, published, strict=True) if n)
    content.say(f"## {model}\n\nLargest batches in the paper: {largest}.")
    content.table(("batch", "unlimited memory", *(f"`{name}`" for name in systems)), rows)
    content.picture(f"{figure}-{model}.png", curves(lines, "batch", "examples/s"), f"{model}: speed over the batch")
    return {name: dict(points) for name, points in lines.items()}
