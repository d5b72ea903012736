"""Capuchin's tables: the workloads, and the largest batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from bench.papers.page import Content, beside
from minidl import policies
from minidl.cli.app.bisection import largest_number
from minidl.device import profiles
from minidl.errors import Unsuitable
from minidl.lab.cell import Machine, unmanaged
from minidl.lab.fitting import MOST_BATCH, Needs, ProgramAtBatch, peak
from minidl.lab.training_step import SEPARATE, trace_of, training_step
from minidl.memory.switches import ALL_ON
from minidl.outside.units import UNLIMITED, format_bytes
from minidl.plan.costs import Limits
from minidl.runtime import Runtime

P100 = Machine("p100")
BATCHES = {  # Table 2: TF-ori, vDNN, OpenAI, Capuchin
    "vgg16": (228, 272, 260, 350), "resnet50": (190, 520, 540, 1014), "resnet152": (86, 330, 440, 798),
    "inception_v3": (160, 400, 400, 716), "inception_v4": (88, 220, 220, 468), "bert-base": (64, None, 210, 450)}
EAGER = {"resnet50": (122, 300), "densenet121": (70, 190)}  # Table 3: TensorFlow, Capuchin
READINGS = (  # of vDNN and of OpenAI's checkpointing: policy, and whether a layer is one operation
    ("vdnn-conv", False), ("vdnn-conv", True), ("vdnn-join", True), ("vdnn-all", False), ("openai-speed", False),
    ("openai-memory", False))
PARTS = 50  # a largest batch is found to such a part of it
QUICK, QUICK_READINGS = ("vgg16",), READINGS[-1:]
Readings = Sequence[tuple[str, bool]]


@cache
def program(model: str, batch: int = 16, *, fused: bool = False) -> ProgramAtBatch:
    """Return a function from a batch to a network's program.

    Nothing is fused, as in the TensorFlow that the paper used; or, if ``fused``, a layer's normalisation, addition and
    activation are one operation.
    """
    return ProgramAtBatch(model, lambda n: trace_of(model, n, switches=ALL_ON if fused else SEPARATE), batch)


def workloads(content: Content, quick: bool) -> None:
    """Fill the page of Table 1: the paper's networks, and the network here that stands for each."""
    content.say("The paper names seven workloads, and says which of them it runs in TensorFlow's graph mode, "
                "eager mode or both. minidl runs all of them eagerly. The other columns describe a training step "
                "here, on a simulated P100: batch 32, no operations fused, SGD with momentum (BERT: AdamW, 128 "
                "tokens).")
    rows = []
    modes = {"resnet50": "graph, eager", "densenet121": "eager"}
    for model in QUICK if quick else (*list(BATCHES)[:5], "densenet121", "bert-base"):
        trace = program(model).at(32)
        needs = Needs.of(trace)
        seconds, peak_bytes = unmanaged(trace, P100)
        kind, data = ("transformer", "Gutenberg; here noise") if model.startswith("bert") else ("CNN", "synthetic")
        rows.append((model, kind, data, modes.get(model, "graph"), len(trace.calls), f"{needs.parameters / 4e6:.1f} M",
                     format_bytes(needs.activations), format_bytes(peak_bytes), f"{1e3 * seconds:.0f} ms"))
    content.table(("workload", "kind", "data", "mode in the paper", "calls", "parameters", "activations", "peak",
                   "a step on the P100"), rows)


def graph_batches(content: Content, quick: bool) -> None:
    """Fill the page of Table 2: the largest batches in graph mode."""
    content.say("The largest batch that runs in 15,127 MiB: minidl's, on a simulated P100, and in brackets that of "
                "Capuchin's paper, measured in TensorFlow's graph mode, and the difference. The column of TensorFlow "
                "(TF-ori) is the policy `none`, that of Capuchin `capuchin`, that of vDNN `vdnn-join`, and that of "
                "OpenAI's checkpointing the one of its two modes which is nearer to the paper. vDNN and OpenAI's "
                "checkpointing refuse a batch if an iteration under their plan needs more memory; then it counts as "
                "too large. Traces are recorded at two batches and interpolated for all others; the search for the "
                "largest batch ends when it is known to within 2%.")
    budget = profiles.get("p100").memory_bytes
    rows, readings = [], []
    for model, (tensorflow, vdnn, openai, capuchin) in BATCHES.items():
        if quick and model not in QUICK:
            continue
        read = _readings(model, budget, QUICK_READINGS if quick else READINGS)
        found = program(model).largest(P100, "none", budget, steps=2, parts=PARTS)
        row: list[object] = [model, _versus(found, tensorflow)]
        row.append("-" if vdnn is None or quick else _versus(read["vdnn-join", True], vdnn))
        row.append(_versus(min((n for (name, _), n in read.items() if "openai" in name and n),
                               key=lambda n: abs(n - openai)), openai))
        row.append("-" if quick else _versus(program(model).largest(P100, "capuchin", budget, steps=3, parts=PARTS),
                                             capuchin))
        rows.append(row)
        lasting = sum(t.nbytes for t in program(model).at(16).tensors.values() if t.persistent)
        readings.append((model, *(_a_sample(n, budget - lasting) for n in (vdnn, openai)),
                         *(_a_sample(n, budget - lasting) for n in read.values())))
    content.table(("model", "TF-ori", "vDNN", "OpenAI", "Capuchin"), rows)
    content.say("## vDNN and OpenAI, read in several ways\n\nThe largest batches, and in brackets the device memory "
                "for each sample at that batch, without the parameters and their states, in MB of 10^6 bytes. "
                "`vdnn-conv` moves only the inputs of convolutions, `vdnn-join` also the values that a shortcut "
                "adds to such an input or joins with it, `vdnn-all` the inputs of all layers but activations, fully "
                "connected layers and the loss. `openai-speed` keeps the results of convolutions and matrix products, "
                "`openai-memory` about sqrt(N) values that cut the network in two. *Layers*: a convolution and the "
                "normalisation, activation and addition of a branch that follow it count as one operation; in the "
                "other columns each of these is one.")
    heads = [f"`{name}`{', layers' if fused else ''}" for name, fused in (QUICK_READINGS if quick else READINGS)]
    content.table(("model", "paper, vDNN", "paper, OpenAI", *heads), readings)
    content.say(DIFFER)


def _readings(model: str, budget: int, wanted: Readings) -> dict[tuple[str, bool], int]:
    return {(policy, fused): largest_planned(program(model, fused=fused), policy, budget)
            for policy, fused in wanted}


def largest_planned(program: ProgramAtBatch, policy: str, budget: int) -> int:
    """Return the largest batch on a P100 for which a policy that refuses what it cannot plan has a plan that fits."""
    profile = P100.described()
    limits = Limits(budget, profile.host_memory_bytes)

    def fits(batch: int) -> bool:
        try:
            policies.create(policy).plan(program.at(batch), profile.link_costs, limits)
        except Unsuitable:
            return False
        return True

    return largest_number(fits, guess=program.guess(peak, program.batch, budget), most=MOST_BATCH, parts=PARTS)


def _versus(found: int, published: int) -> str:
    return f"{found} ({published}, {beside(found, published)})"


def _a_sample(batch: int | None, nbytes: int) -> str:
    return f"{batch} ({nbytes / 1e6 / batch:.1f})" if batch else "-"


DIFFER = (
    "**Where they differ.** vDNN: its authors measured no network with batch normalisation or shortcuts, and "
    "Capuchin's authors do not say which feature maps of such networks vDNN offloads. If vDNN offloads only the "
    "inputs of convolutions, the inputs of normalisations stay on the device, and the largest batches of the ResNets "
    "are far below the paper's. At the paper's largest batches ResNet-152 takes 16 MB more for each sample than "
    "ResNet-50, which has 34 blocks fewer. Each block has three normalisations. In 34 blocks the inputs of two of the "
    "three take 16 MB for each sample. So vDNN must have offloaded the input of the third, whose result is added to "
    "the shortcut. In the blocks whose shortcut has a convolution, vDNN must have kept the third one's input, too, "
    "which takes another 6 MB for each sample. `vdnn-join` reads the paper in this way. OpenAI: the "
    "paper does not say which mode it measured on which network. On the Inception networks memory mode reaches larger "
    "batches here than in the paper, and speed mode is within 10% of the paper on both. On the ResNets memory mode is "
    "13% short of the paper: here it keeps 4 to 5 MB more for each sample than in the paper, which is less than two "
    "feature maps of the first stage.\n\n"
    "Capuchin: here a batch runs if its largest operation fits the device. Tensors that no plan evicts are swapped "
    "on demand, blocks can be slid together, and the optimizer's state may leave the device. The paper does not say "
    "what limits the batch in its TensorFlow besides the plan. BERT: the paper does not give the length of its "
    "sequences. With 128 tokens larger batches fit here without management, and also in OpenAI's memory mode, which "
    "keeps only the values between two layers; speed mode keeps the result of every matrix product. TF-ori agrees "
    "within 10% on the five networks whose shapes the paper gives.")


def eager_batches(content: Content, quick: bool) -> None:
    """Fill the page of Table 3: the largest batches in eager mode."""
    content.say("TensorFlow's eager mode kept all inputs and outputs of every operation until its gradient was "
                "computed; the policy `keep-all` does the same here. Capuchin frees tensors that no gradient "
                "needs; here it is `capuchin`, with no operations fused. In brackets the paper's batch and the "
                "difference.")
    budget = profiles.get("p100").memory_bytes
    rows = []
    for model, (tensorflow, capuchin) in EAGER.items():
        kept = largest_number(lambda n, model=model: _keeping_all(model, n) <= budget,  # type: ignore[misc]
                              guess=tensorflow, most=1 << 16)
        ours = None if quick else program(model).largest(P100, "capuchin", budget, steps=3, parts=50)
        rows.append((model, f"{kept} ({tensorflow}, {beside(kept, tensorflow)})",
                     "-" if ours is None else f"{ours} ({capuchin}, {beside(ours, capuchin)})"))
        if quick:
            break
    content.table(("model", "TensorFlow, eager", "Capuchin"), rows)
    content.say("**Where they differ.** TensorFlow: it is not known exactly which tensors its eager mode kept; "
                "`keep-all` keeps every operand of every call. The paper does not say which depth its DenseNet "
                "has; here it is 121. Capuchin: the reasons are those of table 2; and in the paper Capuchin "
                "manages all tensors that eager mode keeps, here only those that gradients need.")


def _keeping_all(model: str, batch: int) -> int:
    with Runtime(device="sim:p100", policy="keep-all", memory_budget=UNLIMITED,
                 switches=SEPARATE) as runtime:
        return runtime.dry_run(training_step(model, batch)).unmanaged_peak_bytes
