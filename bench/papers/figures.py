"""Capuchin's figures of what a step does: vDNN's waits, times of convolutions, times of accesses."""

from __future__ import annotations

from collections.abc import Sequence

from bench.papers.page import Content, percent
from bench.papers.tables import P100
from minidl.errors import UserError
from minidl.lab import cell
from minidl.lab.drawing import figure_of
from minidl.lab.fitting import share
from minidl.lab.traced import TracedDevice, TracedProgram
from minidl.lab.training_step import SEPARATE, trace_of, training_step
from minidl.outside.units import UNLIMITED
from minidl.plan.trace import Trace
from minidl.runtime import Runtime

VDNN_BATCH, VDNN_LOSS = 230, 0.413
SHORT_S, TENTH = 3e-3, 94
ITERATIONS = (5, 10, 15)


def bars(values: Sequence[float], ylabel: str, xlabel: str) -> bytes | None:
    """Draw a bar for each value; return the PNG, or None without matplotlib."""
    try:
        with figure_of(7.0, 2.6) as (_, axes, done):
            axes.bar(range(len(values)), values, width=0.8)
            axes.set_ylabel(ylabel)
            axes.set_xlabel(xlabel)
            return done()
    except UserError:
        return None


def synchronisation(content: Content, quick: bool) -> None:
    """Fill the page of Figure 1: how long a step of vDNN waits for its copies."""
    batch = 32 if quick else VDNN_BATCH
    trace = trace_of("vgg16", batch, switches=SEPARATE)
    machine = P100
    row = cell.run(f"vgg16:{batch}", trace, machine, "vdnn-conv", machine.described().memory_bytes, steps=4)
    budget = row.budget_bytes
    if row.settled_s is None:
        content.say(f"vDNN on VGG16 at {batch}: {row.status}")
        return
    loss = 1 - share(row)
    costs = machine.described().link_costs
    with Runtime(device=TracedDevice(machine.described(), trace), policy="vdnn-conv", memory_budget=budget) as runtime:
        program = TracedProgram(trace)
        for _ in range(3):
            with runtime.iteration():
                program.step()
        plan = runtime.plan
    evicted = [] if plan is None else sorted(plan.evictions, key=lambda key: -trace.tensors[key[0]].nbytes)
    rows = []
    for tensor_id, count in evicted[:8]:
        at = trace.uses[tensor_id][count - 1]
        swap = trace.tensors[tensor_id].nbytes * costs.out_seconds_per_byte + costs.latency_seconds
        under = trace.calls[at]
        rows.append((f"tensor {tensor_id}", f"{trace.tensors[tensor_id].nbytes / 2**20:.0f} MiB", under.op,
                     f"{1e3 * under.seconds:.1f} ms", f"{1e3 * swap:.1f} ms", f"{swap / under.seconds:.1f}"
                     if under.seconds else "-"))
    content.say(f"vDNN (`vdnn-conv`) on VGG16 at a batch of {batch}, on a simulated P100 with PCIe 3.0. The paper "
                f"measured at {VDNN_BATCH} that vDNN loses {percent(VDNN_LOSS)} of the speed, and that copies take "
                f"more than 3 times as long as the layer that they overlap. Here it loses {percent(loss)}; "
                f"{row.stall_seconds:.2f} s of {row.settled_s:.2f} s a step are waits for copies. The table "
                "has the largest tensors that are moved, beside the call that each copy out overlaps:")
    content.table(("tensor", "size", "overlapped call", "its time", "copy out", "times"), rows)
    content.say("**Where they differ.** As in the paper, copies of the largest tensors take several times as long "
                "as the layers that they overlap. But fewer copies do so here: only the inputs of convolutions "
                "are moved, at 12.4 GB/s from page-locked memory, and each copy may overlap two calls. The paper "
                "does not say what else its implementation of vDNN copied, and how fast.")


def convolutions(content: Content, quick: bool) -> None:
    """Fill the page of Figure 2: the times of a network's convolutions."""
    batch = 16 if quick else 160
    trace = trace_of("inception_v3", batch, switches=SEPARATE)
    seconds = sorted((call.seconds for call in trace.calls if call.op.startswith("conv2d") and "grad" not in call.op),
                     reverse=True)
    short = sum(s < SHORT_S for s in seconds) / len(seconds)
    content.say("The times of InceptionV3's convolutions in the forward pass, here on a simulated P100. Capuchin's "
                "paper does not say at which batch it measured them; here the batch is the largest that TensorFlow "
                "ran in the paper.")
    content.table(("", "paper", f"here, at {batch}"), [
        ("convolutions", TENTH, len(seconds)), ("shortest", "474 us", f"{1e6 * seconds[-1]:.0f} us"),
        ("longest", "17,727 us", f"{1e6 * seconds[0]:,.0f} us"),
        ("longest / shortest", 37, f"{seconds[0] / seconds[-1]:.0f}"), ("below 3 ms", "95.7%", percent(short))])
    content.picture("figure2.png", bars([1e3 * s for s in seconds], "ms", "convolution"),
                    "times of the convolutions, longest first")
    content.say("**Where they differ.** The shortest and the longest time agree with the paper within 15%, and so "
                "does their ratio. Fewer convolutions take less than 3 ms here: convolutions that take neither "
                "very short nor very long take longer in the model than they did with cuDNN 7.3. The paper does not "
                "say which of cuDNN's algorithms the convolutions used.")


def accesses(content: Content, quick: bool) -> None:
    """Fill the page of Figure 3: when tensors are accessed in successive iterations."""
    batch, iterations = (8, (2, 3)) if quick else (64, ITERATIONS)
    traces: dict[int, Trace] = {}
    with Runtime(device="sim:p100", policy="none", memory_budget=UNLIMITED, switches=SEPARATE) as runtime:
        step = training_step("resnet50", batch)
        for number in range(1, max(iterations) + 1):
            with runtime.iteration():
                step()
                if number in iterations:
                    traces[number] = runtime.trace()
    first = traces[iterations[0]]
    wanted = [next(i for i, uses in first.uses.items() if i >= 0 and len(uses) == count and
                   uses[0] > len(first.calls) // 20 * part) for count, part in ((4, 1), (6, 3), (6, 6))]
    rows = []
    for name, tensor_id in zip(("T1", "T2", "T3"), wanted, strict=True):
        for number, trace in traces.items():
            times = [1e3 * a.time_s for a in trace.accesses if a.tensor_id == tensor_id]
            rows.append((name, number, len(times), ", ".join(f"{t:.1f}" for t in times)))
    apart = max(abs(a.time_s - b.time_s) for other in traces.values()
                for a, b in zip(first.accesses, other.accesses, strict=True))
    numbers = ", ".join(map(str, iterations))
    content.say(f"Three tensors of ResNet-50 at {batch}, in iterations {numbers}: when they are accessed, from the "
                "iteration's start. In the paper the times of an access differ by less than 1 ms between iterations; "
                f"here all {len(first.accesses)} accesses are at most {1e3 * apart:.3g} ms apart, as time is modelled. "
                "The paper's T1 has 4 accesses, T2 and T3 have 6.")
    content.table(("tensor", "iteration", "accesses", "times in ms"), rows)
