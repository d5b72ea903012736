"""Host time per operation: signatures, residency, tracking, allocation, frees, launches, gradients' bookkeeping.

    python -m bench.host_time > bench/results/host_time.md
    python -m bench.host_time --model resnet50 --device cuda --mode passive --profile

A step is timed as a whole (forward, backward, optimizer, the iteration's end) and divided by the operations that the
program asked for: views are among them, replays are not. ``sim`` is the simulator; ``cuda`` the CUDA device over a
vendor that does nothing, kernels planned and arguments packed. ``passive`` has all the memory it wants, ``guided``
follows a plan of ``auto`` for a part of it. ``--unlaunched``: with calls that are placed and recorded but not given to
the device, which is what a replayed CUDA graph could spare at most. The target is 25 microseconds.
"""

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from bench.support.null_cuda import NullCuda
from minidl import Runtime, models
from minidl.device import Device, create, profiles
from minidl.device.clock import COMPUTE
from minidl.memory.switches import Switches
from minidl.meta import int64
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD

BATCHES = {"resnet50": 64, "bert-base": 16}
DEVICES = ("sim", "cuda")
MODES = ("passive", "guided")
SHARE = 0.7  # of the unmanaged peak: what guided execution has
HOST_MEMORY = "8GiB"
WARM = 8  # steps before the first that counts: all signatures are known, and the plan is followed
OPERATION_S = 1e-3  # what the null vendor says that an operation took: plans are made from it
FIRST_PLAN = Switches(feedback=False)  # nor is it exchanged for another while it is timed


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    model: str
    batch: int
    device: str
    mode: str


@dataclass(frozen=True)
class Times:
    """The times of a case: wall and thread seconds of each step that counts; operations, views and moved bytes of one.
    """

    wall: Sequence[float]
    thread: Sequence[float]
    operations: int
    views: int
    swapped_bytes: int
    recomputed_bytes: int

    def row(self, case: Case) -> str:
        """Return the times as a line of the table."""
        each = 1e6 / self.operations
        moved = f"{self.swapped_bytes / 1e9:.1f} / {self.recomputed_bytes / 1e9:.1f}" if case.mode == "guided" else "-"
        return (f"| {case.model} at {case.batch} | {case.device} | {case.mode} | {self.operations} | {self.views} | "
                f"{moved} | {each * median(self.wall):.1f} | {each * min(self.wall):.1f} | "
                f"{each * median(self.thread):.1f} |")


TITLE = """\
# Host time

Microseconds an operation, over {repeat} steps; `python -m bench.host_time` says what the rows are. What others on the
machine took is in the median, and not in the thread's own time, but for the caches that they share."""

HEADER = """\
| step | device | mode | operations | views of these | swapped / recomputed (GB) | median | min | thread's median |
|---|---|---|---|---|---|---|---|---|"""


def make_device(name: str, *, launches: bool = True) -> Device:
    """Make the simulator, or a CUDA device like that of an H200 whose vendor calls do nothing."""
    if name == "sim":
        return create("sim:p100")
    from minidl.device.cuda.device import CudaDevice
    from minidl.kernels.cuda import KERNELS

    class Paced(CudaDevice):
        """A device whose iterations last as long as the vendor says of their operations: plans are judged by that."""

        def now(self) -> float:
            return OPERATION_S * self.positions[COMPUTE]

    class Unlaunched(Paced):
        """A device that gives its compute stream neither kernels nor events, but counts them."""

        def launch(self, *arguments: Any, **options: Any) -> int:
            self.positions[COMPUTE] += 1
            self.streams._segments.append(None)
            return self.positions[COMPUTE]

    device = (Paced if launches else Unlaunched)("cuda", profiles.get("h200"), NullCuda(seconds=OPERATION_S), KERNELS)
    device.has_values = False  # inputs are made by shape alone, as on the simulator
    return device


def training_step(runtime: Runtime, case: Case) -> Callable[[], None]:
    """Return a training step on inputs without values: forward, backward, and SGD with momentum."""
    entry = models.find(case.model)
    model = models.create(case.model)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        if entry.text is not None:
            loss = model(*entry.text_batch(runtime, case.batch, entry.text))
        else:
            images = runtime.tensor(None, shape=(case.batch, *entry.input_shape))
            labels = runtime.tensor(None, shape=(case.batch,), dtype=int64)
            loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return step


def budget_of(case: Case) -> int:
    """Return the budget of guided execution: a share of the bytes that the step needs, and what the device keeps."""
    device = make_device(case.device)
    with Runtime(device, host_memory=0, policy="none") as runtime:
        peak = runtime.dry_run(training_step(runtime, case)).unmanaged_peak_bytes
    capacity = device.profile.memory_bytes
    return int(SHARE * peak) + capacity - device.usable_bytes(capacity)


def measure(case: Case, repeat: int, *, profile: bool = False, launches: bool = True) -> Times:
    """Time a case. profile: also print on stderr in which functions the time goes."""
    guided = case.mode == "guided"
    budget, policy = (budget_of(case), "auto") if guided else (None, "passive")
    device = make_device(case.device, launches=launches)
    with Runtime(device, memory_budget=budget, host_memory=HOST_MEMORY, policy=policy, switches=FIRST_PLAN) as runtime:
        run = training_step(runtime, case)

        def step() -> None:
            with runtime.iteration():
                run()
        for _ in range(WARM):
            step()
        wall, thread = [], []
        for _ in range(repeat):
            before, launched = runtime.stats(), runtime.tracker.sequence
            start, cpu = time.perf_counter(), time.thread_time()
            step()
            thread.append(time.thread_time() - cpu)
            wall.append(time.perf_counter() - start)
            last, launched = runtime.stats().since(before), runtime.tracker.sequence - launched
        assert not guided or runtime.plan is not None and runtime.plan.evictions
        if profile:
            profiler = cProfile.Profile()
            with profiler:
                for _ in range(10):
                    step()
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    return Times(wall, thread, last.calls, last.calls - launched, last.swapped_out_bytes, last.recomputed_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help=f"by name; by default {' and '.join(BATCHES)}")
    parser.add_argument("--batch", type=int, help="by default 64, and 16 for bert-base")
    parser.add_argument("--device", choices=DEVICES, help="by default both")
    parser.add_argument("--mode", choices=MODES, help="by default both")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--profile", action="store_true", help="say on stderr where the time goes")
    parser.add_argument("--unlaunched", action="store_true", help="on cuda: give the device nothing")
    args = parser.parse_args()
    named = [args.model] if args.model else list(BATCHES)
    print(f"{TITLE.format(repeat=args.repeat)}\n\n{HEADER}", flush=True)
    for model, device, mode in product(named, [args.device] if args.device else DEVICES,
                                       [args.mode] if args.mode else MODES):
        case = Case(model, args.batch or BATCHES.get(model, 64), device, mode)
        print(measure(case, args.repeat, profile=args.profile, launches=not args.unlaunched).row(case), flush=True)


if __name__ == "__main__":
    main()
