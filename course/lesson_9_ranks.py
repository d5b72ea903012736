"""Lesson 9: several devices. Sums in one order, deadlocks, a shared link. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="9. Ranks")

with app.setup:
    from concurrent.futures import ThreadPoolExecutor

    import marimo as mo

    from checks import ranks as check
    from minidl.device.profiles import named, shared
    from minidl.device.sim import SimDevice
    from minidl.outside.units import format_bytes
    from minidl.ranks import RanksDiverged, modelled, threads
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 9. Ranks

    If one device is too slow, train on several. Each of k processes, the **ranks**, gets a slice of every batch and
    computes the gradients of its slice. Then the ranks add up their gradients, and all make the same update.

    An operation in which all ranks take part is a **collective**. A sum is one. It raises three questions: in which
    order are numbers added, what happens if a rank does not come, and what does it take from the link?
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: the order of a sum

    Floating-point addition is not associative: `(1e16 + 1.0) - 1e16` is 0, and `(1e16 - 1e16) + 1.0` is 1. A library
    may add up along a tree, and its result then depends on the number of ranks. minidl adds up in the order of the
    slices, whichever rank has them. `held[r]` are the values of the slices that rank r holds, in order. Return their
    sum, added from the first slice to the last one. A rank must not add up its own slices first.
    """)
    return


@app.function
def ordered_sum(held: list[list[float]]) -> float | None:
    """The sum of all slices' values, in the order of the slices."""
    return None


@app.cell
def _():
    check.ordered_sum(ordered_sum)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A rank that does not come

    A collective waits for all ranks. If one takes another branch, the others wait for ever (a **deadlock**), or its
    bytes are added to what they do not belong to. So minidl's ranks compare a text before they send a byte. Here are
    two ranks, of which the second leaves out one sum:
    """)
    return


@app.cell
def _():
    programs = [["sum weight", "sum bias", "end"], ["sum weight", "end"]]
    told = ["", ""]

    def run(rank):
        try:
            for exchange in programs[rank.rank]:
                rank.require_alike(exchange)
        except RanksDiverged as error:
            told[rank.rank] = str(error)

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(run, threads(2)))
    mo.md("\n".join(f"* rank {number}: {text}" for number, text in enumerate(told)))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: where do they part?

    `programs` are the exchanges of each rank, in order. Return the number of the first exchange, from 0, at which the
    ranks do not all do the same; -1 if they never part. A rank whose program has ended does nothing.
    """)
    return


@app.function
def parts_at(programs: list[list[str]]) -> int | None:
    """The number of the first exchange that not all ranks make."""
    return None


@app.cell
def _():
    check.parts_at(parts_at)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Memory decides nothing about exchanges

    Memory management is different on every rank: one is short of memory and recomputes, another is not. If a
    recomputation led through a collective, a rank would wait for others that recompute nothing. So a collective is
    never replayed: its result is kept or swapped. For the same reason a rank must not choose by its own
    memory which gradients it sends together in one **bucket**.

    ## Exercise 3: buckets

    Gradients are ready in the order of `sizes`, in bytes. A bucket is sent when it has `full` bytes or more, the last
    one at the end. A gradient of `full` bytes or more is sent alone, at once, before the bucket that waits. Return
    the bytes of each exchange in the order in which they are sent.
    """)
    return


@app.function
def exchanges(sizes: list[int], full: int) -> list[int] | None:
    """The bytes of each exchange."""
    return None


@app.cell
def _():
    check.exchanges(exchanges)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One link for copies and exchanges

    n devices behind one switch share the host's bandwidth: each copies with an n-th of it. An exchange does not pass
    the host, but it takes the device's own link, which copies take, too. So swapping gets slower with every rank.
    Recomputation needs no link. VGG-16 at 280 images a rank in 13 GiB, by swapping alone:
    """)
    return


@app.cell
def _():
    rows = []
    for count in (1, 2, 4):
        device = SimDevice("sim:p100", shared(named("p100"), count))
        ran = train("vgg16", 280 * count, budget=13 << 30, policy="capuchin-swap", steps=6, device=device,
                    slices=count, ranks=modelled(count))
        rows.append(f"* {count} ranks: {ran.seconds[-1]:.2f} s a step, of which computation waits "
                    f"{ran.steps[-1].stall_seconds:.2f} s")
    mo.md("\n".join(rows))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: an exchange beside a copy

    An exchange would take `seconds` if it had the whole link. From the beginning a copy runs beside it for `copy_s`
    seconds, and takes the part `share` of the link, such as 1/n. How long does the exchange take?
    """)
    return


@app.function
def beside(seconds: float, copy_s: float, share: float) -> float | None:
    """The seconds of an exchange that begins together with a copy."""
    return None


@app.cell
def _():
    check.beside(beside)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What every rank keeps, and need not

    All ranks have the same parameters, gradients and optimizer states. **ZeRO** divides them: each rank keeps its rows
    of the states, updates these rows of the parameters, and sends them to the others. BERT-base, one sample a rank:
    """)
    return


@app.cell
def _():
    def kept(divide):
        ran = train("bert-base", 8, ranks=modelled(8, divide=divide), slices=8)
        return f"* {divide} divided: a step on each of 8 ranks needs {format_bytes(ran.steps[-1].peak_bytes)}"

    mo.md("\n".join(map(kept, ("nothing", "states", "gradients"))))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 5: ZeRO's bytes

    A network has `parameters` numbers of 4 bytes; Adam has two states. How many bytes of parameters, gradients, states
    does each of n ranks keep, if `divided` is `"nothing"`, `"states"` or `"gradients"` (which divides states, too)?
    """)
    return


@app.function
def kept_bytes(parameters: int, n: int, divided: str) -> int | None:
    """The bytes that each rank keeps."""
    return None


@app.cell
def _():
    check.kept_bytes(kept_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * k ranks have the bits of k slices on one device if sums are formed in the order of the slices.
    * Which exchanges a rank makes must not depend on anything that differs between ranks.
    * Links are shared, so the best plan for one device is not the best plan for eight.

    `docs/ranks.md` says how to train on several devices.
    """)
    return


if __name__ == "__main__":
    app.run()
