"""Capuchin's tables: the workloads, and the largest batches."""

from __future__ import annotations

from functools import cache

from minidl.app.bisection import largest_number
from minidl.device import profiles
from minidl.lab import own
from minidl.lab.cell import Machine, unmanaged
from minidl.lab.fitting import Needs, Program
from minidl.lab.papers.page import Content, beside
from minidl.runtime import Runtime
from minidl.units import format_bytes

P100 = Machine("p100")
BATCHES = {  # Table 2: TF-ori, vDNN, OpenAI, Capuchin
    "vgg16": (228, 272, 260, 350), "resnet50": (190, 520, 540, 1014), "resnet152": (86, 330, 440, 798),
    "inception_v3": (160, 400, 400, 716), "inception_v4": (88, 220, 220, 468), "bert-base": (64, None, 210, 450)}
EAGER = {"resnet50": (122, 300), "densenet121": (70, 190)}  # Table 3: TensorFlow, Capuchin
SYSTEMS = (("TF-ori", ("none",)), ("vDNN", ("vdnn-conv",)), ("OpenAI", ("openai-memory", "openai-speed")),
           ("Capuchin", ("capuchin",)))
QUICK = ("vgg16",)


@cache
def program(model: str, batch: int = 16) -> Program:
    """A network at any batch, nothing fused, as nothing was in the TensorFlow that the paper used."""
    return Program(model, lambda n: own.trace_of(model, n, switches=own.SEPARATE), batch)


def workloads(content: Content, quick: bool) -> None:
    """Table 1, with what each is here."""
    content.say("The paper names seven workloads, and whether they are run in graph mode, eager mode or both. Here all "
                "is eager. Beside them: what a step of batch 32 is, nothing fused, with SGD and momentum (BERT: AdamW, "
                "128 tokens).")
    rows = []
    modes = {"resnet50": "graph, eager", "densenet121": "eager"}
    for model in QUICK if quick else (*list(BATCHES)[:5], "densenet121", "bert-base"):
        trace = program(model).at(32)
        needs = Needs.of(trace)
        seconds, peak = unmanaged(trace, P100)
        kind, data = ("transformer", "Gutenberg; here noise") if model.startswith("bert") else ("CNN", "synthetic")
        rows.append((model, kind, data, modes.get(model, "graph"), len(trace.calls), f"{needs.parameters / 4e6:.1f} M",
                     format_bytes(needs.activations), format_bytes(peak), f"{1e3 * seconds:.0f} ms"))
    content.table(("workload", "kind", "data", "mode in the paper", "calls", "parameters", "activations", "peak",
                   "a step on the P100"), rows)


def graph_batches(content: Content, quick: bool) -> None:
    """Table 2."""
    content.say("The largest batch that runs in 15,127 MiB, ours beside the paper's and by how much it differs. A "
                "system that refuses what it cannot plan is taken at its word; OpenAI's checkpointing is the better of "
                "its two modes. Batches are searched for on traces in line with two that were taken, to a part of "
                "50, nothing fused.")
    budget = profiles.get("p100").memory_bytes
    rows = []
    for model in QUICK if quick else BATCHES:
        cells: list[object] = [model]
        for (_, policies), published in zip(SYSTEMS, BATCHES[model], strict=True):
            if published is None or (quick and policies != ("none",)):
                cells.append("-")
                continue
            found = max(program(model).largest(P100, policy, budget, steps=3, parts=50) for policy in policies)
            cells.append(f"{found} ({published}, {beside(found, published)})")
        rows.append(cells)
    content.table(("model", *(name for name, _ in SYSTEMS)), rows)
    content.say(
        "**Where they differ.** Capuchin's column: a policy here runs whatever the largest operation leaves possible, "
        "since tensors that are in no plan are paged on demand, blocks can be slid together, and the optimizer's state "
        "may leave, too; what limits the paper's TensorFlow beyond its plan it does not say. vDNN and OpenAI: their "
        "plans are those of the papers, on our memory, which is never fragmented. BERT: the paper does not give the "
        "length of its sequences; with 128 tokens more fit. TF-ori agrees within 10% on the five networks whose "
        "shapes the paper says.")


def eager_batches(content: Content, quick: bool) -> None:
    """Table 3."""
    content.say("TensorFlow's eager mode kept what every operation had read and made until the gradient was taken: "
                "here `keep-all`. Capuchin frees what no gradient needs; here `capuchin`, nothing fused.")
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
    content.say("**Where they differ.** TensorFlow: not all of what its eager mode held is known; ours keeps every "
                "operand of every call. The paper's DenseNet may be another depth than 121. Capuchin: as in table 2; "
                "in the paper it manages what eager mode holds, here what gradients need.")


def _keeping_all(model: str, batch: int) -> int:
    with Runtime(device="sim:p100", policy="keep-all", memory_budget=own.UNLIMITED,
                 switches=own.SEPARATE) as runtime:
        return runtime.dry_run(own.training_step(model, batch)).unmanaged_peak_bytes
