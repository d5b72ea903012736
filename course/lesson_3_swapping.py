"""Lesson 3: swapping, what it costs, how computation hides it, and feedback. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="3. Swapping")

with app.setup:
    from dataclasses import replace

    import marimo as mo

    import drawn
    from checks import swapping as check
    from minidl.device.profiles import named
    from minidl.device.sim import SimDevice
    from minidl.memory.switches import Switches
    from minidl.outside.units import format_bytes
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 3. Swapping

    What is saved for the backward pass is not looked at for a while. So copy it to the host's memory, give its place to
    others, and copy it back before it is wanted. The host has ten times the memory, and a thin straw to drink it
    through: a P100 reads its own memory at 732 GB/s, and the host's at about 12.

    A card has engines for copies that work beside its computation, one for each direction. So a copy costs nothing as
    long as computation has something to do meanwhile. The art is to start copies early enough, and not too early.
    """)
    return


@app.cell
def _():
    GIB = drawn.GIB
    p100 = named("p100")
    mo.md(f"""
    The simulated P100 has {format_bytes(p100.memory_bytes)}, and {p100.link_out_bandwidth / 1e9:.1f} GB/s each way.
    """)
    return GIB, p100


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## On demand

    The simplest swapping waits until memory is short (*passive mode* in the Capuchin paper). Then it pushes out what
    was used first, and fetches it when somebody asks. Each time, the computation stands still. Here is VGG-16 at a
    batch of 280, which would need 21.1 GiB, in 13 GiB:
    """)
    return


@app.cell
def _(GIB):
    unmanaged = train("vgg16", 280)
    passive = train("vgg16", 280, budget=13 * GIB, policy="passive", record=True)
    last = passive.steps[-1]
    mo.vstack([
        mo.md(f"""
    With enough memory a step takes {unmanaged.seconds[-1]:.2f} s. On demand it takes **{passive.seconds[-1]:.2f} s**,
    of which the computation waited {last.stall_seconds:.2f} s; {format_bytes(last.swapped_out_bytes)} went out and
    {format_bytes(last.swapped_in_bytes)} came in.
    """),
        drawn.streams(passive.recorded, title="VGG-16 at 280 in 13 GiB, on demand: copies and computation in turn")])
    return (unmanaged,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: free time

    A tensor is used at `evicted_at` (seconds from the start of the step) and next at `back_at`. To copy it out takes
    `out_s`, to copy it in `in_s`. Its **free time** is what is left between the end of the one copy and the latest
    start of the other that is in time. Where it is negative, somebody will wait.
    """)
    return


@app.function
def free_time(evicted_at: float, back_at: float, out_s: float, in_s: float) -> float | None:
    """Seconds between the end of the copy out and the latest start of the copy in."""
    return None


@app.cell
def _():
    check.free_time(free_time)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: the in-trigger

    A plan cannot say "start the copy at 0.731 s": a program has no clock, it has calls. So it says "start it after that
    access". `times` are the times at which the accesses of a step begin, in order. The tensor is evicted after access
    number `evict` and wanted at access number `back`. Choose the **latest** access that begins **before** the copy in
    has to start, and comes after `evict`. Where there is none, return `back`: it is then fetched on demand.
    """)
    return


@app.function
def in_trigger(times: list[float], evict: int, back: int, in_s: float) -> int | None:
    """The number of the access after which the copy in is started."""
    return None


@app.cell
def _():
    check.in_trigger(in_trigger)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The straw is one straw

    Free time counts each tensor as if it were alone. But one direction of the link carries one copy at a time, and the
    others queue behind it. How much that costs is the difference between a plan on paper and a plan that works.

    ## Exercise 3: the queue

    Copies are asked for at the times `ready`, in this order, and take so many `seconds` each. Each starts as soon as it
    has been asked for and the one before it has ended. When does each end?
    """)
    return


@app.function
def copy_ends(ready: list[float], seconds: list[float]) -> list[float] | None:
    """The end of each copy on a link that carries one at a time."""
    return None


@app.cell
def _():
    check.copy_ends(copy_ends)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Planned

    Now with a plan: Capuchin looks at one step, ranks tensors by their free time, and chooses in-triggers. Then it is
    corrected by **feedback**: where the computation still had to wait for a tensor, its copy in is started
    earlier in the next step, by 5% of what the copy takes. The first two steps are on demand, then the plan comes.
    """)
    return


@app.cell
def _(GIB, unmanaged):
    steps = 14
    corrected = train("vgg16", 280, budget=13 * GIB, policy="capuchin-swap", steps=steps, record=True)
    as_it_was = train("vgg16", 280, budget=13 * GIB, policy="capuchin-swap", steps=steps,
                      switches=Switches(feedback=False))
    drawn.lines({"with feedback": corrected.seconds, "without": as_it_was.seconds,
                 "unlimited memory": unmanaged.seconds[-1:] * steps}, across="step", upwards="seconds", start=1)
    return (corrected,)


@app.cell
def _(corrected):
    mo.vstack([
        mo.md(f"{len(corrected.plans[-1].evictions)} tensors are swapped; a step takes {corrected.seconds[-1]:.3f} s "
              f"instead of {corrected.seconds[0]:.3f}, and waits {corrected.steps[-1].stall_seconds:.3f} s of it."),
        drawn.streams(corrected.recorded, title="the same, planned: copies run beside the computation")])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: how long does feedback take?

    At first the computation waits `late_s` seconds for a tensor whose copy in takes `in_s`. Each step the copy starts
    5% of `in_s` earlier than in the step before. After how many corrections does nobody wait any more?
    """)
    return


@app.function
def corrections(late_s: float, in_s: float) -> int | None:
    """The number of corrections until the copy is in time."""
    return None


@app.cell
def _():
    check.corrections(corrections)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Faster cards, same straw

    Would a wider link help? What if the card computes faster? The simulated P100, with one number of it changed:
    """)
    return


@app.cell
def _(GIB, p100):
    def speed(profile) -> str:
        def device():
            return SimDevice(f"sim:{profile.name}", profile)
        alone = train("vgg16", 280, device=device()).seconds[-1]
        ran = train("vgg16", 280, budget=13 * GIB, policy="capuchin-swap", steps=10, device=device())
        return f"{alone / min(ran.seconds):.0%} of the speed with unlimited memory"

    link = p100.link_out_bandwidth
    mo.md("\n".join(f"* {name}: {speed(profile)}" for name, profile in {
        "a P100": p100,
        "with half of its link": replace(p100, link_out_bandwidth=link / 2, link_in_bandwidth=link / 2),
        "with twice its link": replace(p100, link_out_bandwidth=2 * link, link_in_bandwidth=2 * link),
        "an A100 with its own link": named("a100"),
    }.items()))
    return


@app.cell
def _():
    card = mo.ui.dropdown(["p100", "v100", "a100"], value="p100", label="card")
    times = mo.ui.slider(0.25, 4, step=0.25, value=1, label="its link, times", show_value=True)
    room = mo.ui.slider(11, 21, value=13, label="memory, GiB", show_value=True)
    mo.vstack([mo.md("Which card, link and memory lose nothing? Move them:"),
               mo.hstack([card, times, room], justify="start", gap=2)])
    return card, room, times


@app.cell
def _(GIB, card, room, times):
    chosen = named(card.value)
    wider = replace(chosen, link_out_bandwidth=times.value * chosen.link_out_bandwidth,
                    link_in_bandwidth=times.value * chosen.link_in_bandwidth)
    moved = train("vgg16", 280, budget=room.value * GIB, policy="capuchin-swap", steps=6, record=True,
                  device=SimDevice("sim:chosen", wider))
    drawn.streams(moved.recorded, title=f"{min(moved.seconds):.2f} s a step; computation waits "
                                        f"{moved.steps[-1].stall_seconds:.2f} s of the last one")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * A copy is free while there is something to compute; free time says whether there is.
    * A plan names accesses and not times, and each direction of the link carries one copy at a time.
    * A plan is made from what was measured and corrected by what is seen. It need not be right at once.
    * The faster the card, the less swapping can carry for nothing: what there is to hide behind is its computation.
    """)
    return


if __name__ == "__main__":
    app.run()
