"""Every plan that cuDNN has for the convolutions of well-known networks on a GPU, which need not be there.

    python -m bench.cudnn_plans --profile h200 [--plans] [--write | --check 20] [--models resnet50 ...]

Lists, for each convolution and each gradient of one in a training step, the plans in the order of cuDNN's heuristics
with their workspaces and notes (--plans: all of them, else a summary). ``--write`` makes, in some minutes, the file
that the simulator's profiles of that GPU use, minidl/device/cuda/listed/<gpu>.json: the plans that may be chosen, at
the published batches, at the parts that these are cut into and at powers of four, and what a workspace grows by with
each image. ``--check`` lists a sample of them again and compares it with the file.

bench/gpu_properties/<gpu>.json describes the GPU, as ``cudnn.create_device_properties(0).serialize()`` does one that is
there. Without a driver, a stub of one is compiled, whose every call fails: plans are listed, never run.

    h200    nvidia-cudnn-cu13 9.27, tensors channels-last, TF32 and bf16
    p100    nvidia-cudnn-cu12 9.10.2.21, the last for it, tensors in C order (else the best plans copy them), fp32
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.support.convolutions import BATCHES, TARGETS, convolutions
from minidl.device.cuda import convolution, listed, missing
from minidl.device.cuda.listed import FOLDER, Entry, ListedPlan, ListedPlans, shape_of
from minidl.device.cuda.seam import Convolution, PlanInfo
from minidl.device.cuda.timed_plans import TimedPlan, key
from minidl.outside.units import format_bytes

if TYPE_CHECKING:
    from minidl.device.cuda.cudnn_graphs import CudnnGraphs

PROPERTIES = Path(__file__).with_name("gpu_properties")
STUB = ("cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeTiled")
GRID = tuple(4**power for power in range(7))


def worthwhile(found: list[PlanInfo]) -> list[tuple[int, PlanInfo]]:
    """Select those of a convolution's plans that may be chosen; return each with its rank in cuDNN's order."""
    plans = [TimedPlan(p.name, p.workspace, p.deterministic) for p in found]
    chosen = {a.name for a in convolution.chosen(plans, 1.0)}
    return [(rank, plan) for rank, plan in enumerate(found) if plan.name in chosen]


class Lister:
    """Asks cuDNN for the plans of convolutions, once for each convolution."""

    def __init__(self, graphs: "CudnnGraphs") -> None:
        self._graphs = graphs
        self._known: dict[Convolution, list[PlanInfo]] = {}

    def plans(self, c: Convolution) -> list[PlanInfo]:
        """Return all plans of a convolution, in the order of cuDNN's heuristics:
        the plan that they expect to be fastest first."""
        found = self._known.get(c)
        if found is None:
            found = self._known[c] = self._graphs.plans(c)
        return found

    def entries(self, c: Convolution, batches: list[int]) -> list[Entry]:
        """Return the file's entries for the shape of a convolution, from the plans that it has at these batches."""
        entries: list[Entry] = []
        for batch in batches:
            kept = worthwhile(self.plans(at(c, batch)))
            beside = {p.name: p.workspace for p in self.plans(at(c, 2 * batch))}
            plans = tuple([ListedPlan(p.name, rank, p.workspace, _growth(p, beside, batch), p.deterministic)
                           for rank, p in kept])
            if not entries or not _says(entries[-1], batch, plans):
                entries.append((batch, plans))
        return entries


def at(c: Convolution, batch: int) -> Convolution:
    """Return the same convolution with another batch size."""
    return replace(c, x=(batch, *c.x[1:]), y=(batch, *c.y[1:]))


def _growth(plan: PlanInfo, twice: dict[str, int], batch: int) -> int:
    """Return how many bytes of workspace a plan needs more for each further image; 0 for a plan without a workspace.

    twice: the workspaces at twice this batch, by the name of the plan.
    """
    return (twice.get(plan.name, plan.workspace) - plan.workspace) // batch if plan.workspace else 0


def _says(entry: Entry, batch: int, plans: tuple[ListedPlan, ...]) -> bool:
    """Return True if a smaller batch's entry predicts these plans and their workspaces (``batch``: how many images)."""
    start, before = entry
    return [(p.name, p.rank, p.at(batch - start).workspace) for p in before] == [
        (p.name, p.rank, p.workspace) for p in plans]


def table(lister: Lister, found: list[Convolution], *, every: bool) -> Iterator[str]:
    """Yield the lines of a table of plans to be read by people."""
    for c in found:
        plans = lister.plans(c)
        least, most = min(p.workspace for p in plans), max(p.workspace for p in plans)
        yield (f"{key(c)}: {len(plans)} plans, {len({p.workspace for p in plans})} workspaces of {format_bytes(least)} "
               f"to {format_bytes(most)}, the best-ranked one's {format_bytes(plans[0].workspace)}")
        for rank, plan in enumerate(plans if every else ()):
            notes = ["any order"] * (not plan.deterministic) + ["tensor cores"] * plan.tensor_cores
            yield f"    {rank:2} {plan.workspace:14,} {plan.name}{'  ' if notes else ''}{', '.join(notes)}"


def with_a_driver(run: Callable[[], None], program: str = "bench.cudnn_plans") -> None:
    """Call ``run`` if a CUDA driver can be loaded, else run ``program`` in a child process that loads a stub of one."""
    if missing.has_driver():
        run()
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stub.c")
        # Errors, not success: engines that are compiled when they are built would go on and crash.
        source.write_text("".join(f"int {name}() {{ return 100; }}\n" for name in STUB), encoding="utf-8")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", f"{folder}/libcuda.so.1", str(source)],
                       check=True)
        paths = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        child = subprocess.run([sys.executable, "-m", program, *sys.argv[1:]], check=False,
                               env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)})
        raise SystemExit(child.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=sorted(TARGETS), default="h200")
    parser.add_argument("--models", nargs="*", choices=sorted(BATCHES), default=sorted(BATCHES))
    parser.add_argument("--plans", action="store_true", help="print every plan")
    parser.add_argument("--write", action="store_true", help="write the simulator's file")
    parser.add_argument("--check", type=int, metavar="N", help="compare N convolutions with the simulator's file")
    args = parser.parse_args()
    with_a_driver(lambda: work(args))


def work(args: argparse.Namespace) -> None:
    """List, print and write the plans that the command line asks for."""
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    from minidl.device.cuda.cudnn_graphs import CudnnGraphs

    target = TARGETS[args.profile]
    graphs = CudnnGraphs((PROPERTIES / f"{args.profile}.json").read_text(encoding="utf-8"))
    lister = Lister(graphs)
    found = list({c: None for name in args.models for batch in BATCHES[name]
                  for c in convolutions(name, batch, target)})
    if args.check is not None:
        raise SystemExit(check(lister, found[::max(1, len(found) // args.check)], listed.load(args.profile),
                               graphs.version))
    for line in table(lister, found, every=args.plans):
        print(line, flush=True)
    if args.write:
        FOLDER.mkdir(exist_ok=True)
        text = ListedPlans(args.profile, graphs.version, target.channels_last, entries_of(lister, found)).to_json()
        (FOLDER / f"{args.profile}.json").write_text(text, encoding="utf-8")


def entries_of(lister: Lister, found: list[Convolution]) -> dict[str, list[Entry]]:
    """The file's entries for the shapes of these convolutions."""
    shapes: dict[str, tuple[Convolution, set[int]]] = {}
    for c in found:
        shapes.setdefault(shape_of(c), (c, set(GRID)))[1].add(c.x[0])
    return {shape: lister.entries(c, sorted(batches)) for shape, (c, batches) in shapes.items()}


def check(lister: Lister, sample: list[Convolution], plans: ListedPlans, version: int) -> str | int:
    """Return 0 if the file has exactly the plans that cuDNN lists for the sample, else text about the first difference.
    """
    if version != plans.cudnn:
        return f"the file is of cuDNN {plans.cudnn}, and this is {version}"
    for c in sample:
        new = [(p.name, rank, p.workspace, p.deterministic) for rank, p in worthwhile(lister.plans(c))]
        old = [(p.name, p.rank, p.workspace, p.deterministic) for p in plans.of(c)]
        if new != old:
            return f"{key(c)}: the file has {old}, cuDNN {new}"
    print(f"{len(sample)} convolutions have the plans of the file")
    return 0


if __name__ == "__main__":
    main()
