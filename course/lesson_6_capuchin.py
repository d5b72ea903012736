"""Lesson 6: Capuchin from end to end: a trace, a plan, its timeline, feedback. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="6. Capuchin")

with app.setup:
    import marimo as mo

    import drawn
    from checks import capuchin as check
    from minidl.device.profiles import named
    from minidl.memory.switches import Switches
    from minidl.outside.units import format_bytes
    from minidl.plan.plan import Action
    from minidl.planning.lifetimes import Lifetimes
    from minidl.report.decisions import decisions
    from minidl.report.sentences import sentence
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 6. Capuchin, from end to end

    Capuchin (Peng and others, ASPLOS 2020) rests on one observation: a training does the same in every step. So do not
    reason about layers. **Measure** one step, tensor access by tensor access. Make a **plan** from what was measured:
    which tensor leaves after which access, by a copy or by being dropped, and when its copy back starts. Carry it out
    in the next steps, look at who had to wait, and **correct** it. We follow it through a step of ResNet-50 at a batch
    of 250 on a P100, whose 14.8 GiB are not enough for it.
    """)
    return


@app.cell
def _():
    room = named("p100").memory_bytes
    free = train("resnet50", 250, steps=1)
    managed = train("resnet50", 250, budget=room, policy="capuchin", steps=5, record=True)
    drawn.memory(managed.trace, budget=room, title="what a step has live, were nothing evicted")
    return free, managed, room


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1. Measured

    The first steps run in passive mode: whatever does not fit is paged on demand. Meanwhile the tracker writes down
    each access as `{tensor, count, time}`. The waits of this step are taken out of the times. What is left is what
    the step would take with unlimited memory, which is what a plan has to be made for.
    """)
    return


@app.cell
def _(managed, room):
    trace = managed.trace
    facts = Lifetimes.of(trace)
    over = [live > room for live in facts.live_bytes]
    mo.md(f"""
    * {len(trace.accesses):,} accesses by {len(trace.calls)} calls in {trace.seconds:.3f} s, were there room for all.
    * Memory is short from call {over.index(True)} to call {len(over) - 1 - over[::-1].index(True)}, at most by
      {format_bytes(max(facts.live_bytes) - room)}.
    """)
    return (trace,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: candidates

    To evict a tensor helps only while memory is short. `calls` are the calls that access a tensor, in order, and
    `over[n]` says whether memory is short during call `n`. Return the pairs (evicted-access, back-access) of calls that
    follow one upon the other, and between which at least one call is short of memory. (The two do not count.)
    """)
    return


@app.function
def gaps(calls: list[int], over: list[bool]) -> list[tuple[int, int]] | None:
    """The pairs of consecutive accesses with a call between them that is short of memory."""
    return None


@app.cell
def _():
    check.gaps(gaps)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2. Planned

    Candidates are ranked by their free time, and swapped as long as copies can be hidden and memory is still short.
    Then comes the comparison of lesson 4, until enough is saved.

    ## Exercise 2: swap what can be hidden

    Each candidate is a triple (name, bytes, free time). Take them by their free time, the longest first, until at least
    `needed` bytes are saved, or nothing is left whose free time is at least 0. Return the names in this order.
    """)
    return


@app.function
def hidden_swaps(candidates: list[tuple[str, int, float]], needed: int) -> list[str] | None:
    """The names of the candidates to swap."""
    return None


@app.cell
def _():
    check.hidden_swaps(hidden_swaps)
    return


@app.cell
def _(managed, trace):
    plan = managed.plans[-1]
    decided = decisions(trace, plan, managed.costs)
    ways = [decision.action for decision in decided]
    mo.vstack([mo.md(f"The plan evicts {len(decided)} times: {ways.count(Action.SWAP_OUT)} swaps, "
                     f"{ways.count(Action.DROP)} drops. The largest ones:"),
               mo.ui.table([{"tensor": d.tensor_id, "made by": d.op, "bytes": format_bytes(d.nbytes),
                             "how": d.action.value, "from call": d.evict, "to call": d.back,
                             "free time, ms": round(d.free_time_s * 1e3, 1),
                             "replay, ms": None if d.recompute_seconds is None else round(d.recompute_seconds * 1e3, 1)}
                            for d in decided[:12]], selection=None)])
    return (decided,)


@app.cell
def _(decided, managed, trace):
    smallest_drop = next((d for d in decided[::-1] if d.action is Action.DROP), decided[-1])
    mo.md("In words, as `--explain` and the memory page have it:\n\n" + "\n".join(
        f"> {sentence(d, len(trace.calls), managed.followed[-1].returns, '')}\n" for d in (decided[0], smallest_drop)))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3. Carried out

    Earlier systems let a copy run beside one layer, and waited for both before the next began. Capuchin's computation
    waits for no copy out; only who needs its memory does. Here are both, as in the paper's Figure 7, of this very step:
    """)
    return


@app.cell
def _(managed, room):
    coupled = train("resnet50", 250, budget=room, policy="capuchin", steps=5, record=True,
                    switches=Switches(decoupled_swap=False))
    mo.vstack([drawn.streams(coupled.recorded, title=f"coupled: {coupled.seconds[-1]:.3f} s"),
               drawn.streams(managed.recorded, title=f"decoupled: {managed.seconds[-1]:.3f} s")])
    return (coupled,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 3: Figure 7 in numbers

    Layer n computes for `computes[n]` seconds, and a copy out of `copies[n]` seconds starts together with it. Coupled,
    the next layer begins when both have ended; decoupled, when the computation has ended. How long does the computation
    of all layers take, coupled and decoupled? Return both, in this order. (Nobody waits for memory.)
    """)
    return


@app.function
def figure_7(computes: list[float], copies: list[float]) -> tuple[float, float] | None:
    """Seconds until the last layer has computed: (coupled, decoupled)."""
    return None


@app.cell
def _():
    check.figure_7(figure_7)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4. Corrected

    What do the parts contribute? One is switched off at a time (the paper has such a breakdown as its Figure 8):
    """)
    return


@app.cell
def _(coupled, free, managed, room):
    unmeasured = train("resnet50", 250, budget=room, policy="capuchin", steps=5,
                       switches=Switches(measured_times=False))
    found = {"all of it": managed.steps[-1], "computation waits for copies": coupled.steps[-1],
             "planned from FLOPs, not measured": unmeasured.steps[-1], "on demand": managed.steps[0]}
    mo.ui.table([{"": name, "step, s": round(step.seconds, 3), "waited, s": round(step.stall_seconds, 3),
                  "replayed, s": round(step.recompute_seconds, 3), "speed": f"{free.seconds[-1] / step.seconds:.1%}"}
                 for name, step in found.items()], selection=None)
    return


@app.cell
def _():
    share = mo.ui.slider(45, 95, step=5, value=70, label="memory, % of what the step needs", show_value=True)
    mo.vstack([mo.md("The same network in more memory, or in less:"), share])
    return (share,)


@app.cell
def _(free, share):
    moved = train("resnet50", 250, budget=round(share.value / 100 * free.steps[-1].peak_bytes), policy="capuchin",
                  steps=5, record=True)
    ended = moved.steps[-1]
    drawn.streams(moved.recorded, title=f"{free.seconds[-1] / ended.seconds:.0%} of the speed; waited "
                                        f"{ended.stall_seconds:.2f} s, replayed {ended.recompute_seconds:.2f} s")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: where did the time go?

    A step that is managed computes what an unmanaged step computes, replays something, and waits for copies. From the
    seconds of the step, of the unmanaged step and of the replays: how long did it wait?
    """)
    return


@app.function
def waited(step_s: float, unmanaged_s: float, replay_s: float) -> float | None:
    """Seconds that the computation stood still."""
    return None


@app.cell
def _():
    check.waited(waited)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    All of this is on one page for a browser: `minidl view --model resnet50 --batch 250 --policy capuchin -o page.html`.

    ## What to take along

    * Nothing here knows what a convolution is. Measured accesses are enough.
    * A plan is made for the times that the step would have without waits, and memory is short in only a part of it.
    * What a plan does not foresee costs time and never correctness: beneath it the pages are still fetched on demand.
    """)
    return


if __name__ == "__main__":
    app.run()
