"""Lesson 2: lifetimes, fragmentation, and placement as a game. Only the last cell, on request, needs Numba."""

import marimo

app = marimo.App(app_title="2. Lifetimes and fragmentation")

with app.setup:
    import marimo as mo

    import drawn
    from checks import lifetimes as check
    from minidl.errors import OutOfMemory
    from minidl.lab.placement import greedy_by_size, lifetimes_of, online, planned
    from minidl.lab.training_step import trace_of
    from minidl.outside.units import format_bytes


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 2. Lifetimes and fragmentation

    A tensor wants its bytes in one piece, at one address, from the call that makes it to the last call that reads it.
    So it is a rectangle: so wide in time, so high in bytes. To place tensors in memory is to lay these rectangles on a
    strip without letting two of them overlap. They may move up and down, and not to the left or right: time is the
    program's.

    The sum of what is live at once is a floor: no placement needs less. What a placement needs beyond it is **lost to
    fragmentation**. Free memory is there, and nothing can be put into it.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A game

    Seven buffers, with their lives and sizes. The picture shows where *best fit* puts them. It sees one after the
    other, in the order of their birth, and puts each into the smallest hole that is large enough. It cannot know what
    comes.
    """)
    return


@app.cell
def _():
    of_the_game = check.GAME
    by_best_fit = online("best-fit")(of_the_game, None)
    drawn.buffers(of_the_game, by_best_fit.offsets, title=f"best fit: {by_best_fit.peak_bytes} units of memory")
    return (of_the_game,)


@app.cell
def _(of_the_game):
    mo.ui.table([{"buffer": one.id, "from": one.lower, "up to, not including": one.upper, "units": one.size}
                 for one in of_the_game], selection=None)
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    ## Exercise 1: beat it

    At the worst moment {check.FLOOR} units are live, so nothing is lower than that. Find an address for each buffer so
    that {check.FLOOR} units are enough. Knowing the future is allowed: you do.
    """)
    return


@app.cell
def _():
    game = {"a": 0, "b": None, "c": None, "d": None, "e": None, "f": None, "g": None}
    return (game,)


@app.cell
def _(game):
    check.game(game)
    return


@app.cell
def _(game, of_the_game):
    mo.stop(None in game.values(), mo.md("*Your picture appears here once each buffer has an address.*"))
    drawn.buffers(of_the_game, game, title="yours")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: how broken is it?

    Memory has holes of these sizes. What part of the free bytes **cannot** serve the largest request that the largest
    hole can serve? This number, from 0 (one hole) towards 1 (crumbs), is called external fragmentation.
    """)
    return


@app.function
def fragmentation(holes: list[int]) -> float | None:
    """The part of the free bytes that does not lie in the largest hole; 0.0 if nothing is free."""
    return None


@app.cell
def _():
    check.fragmentation(fragmentation)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A real step

    The same with the buffers of a training step of ResNet-18. Four placements that see the future no better than a
    real allocator does, and one that knows all lives and places the largest first:
    """)
    return


@app.cell
def _():
    log = lifetimes_of(trace_of("resnet18", 64))
    floor = max(sum(one.size for one in log if one.lower <= moment < one.upper) for moment in {o.lower for o in log})
    needs = {name: online(name)(log, None).peak_bytes for name in ("best-fit", "first-fit", "bfc", "caching")}
    needs["largest first, knowing all lives"] = greedy_by_size(log).peak_bytes
    mo.vstack([mo.md(f"{len(log)} buffers; {format_bytes(floor)} are live at the worst moment."),
               mo.ui.table([{"placement": name, "needs": format_bytes(peak), "lost": f"{peak / floor - 1:.1%}"}
                            for name, peak in needs.items()], selection=None)])
    return floor, log


@app.cell
def _(log):
    drawn.buffers(log, greedy_by_size(log).offsets, unit=drawn.GIB, title="ResNet-18, largest first (GiB)")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    `bfc` places as TensorFlow does and `caching` as PyTorch does: it rounds sizes up and keeps what was freed in pools,
    so that asking again is quick. On a card that is nearly full such percents decide whether a batch runs.

    ## Exercise 3: write the placement

    Give each buffer its address: the largest first (of equals the longer-lived, then the earlier), each at the lowest
    address at which it overlaps with none that is placed already *and lives at the same time*. A buffer has `id`,
    `lower` (its birth), `upper` (the first moment without it) and `size`. Return a dict from id to address.
    """)
    return


@app.function
def largest_first(buffers: list) -> dict[str, int] | None:
    """Addresses for all buffers, each as low as those that were placed before it allow."""
    return None


@app.cell
def _():
    check.largest_first(largest_first)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What fragmentation does to a training

    A step in just the memory that is live at its worst moment. A placement that moves nothing fails. minidl's own
    (best fit) may slide blocks together, from one place on the device to another, which is cheap beside a
    copy over the link to the host; so for it "enough in total" is enough.
    """)
    return


@app.cell
def _(floor, log):
    def outcome(name: str, share: float) -> str:
        try:
            online(name)(log, round(floor * share))
        except OutOfMemory as error:
            return f"fails: {error}"
        return "fits"

    mo.md("\n".join(f"* {name}, at {share:.0%} of what is live: {outcome(name, share)}"
                    for name in ("best-fit", "caching") for share in (1.0, 1.05, 1.5)))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The optimum

    To find the least memory for given rectangles is hard: the problem is NP-complete. minidl plans addresses for a
    whole step with heuristics and then an exact search with limited work. That search is compiled by **Numba**, which
    takes some seconds the first time. Switch it on if you have the time.
    """)
    return


@app.cell
def _():
    compiled = mo.ui.switch(label="pack with the compiled search")
    mo.hstack([compiled])
    return (compiled,)


@app.cell
def _(compiled, floor, log):
    mo.stop(not compiled.value, mo.md("*The search has not been asked for.*"))
    packed = planned(log)
    mo.vstack([mo.md(f"{format_bytes(packed.peak_bytes)}: {packed.peak_bytes / floor - 1:.2%} above the floor."),
               drawn.buffers(log, packed.offsets, unit=drawn.GIB, title="packed (GiB)")])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * Tensors are rectangles. What is live at once is a floor, and fragmentation is what a placement needs beyond it.
    * A placement that sees one request after the other cannot avoid holes. One that knows the step can, nearly.
    * A training step is the same every time. So its lives can be known, and its addresses planned.
    """)
    return


if __name__ == "__main__":
    app.run()
