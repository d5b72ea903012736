"""Lesson 4: recomputing: chains, memory saving per second by hand, replays. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="4. Recomputing")

with app.setup:
    import marimo as mo

    import drawn
    from checks import recomputing as check
    from minidl.memory.switches import Switches
    from minidl.outside.units import format_bytes
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 4. Recomputing

    There is another way to be rid of a tensor: throw it away, and compute it again when it is wanted. It needs no link
    and no host memory. It needs time on the one unit that has none to spare, so it can never be hidden, as a copy can.
    But some tensors cost next to nothing to make again: a ReLU's or a batch norm's result takes a hundredth of the time
    of the convolution beside it, and just as many bytes.

    To make a tensor again its inputs must be there. If they are not, they are made again first, and so on, up to
    something that is. The calls that are carried out once more are a **replay**, the way back is the **lineage**.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A chain

    The simplest network is a chain of `n` layers of one second and one byte each. The backward pass wants the results
    in reverse order. Keep every `k`-th result (a *checkpoint*), drop the others, and replay each stretch between two
    checkpoints once, when the backward pass gets there. The replayed stretch has to be held while it is used. So at
    the worst moment memory has the `n / k` checkpoints, rounded up, and a stretch of `k`.
    """)
    return


@app.cell
def _():
    def bytes_held(n: int, k: int) -> int:
        return -(-n // k) + k

    drawn.lines({f"{n} layers": [bytes_held(n, k) for k in range(1, 41)] for n in (100, 400)},
                across="a checkpoint every so many layers", upwards="bytes at the worst moment", start=1)
    return


@app.cell
def _():
    apart = mo.ui.slider(steps=[1, 2, 4, 5, 10, 20, 25, 50, 100], value=25, show_value=True,
                         label="of 100 layers, a checkpoint every so many")
    mo.vstack([apart])
    return (apart,)


@app.cell
def _(apart):
    k, stretches = apart.value, range(100 // apart.value)
    forward = [layer // k + 1 for layer in range(100)]
    backward = [stretch + 1 + held for stretch in reversed(stretches)
                for held in (*range(1, k + 1), *range(k, 0, -1))]  # replay a stretch, then use its results backwards
    drawn.lines({f"at most {max(backward)} bytes": forward + backward}, across="second", upwards="bytes held")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: the best spacing

    For which `k` is the memory the least? (Of equals take any.) All of it costs one more forward pass, whatever `k` is.
    """)
    return


@app.function
def spacing(n: int) -> int | None:
    """How many layers to put between two checkpoints of a chain of n layers, for the least memory."""
    return None


@app.cell
def _():
    check.spacing(spacing)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: what has to be replayed?

    Real networks are no chains. `made_by` says for each tensor from which others its call makes it, and `there` is the
    set of tensors that are on the device. Return the set of tensors that have to be made, again or on the way, to get
    `wanted`.
    """)
    return


@app.function
def replayed(made_by: dict[str, list[str]], there: set[str], wanted: str) -> set[str] | None:
    """The tensors whose calls are carried out once more."""
    return None


@app.cell
def _():
    check.replayed(replayed)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Which one to drop?

    Capuchin's measure is **memory saving per second** (MSPS): the bytes that are saved, divided by the seconds of the
    replay. The largest goes first. The difficulty is that choices change each other. Take the paper's example:

        T1 -> T2 -> T3 -> T4        one MiB each; to make them from the one before takes 1, 2, 4 and 8 ms

    Backward, T4 is wanted first, then T2, then T1; T3 is not wanted again, so it is dead by then. T1 is made from
    something that stays. At the start nothing has been dropped:

    | | replay | takes |
    |---|---|--:|
    | T1 | T1 | 1 ms |
    | T2 | T2, from T1 | 2 ms |
    | T4 | T3 and T4, from T2 | 12 ms |

    The largest MSPS is T1's, of course. But suppose that T1 must stay for a moment, and **T2 is dropped**.

    ## Exercise 3: by hand

    What does it now cost, in ms, to drop T4 as well? And what to drop T1 as well: its own replay, and what is added to
    the replay of T2, which starts from it? Then suppose that **T4 is dropped**, too: what does T1 cost now?
    """)
    return


@app.cell
def _():
    by_hand = {"T4 after T2": None, "T1 after T2": None, "T1 after T2 and T4": None}
    return (by_hand,)


@app.cell
def _(by_hand):
    check.by_hand(by_hand)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    This is all that Capuchin's second algorithm does: take the largest MSPS; whoever started from the chosen tensor now
    starts from *its* sources and takes so much longer; and the sources become dearer by each replay that begins with
    them. The check above asked minidl's own implementation (`minidl/policies/capuchin/msps.py`).

    ## Collective recomputation

    On the way from T2 to T4 a replay makes T3. If T3 were wanted later, it would be a waste to throw it away. minidl
    keeps what comes by and is still wanted, as long as memory lasts; the paper calls that *collective*. Switch it off
    and count. The network is a ResNet-18 in 40% of what it needs:
    """)
    return


@app.cell
def _():
    need = train("resnet18", 64).steps[-1].peak_bytes
    budget = round(0.4 * need)

    def told(name: str, collective: bool) -> str:
        run = train("resnet18", 64, budget=budget, policy="capuchin-recompute", steps=4,
                    switches=Switches(collective=collective))
        last = run.steps[-1]
        return (f"* {name}: {last.seconds * 1e3:.1f} ms a step, {last.recompute_seconds * 1e3:.1f} ms of them replays, "
                f"which make {format_bytes(last.recomputed_bytes)}")

    mo.md("\n".join([told("collective", True), told("each on its own", False)]))
    return (need,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Swap or recompute?

    The same network in ever less memory, with each way alone and with both. At the top is the speed with unlimited
    memory.
    """)
    return


@app.cell
def _(need):
    shares = (0.9, 0.75, 0.6, 0.5)
    full = train("resnet18", 64).seconds[-1]

    def speeds(policy: str) -> list[float]:
        runs = [train("resnet18", 64, budget=round(share * need), policy=policy, steps=5) for share in shares]
        return [full / min(run.seconds) for run in runs]

    found = {policy: speeds(policy) for policy in ("capuchin-swap", "capuchin-recompute", "capuchin")}
    drawn.lines(found, across="memory: 90%, 75%, 60%, 50% of what is needed", upwards="speed", start=1)
    return (found,)


@app.cell
def _(found):
    mo.md("\n".join(f"* {name}: " + ", ".join(f"{speed:.0%}" for speed in values) for name, values in found.items()))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: the rule

    Once all swaps that can be hidden are taken, Capuchin compares the best swap with the best replay, and takes the one
    that costs less. Small tensors would win each time if only seconds counted, so minidl compares seconds **per byte**.
    Return `"swap"` or `"recompute"`; where both cost the same take the replay, which leaves the link to others.
    """)
    return


@app.function
def cheaper(swap_s: float, swap_bytes: int, replay_s: float, replay_bytes: int) -> str | None:
    """Which of the two candidates to take, from the seconds that each costs and the bytes that each saves."""
    return None


@app.cell
def _():
    check.cheaper(cheaper)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * Recomputing costs time on the unit that computes, and nothing else. A copy costs the link, and may be hidden.
    * In a chain the square root is the law: with sqrt(n) checkpoints memory falls from n to about 2 sqrt(n).
    * What a drop costs depends on what else has been dropped. Choices have to be counted together.
    """)
    return


if __name__ == "__main__":
    app.run()
