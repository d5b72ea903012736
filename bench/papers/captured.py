"""Programs of PyTorch, captured and planned at half of their peak, and what Capuchin's planner would make of each."""

from __future__ import annotations

from bench.papers.page import Content, percent
from minidl.lab import cell
from minidl.lab.cell import Machine
from minidl.lab.fitting import share
from minidl.lab.sources import load
from minidl.outside.units import format_bytes

PROGRAMS = (
    "torch:torchvision.models:resnet18:32", "torch:torchvision.models:vgg11:32", "torch:torchvision.models:alexnet:256",
    "torch:torchvision.models:squeezenet1_1:64", "torch:timm:vit_tiny_patch16_224:32",
    "torch:timm:mobilenetv3_small_100:64", "torch:transformers:DistilBertForMaskedLM:16",
    "torch:transformers:GPT2LMHeadModel:8")
P100 = Machine("p100")
BUDGET, STEPS, INSTANTS = 0.5, 16, 10


def programs(content: Content, quick: bool) -> None:
    """Fill the page with one table row for each program, and one column for each policy."""
    content.say("Training steps of torchvision, timm and transformers, captured without values (`minidl lab trace "
                "capture`; the extra `torch`, and these packages), with the times of a P100's profile, and run again "
                "in half of their "
                f"unmanaged peak. Shares of the unmanaged speed after at most {STEPS} iterations; \"bound\" is what no "
                "plan exceeds.")
    rows, made = [], []
    for source in PROGRAMS[:1] if quick else PROGRAMS:
        trace = load(source, "p100")
        seconds, peak = cell.unmanaged(trace, P100)
        lasting = sum(t.nbytes for t in trace.tensors.values() if t.persistent)
        bound = seconds / cell.bound_seconds(trace, P100, int(BUDGET * peak), INSTANTS)
        found = {name: cell.run(source, trace, P100, name, BUDGET, steps=STEPS)
                 for name in ("passive", "capuchin", "auto")}
        _, package, function, batch = source.split(":")
        label = f"{package.partition('.')[0]} {function}, {batch}"
        rows.append((label, f"{len(trace.calls):,}", format_bytes(peak), format_bytes(lasting), percent(bound),
                     *(percent(share(row)) if row.settled_s is not None else row.status.partition(":")[0]
                       for row in found.values())))
        row = found["capuchin"]
        if row.settled_s is not None:
            made.append((label, format_bytes(row.out_bytes or 0), format_bytes(row.in_bytes or 0),
                         percent((row.recompute_seconds or 0) / row.settled_s),
                         percent((row.stall_seconds or 0) / row.settled_s)))
    content.table(("program, batch", "calls", "peak", "lasting", "bound", "`passive`", "`capuchin`", "`auto`"), rows)
    content.say("What `capuchin` does with them: the bytes that it swaps out and in during a step, and the parts of "
                "the step's time in which it recomputes and waits.")
    content.table(("program, batch", "swapped out", "swapped in", "computed again", "waits"), made)
    content.say("Where lasting tensors (parameters and their optimizer state) take a large part of that half, "
                "Capuchin has few tensors to choose from: its plan evicts only tensors that are made within an "
                "iteration. The others, parameters among them, are paged on demand, and computation waits. `auto` "
                "plans for parameters as well.")
