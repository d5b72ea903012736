"""Lesson 5: dynamic tensor rematerialization, a policy of a few lines. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="5. DTR")

with app.setup:
    import marimo as mo

    import drawn
    from chains import MIB, chain
    from checks import dtr as check
    from minidl.errors import OutOfMemory
    from minidl.lab.cell import Machine
    from minidl.lab.cell import run as run_cell
    from minidl.plan.plan import Action, Eviction
    from minidl.plan.policy import OnDemand, Price, Regime
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 5. Dynamic tensor rematerialization

    A plan needs a program that does the same in every step. What if it does not, or if the first step has to run
    already?
    *Dynamic tensor rematerialization* (DTR; Kirisame and others, 2021) decides when memory is short, with what it knows
    at that moment, like a cache. It drops what promises the least regret, and makes it again if somebody asks.

    A cache looks at how long something has not been used. A tensor is more than a page: it has bytes, and it has a
    price. So DTR scores each tensor that is on the device and drops the one of the least score `h`:

        h = price / (bytes x staleness)

    Cheap to make again, large, long unused: that is what goes first.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: the score

    `seconds` is the price, `idle_calls` how many calls ago the tensor was used last. Something that was used by the
    last call of all has been idle for 0 calls; count its staleness as 1, so that nothing is divided by zero.
    """)
    return


@app.function
def score(seconds: float, nbytes: int, idle_calls: int) -> float | None:
    """The regret that dropping a tensor promises, for its bytes and staleness."""
    return None


@app.cell
def _():
    check.score(score)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The price is not its own

    To make a tensor again takes its own call. But if its input is missing too, that has to be made first. And if
    something that starts *from* it is missing, then that will cost more from now on. So the price of a tensor is that
    of its
    **evicted neighbourhood**: its own call, those of the missing tensors that it needs, and those of the missing
    tensors that need it, however many missing tensors lie in between.

    ## Exercise 2: the neighbourhood

    `made_by` says from which others each tensor is made, `seconds` what its call takes, `missing` which have been
    dropped. What is the price of dropping `tensor`, which is still there? Count each call once.
    """)
    return


@app.function
def price(made_by: dict[str, list[str]], seconds: dict[str, float], missing: set[str], tensor: str) -> float | None:
    """Seconds of the tensor's own call, and of the missing ones that hang together with it, upwards and downwards."""
    return None


@app.cell
def _():
    check.price(price)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 3: the policy

    A policy of minidl is shown all tensors that may leave (`minidl.plan.policy.Residency`): `tensor_id`, `nbytes`,
    `idle_calls`, and `recompute_seconds`, the price of its neighbourhood, which the engine has worked out. That is
    None for what cannot be made again, such as a weight. Return the ids of those that may be dropped, the first to go
    first; of equal scores the smaller id.
    """)
    return


@app.function
def ranking(resident: list) -> list[int] | None:
    """The ids of the tensors that can be made again, by their score."""
    return None


@app.cell
def _():
    check.ranking(ranking)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Your ranking becomes a policy here. This class is all that it takes; the engine does the rest, the accounting
    included.
    """)
    return


@app.class_definition
class Mine(OnDemand):
    """Drops what the ranking of the exercise says, and never swaps."""

    name = "mine"
    weighs_recomputation = True
    regime = Regime(swaps=False, price=Price.NEIGHBOURHOOD)

    def victims(self, resident, pressure):
        """The ranking, as evictions."""
        return [Eviction(tensor_id, Action.DROP) for tensor_id in ranking(list(resident)) or ()]


@app.cell
def _():
    unmanaged = train("resnet18", 64)
    need, full = unmanaged.steps[-1].peak_bytes, unmanaged.seconds[-1]
    shares = (0.9, 0.8, 0.7, 0.6)

    def speeds(policy) -> list[float]:
        found = []
        for share in shares:
            try:
                found.append(full / train("resnet18", 64, budget=round(share * need), policy=policy).seconds[-1])
            except OutOfMemory:
                found.append(0.0)
        return found

    policies = {name: name for name in ("dtr", "lru", "passive")}
    if ranking([]) is not None:
        policies["mine"] = Mine()
    compared = {name: speeds(policy) for name, policy in policies.items()}
    mo.vstack([drawn.lines(compared, across="memory: 90%, 80%, 70%, 60% of what is needed", upwards="speed", start=1),
               mo.md("\n".join(f"* {name}: " + ", ".join(f"{speed:.0%}" for speed in values)
                               for name, values in compared.items()))])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    `lru` and `passive` swap, `dtr` drops: all three decide on demand, in the step itself. A copy that nobody has
    started ahead of time makes the computation wait; a replay is short if the right tensor was chosen. On this card,
    and for this network, dropping wins by far. (A speed of 0% means that an operation found no room.)

    ## A chain, once more

    For a chain of n layers lesson 4 found that about 2 sqrt(n) units of memory are enough for one more forward pass.
    That took a plan. DTR has none, and sees one request after the other. How many forward passes does it compute again?
    """)
    return


@app.cell
def _():
    sizes = (16, 64, 144)

    def again(policy: str, layers: int) -> float:
        trace, units = chain(layers), 2 * layers ** 0.5 + 3
        row = run_cell("chain", trace, Machine(), policy, round(units * MIB), steps=2)
        return (row.settled_s - row.unmanaged_s) / (layers * trace.calls[1].seconds)

    passes = {name: [again(name, layers) for layers in sizes] for name in ("dtr", "dtr-eqclass", "dtr-local")}
    mo.ui.table([{"policy": name, **{f"{layers} layers": f"{value:.2f}" for layers, value in
                                    zip(sizes, values, strict=True)}} for name, values in passes.items()],
                selection=None)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    `dtr` has the exact neighbourhood as its price. It stays below one forward pass at all three lengths: it finds the
    checkpoints without being told what a chain is. `dtr-local` counts each tensor's own call alone, does not
    notice that a gap between two dropped tensors is dear, and pays more the longer the chain is. `dtr-eqclass` counts
    the neighbourhood approximately, in next to no time; on this chain that is no better than not at all.

    Where does it get dear? Move the memory of a chain of 64 layers, in units of the square root of its length:
    """)
    return


@app.cell
def _():
    roots = mo.ui.slider(1.5, 5, step=0.25, value=2, label="memory, times 8 units", show_value=True)
    mo.vstack([roots])
    return (roots,)


@app.cell
def _(roots):
    def forward_passes(policy: str) -> float:
        trace = chain(64)
        row = run_cell("chain", trace, Machine(), policy, round((8 * roots.value + 3) * MIB), steps=2)
        return (row.settled_s - row.unmanaged_s) / (64 * trace.calls[1].seconds)

    mo.md("\n".join(f"* {name}: {forward_passes(name):.2f} forward passes again"
                    for name in ("dtr", "dtr-eqclass", "dtr-local")))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * On demand, a policy sees the present and the past. Price, bytes and staleness make a good guess of the future.
    * What a tensor costs depends on its surroundings. A policy that forgets that makes holes that are dear to fill.
    * Where steps repeat, a plan can do better: it sees the future. That is the next lesson.
    """)
    return


if __name__ == "__main__":
    app.run()
