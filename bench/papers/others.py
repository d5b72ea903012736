"""The pages of two publications on recomputation and swapping: a survey's experiments, and DTR's costs by budget."""

from __future__ import annotations

from bench.papers.drawing import curves
from bench.papers.page import Content, percent
from minidl import policies
from minidl.lab import cell
from minidl.lab.cell import Machine
from minidl.lab.fitting import share
from minidl.lab.training_step import SEPARATE, trace_of
from minidl.outside.units import UNLIMITED
from minidl.plan.costs import Limits
from minidl.plan.plan import EMPTY_PLAN
from minidl.plan.trace import Trace
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.static import peak_bytes

TURING = Machine("rtx2080ti")
STAND_IN, MIRROR_BATCH = "resnet50", 112
MIRRORED = (  # setting in the survey, policy, its MB and seconds an iteration
    ("nothing", "none", 10825, 0.783), ("BACKWARD_DO_MIRROR", "openai-speed", 7815, 0.818),
    ("MEMORY_OPT, and both", "chen-greedy", 7287, 0.8195))
SWAPPED = ((120, 250), (170, 53), (240, 34))  # batch, images a second with TFLMS
SWAPPING = ("tflms", "tflms-chain", "capuchin")
STEPS = {"capuchin": 12}
FEW = 4
DTR = ("dtr", "dtr-eqclass", "dtr-local", "dtr-ignore")
DTR_NETWORKS = (("resnet20", 512), ("resnet50", 64), ("unet", 16), ("bert-small", 64), ("inception_v3", 32))
DTR_BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


def survey(content: Content, quick: bool) -> None:
    """Fill the page of a survey's measurements of memonger and of TFLMS on an RTX 2080 Ti."""
    content.say(f"A survey ran MXNet's memonger and IBM's TFLMS on an RTX 2080 Ti and does not say on which "
                f"network. `{STAND_IN}` stands in for it, on `sim:rtx2080ti`, nothing fused: unmanaged its batch of "
                "120 is about the largest there, as it was in the survey.")
    content.say("## memonger")
    batch = 8 if quick else MIRROR_BATCH
    trace = trace_of(STAND_IN, batch, device="sim:rtx2080ti", switches=SEPARATE)
    rows: list[list[object]] = []
    for setting, policy, megabytes, seconds in MIRRORED:
        found = cell.run(f"{STAND_IN}:{batch}", trace, TURING, policy, UNLIMITED, steps=FEW)
        rows.append([setting, f"{megabytes:,} MB", _more(megabytes, MIRRORED[0][2]), _more(seconds, MIRRORED[0][3]),
                     f"`{policy}`", f"{_peak(trace, policy) / 1e6:,.0f} MB",
                     _more(_peak(trace, policy), _peak(trace, "none")),
                     _more(found.settled_s or 0.0, found.unmanaged_s)])
    content.table(("survey", "memory", "", "time", f"here, at {batch}", "memory", "", "time"), rows)
    content.say("## TFLMS")
    rows = []
    budget = TURING.described().memory_bytes
    for batch, speed in SWAPPED[:1] if quick else SWAPPED:
        trace = trace_of(STAND_IN, 8 if quick else batch, device="sim:rtx2080ti", switches=SEPARATE)
        row: list[object] = [batch, f"{speed} images/s", percent(speed / SWAPPED[0][1])]
        for policy in SWAPPING[-1:] if quick else SWAPPING:
            found = cell.run(f"{STAND_IN}:{batch}", trace, TURING, policy, budget, steps=STEPS.get(policy, FEW))
            row.append(found.status.partition(":")[0] if found.settled_s is None else
                       f"{batch / found.settled_s:.0f} images/s ({percent(share(found))})")
        rows.append(row)
    content.table(("batch", "survey, TFLMS", "of its speed at 120",
                   *(f"`{name}`" for name in (SWAPPING[-1:] if quick else SWAPPING))), rows)
    content.say("**Where they differ.** memonger: MXNet's BACKWARD_DO_MIRROR recomputes results of cheap "
                "operations. `openai-speed` recomputes all of them, not only those that MXNet chooses. MXNet's "
                "planner of memory lets tensors reuse the buffers of others; here every row does that. "
                "`chen-greedy` is memonger's own search, which also recomputes convolutions: it saves more memory "
                "and takes more time. TFLMS: 9 GB do not fit at 240. Copying them takes less than a second each way "
                "at 12 GB/s, but a step took 7 s in the survey: more than the link explains. Here copies run at the "
                "link's speed, beside computation.")


def _peak(trace: Trace, policy: str) -> int:
    """Return the peak bytes of an iteration under the plan of a policy."""
    costs = TURING.described().link_costs
    network = IterationNetwork.of(trace, costs)
    return peak_bytes(network, policies.create(policy).plan(trace, costs, Limits(UNLIMITED, UNLIMITED)).plan
                      if policy != "none" else EMPTY_PLAN)


def _more(value: float, before: float) -> str:
    return "" if value == before else f"{value / before - 1:+.1%}"


def overheads(content: Content, quick: bool) -> None:
    """Fill the page of DTR: the cost of its recomputation by budget, for each kind of neighbourhood in its heuristic.
    """
    content.say("How much longer a step takes under DTR, which only recomputes, by budget (a share of the "
                "unmanaged peak), on a simulated P100. DTR's paper draws such curves without numbers, so there are "
                "none to compare with. DTR's price for evicting a tensor includes the evicted tensors around it in the "
                "lineage, its neighbourhood. `dtr` uses the exact neighbourhood, `dtr-eqclass` an approximation "
                "by equivalence classes (union-find), and `dtr-local` only the tensor's own cost. `dtr-ignore` "
                "keeps tensors that the program has freed until their bytes are wanted.")
    for model, batch in DTR_NETWORKS[:1] if quick else DTR_NETWORKS:
        trace = trace_of(model, batch)
        lines: dict[str, list[tuple[float, float]]] = {name: [] for name in DTR}
        rows = []
        for budget in DTR_BUDGETS[:2] if quick else DTR_BUDGETS:
            row: list[object] = [f"{budget:.0%}"]
            for name in DTR:
                found = cell.run(f"{model}:{batch}", trace, Machine("p100"), name, budget)
                if found.settled_s is None:
                    row.append(found.status.partition(":")[0])
                else:
                    slower = found.settled_s / found.unmanaged_s - 1
                    row.append(f"{slower:+.1%}")
                    lines[name].append((budget, slower))
            rows.append(row)
        content.say(f"## {model} at {batch}")
        content.table(("budget", *(f"`{name}`" for name in DTR)), rows)
        drawn = curves({name: [(100 * x, 100 * y) for x, y in points] for name, points in lines.items()},
                       "% of the unmanaged peak", "% longer", falling=True)
        content.picture(f"dtr-{model}.png", drawn, f"{model}: time over the budget")
    content.say("**Where they differ.** The networks here are not those of DTR's paper, and their steps consist "
                "of other operations; the largest operation decides at which budget a curve ends. Parameters and "
                "optimizer state count as part of the peak and cannot be recomputed, so the curves of networks "
                "with many parameters end early.")
