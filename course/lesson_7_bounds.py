"""Lesson 7: what no plan can exceed, exact plans, and slices. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="7. Bounds, exact plans and slices")

with app.setup:
    from math import inf

    import marimo as mo

    import drawn
    from chains import MIB, chain
    from checks import bounds as check
    from minidl import Runtime
    from minidl.device.profiles import named
    from minidl.errors import OutOfMemory
    from minidl.lab import cell
    from minidl.lab.training_step import trace_of, training_step
    from minidl.outside.units import UNLIMITED, format_bytes
    from minidl.plan.costs import Costs, Limits
    from minidl.planning.bound import bound
    from minidl.policies.literature.exact.policy import Exact
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 7. Bounds, exact plans and slices

    A policy reaches 91% of the unmanaged speed. Is that good? It may be that nothing can do better; it may be that 99%
    are possible. Without a bound a number says little. This lesson has three kinds: what arithmetic alone says, what a
    linear program says, and what the true optimum is where a problem is small enough. In the end it breaks one of them.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: a bound of one line

    A step computes for `compute_s` seconds. Its plan copies `out_bytes` to the host and `in_bytes` back, over a link
    that carries `rate` bytes a second *in each direction, at the same time*. No order of copies, however clever, makes
    the step shorter than what? (Assume the best: every copy may run at any time.)
    """)
    return


@app.function
def least_seconds(compute_s: float, out_bytes: float, in_bytes: float, rate: float) -> float | None:
    """What a step takes at least."""
    return None


@app.cell
def _():
    check.least_seconds(least_seconds)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A linear program

    Let tensors be fractions: of each tensor, between two of its uses, keep a part, copy a part out and back, and drop a
    part. Memory must suffice at some instants, and the link has only so many seconds. Minimise the time. A real plan
    must take each tensor whole and find an address for it, so it cannot be faster than this. The program is solved in
    a moment (SciPy's HiGHS), and here is what it says of ResNet-18, beside three policies:
    """)
    return


@app.cell
def _():
    p100 = named("p100").link_costs
    resnet = trace_of("resnet18", 64)
    need = train("resnet18", 64, steps=1).steps[-1].peak_bytes
    shares = (0.8, 0.5)

    def speeds(policy: str) -> list[float]:
        return [resnet.seconds / train("resnet18", 64, budget=round(share * need), policy=policy, steps=3).seconds[-1]
                for share in shares]

    found = {"bound": [bound(resnet, p100, round(share * need), instants=12).speed for share in shares]}
    found |= {policy: speeds(policy) for policy in ("capuchin", "dtr-swap", "passive")}
    mo.vstack([drawn.lines(found, across="memory: 80%, 50% of what is needed", upwards="speed", start=1),
               mo.md("\n".join(f"* {name}: " + ", ".join(f"{speed:.1%}" for speed in values)
                               for name, values in found.items()))])
    return need, resnet


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: how far from the best?

    A plan takes `plan_s`, and the bound says `bound_s`. By what part of the true optimum, which nobody knows, can the
    plan be longer **at most**?
    """)
    return


@app.function
def gap(plan_s: float, bound_s: float) -> float | None:
    """The largest part of the optimum that the plan may be longer than it."""
    return None


@app.cell
def _():
    check.gap(gap)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The optimum itself

    For about a dozen tensors a mixed-integer program finds the best plan, and proves that there is no better one.
    minidl has it as a policy like any other (`exact`). A chain of 8 and of 10 layers, in memory for three checkpoints
    and what is at hand; nothing can be swapped:
    """)
    return


@app.cell
def _():
    room = round(6.2 * MIB)

    def optimum(layers: int) -> float:
        return Exact().plan(chain(layers), Costs(inf, inf, 0.0), Limits(room, UNLIMITED)).plan.predicted_seconds

    def reached(policy: str, layers: int) -> float:
        return cell.run("chain", chain(layers), cell.Machine(), policy, room).settled_s

    mo.ui.table([{"layers": layers, "unmanaged, s": round(chain(layers).seconds, 3),
                  "optimum, s": round(optimum(layers), 3),
                  **{f"{policy}, s": round(reached(policy, layers), 3) for policy in ("dtr", "capuchin-recompute")}}
                 for layers in (8, 10)], selection=None)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The wall

    There is a bound of another kind, on memory. An operation needs all its operands at once. What is not an operand can
    be elsewhere, so this is the least memory in which a step runs at all:

        distinct inputs + outputs - outputs that may be written over an input

    ## Exercise 3: the largest operation

    An operation reads `inputs` (a list; a tensor may be in it twice), makes `outputs`, and `over` is a dict from an
    output to the input that it may be written over. `sizes` has bytes. How many bytes must be there at once?
    """)
    return


@app.function
def operands(inputs: list[str], outputs: list[str], over: dict[str, str], sizes: dict[str, int]) -> int | None:
    """Bytes that an operation needs at once."""
    return None


@app.cell
def _():
    check.operands(operands)
    return


@app.cell
def _(need):
    def largest(slices: int) -> tuple[str, int]:
        with Runtime("sim:p100", policy="none", memory_budget=UNLIMITED, slices=slices) as runtime:
            demand = runtime.dry_run(training_step("resnet18", 64))
        return demand.largest_op, demand.largest_op_bytes

    name, nbytes = largest(1)
    mo.md(f"""
    For ResNet-18 at 64 it is `{name}` with **{format_bytes(nbytes)}**, {nbytes / need:.0%} of the step's peak. No
    policy that moves whole tensors trains it in less.
    """)
    return (largest,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Through the wall

    So cut the tensors. minidl can cut a batch into `k` **slices**. To the program nothing changes; underneath, an
    operation on the batch becomes k operations on slices, and each slice is moved by itself.

    ## Exercise 4: how many slices?

    minidl takes one slice if the largest operation needs at most half of the budget. Otherwise it takes the least power
    of two with which it needs at most a quarter, so that something can be in flight beside it. Assume that k slices
    need a k-th of the bytes.
    """)
    return


@app.function
def slices(operation_bytes: int, budget: int) -> int | None:
    """Into how many slices a batch is cut."""
    return None


@app.cell
def _():
    check.slices(slices)
    return


@app.cell
def _(largest, resnet):
    def outcome(count: int) -> str:
        try:
            run = train("resnet18", 64, budget=300 * MIB, policy="dtr-swap", slices=count)
        except OutOfMemory as error:
            return f"fails: {error}"
        return f"{run.seconds[-1]:.3f} s a step ({resnet.seconds / run.seconds[-1]:.0%} of the unmanaged speed)"

    mo.md("ResNet-18 at 64 in 300 MiB, a quarter of what it needs, by the number of slices:\n\n" + "\n".join(
        f"* in {count}, the largest operation {format_bytes(largest(count)[1])}: {outcome(count)}"
        for count in (1, 2, 4)))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * A number needs a bound beside it. A bound may be crude and still tell that nothing is left to gain.
    * Small cases can be solved exactly. They show where a policy that is good on the average decides wrongly.
    * Some bounds belong to the problem, and some to how it was put. "No tensor is cut" was of the second kind.
    * minidl's own policy, `auto`, searches plans on the simulated step, and comes nearer to the bound (`minidl train`).
    """)
    return


if __name__ == "__main__":
    app.run()
