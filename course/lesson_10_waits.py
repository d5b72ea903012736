"""Lesson 10: streams and their waits, and how to find one that is missing. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="10. Waits")

with app.setup:
    import marimo as mo

    import drawn
    from checks import waits as check
    from checks.waits import planted, right
    from minidl.device.clock import STREAM_NAMES
    from virtual import Work, first_wrong, history, train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 10. Waits

    A device has three **streams**: computation, copies out, copies in. Each does its work in order, and none cares
    about the others. That is why a copy costs nothing beside a computation (lesson 3), and why a copy can read bytes
    that are not yet computed. So work of one stream is told to **wait** until another stream has passed a point.

    If one wait is missing, nothing crashes. The loss still falls, since training forgives wrong numbers. Often the
    right work happens to be over in time, and then even the bits are right. In this lesson you find missing waits.

    ## Exercise 1: what a wait is

    `work` lists pieces of work in the order in which they were issued: each has a stream, its seconds, and the numbers
    of earlier pieces that it waits for. A piece starts when the piece before it on its stream has ended, and all
    that it waits for. When does each start?
    """)
    return


@app.function
def starts(work: list[tuple[str, float, list[int]]]) -> list[float] | None:
    """The start of each piece of work."""
    return None


@app.cell
def _():
    check.starts(starts)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: who must wait?

    The program issues the piece `earlier`, and then `later`. Each is a stream, the bytes that it reads, and the bytes
    that it writes, as lists of (first byte, end). Does `later` need a wait, so that the result is that of one after
    the other? Return True or False.
    """)
    return


@app.function
def must_wait(earlier: tuple, later: tuple) -> bool | None:
    """True if the later piece of work needs a wait for the earlier one."""
    return None


@app.cell
def _():
    check.must_wait(must_wait)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The waits of swapping

    There are three streams, so there are six kinds of waits. These four are needed all the time:

    * **copy-out on compute**: a copy out waits for the kernel that computes its bytes;
    * **compute on copy-out**: a kernel that writes to a freed block waits for the copy out that still reads it;
    * **copy-in on compute**: a copy into a freed block waits for the kernels that still use it;
    * **compute on copy-in**: a kernel waits for the copy in of what it reads.

    minidl keeps the last position of each stream that used a block as the block's **marks**. The next user of
    the block waits for them (`minidl/memory/allocator.py`).

    A small network is now trained in half of the bytes that it takes unmanaged, by swapping. The device has real
    numbers and the virtual clock (`course/virtual.py`), on which every copy is as late as the waits allow.
    """)
    return


@app.cell
def _():
    unmanaged = train(share=1)
    same = right().losses == unmanaged.losses
    mo.md(f"With all waits, the {len(right().losses)} losses have {'the same' if same else 'other'} bits as unmanaged.")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One wait less

    The trainings A, B and C are the same, but each lacks all waits of one kind. Would you have noticed?
    """)
    return


@app.cell
def _():
    drawn.lines({"all waits": right().losses, **{name: planted(name).losses for name in "ABC"}},
                across="step", upwards="loss", start=1)
    return


@app.cell
def _():
    def other(name):
        pairs = zip(planted(name).losses, right().losses, strict=True)
        return next(step for step, (found, expected) in enumerate(pairs, 1) if found != expected)

    mo.md("All fall. A log of every tenth step would miss the odd loss in A. The first loss with other bits is of step "
          + ", ".join(f"{other(name)} in {name}" for name in "ABC")
          + ". A curve does not show a missing wait; a comparison of bits with the unmanaged training does.")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 3: which wait is missing?

    The device has noted a checksum of all that its kernels read. So the first kernel that reads other bits than in the
    right training is known, and so is the history of these bytes: who computed them, copied them out, and copied them
    in, and who wrote next to the block that they left. Here it is, for each training. Look for a piece of work that
    begins before an earlier one on the same bytes has ended. The numbers tell the order in which the program
    issued the work.
    """)
    return


@app.cell
def _():
    def shown(spans):
        return ", ".join(f"{where} {start}-{end}" for where, start, end in spans[:3])

    def evidence(name):
        log = planted(name).log
        reader, span = first_wrong(log, right().log)
        numbers = history(log, reader, span)
        rows = [f"| {n} | {log[n].name} | {log[n].stream} | {1e6 * log[n].start:.1f} to {1e6 * log[n].end:.1f} "
                f"| {shown(log[n].reads)} | {shown(log[n].writes)} |" for n in numbers]
        bars = [(str(n), STREAM_NAMES.index(log[n].stream), log[n].start, log[n].end) for n in numbers]
        table = "\n".join(["| number | work | stream | microseconds | reads | writes |", "|---|---|---|---|---|---|",
                           *rows])
        return [mo.md(f"**Training {name}**: kernel {reader}, {log[reader].name}, reads other bits in bytes "
                      f"{shown([span])}.\n\n{table}"), drawn.pieces(bars, title=f"training {name}")]

    mo.vstack([part for name in "ABC" for part in evidence(name)])
    return


@app.cell
def _():
    puzzles = {"A": None, "B": None, "C": None}  # like "copy-in on compute"
    return (puzzles,)


@app.cell
def _(puzzles):
    check.puzzles(puzzles)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: find it by program

    A checksum shows harm that is done. Work out of order can be found before it does any. `log` has all work in the
    order in which it was issued. Each piece has `stream`, `start` and `end` in seconds, and `reads` and `writes`,
    lists of spans: ("device" or "host", first byte, end). Find the first piece that starts before an earlier
    piece has ended for which it must wait. Return the missing wait, like "copy-in on compute"; "" if there is none.
    """)
    return


@app.function
def missing_wait(log: list[Work]) -> str | None:
    """The kind of wait that is missing."""
    return None


@app.cell
def _():
    check.missing_wait(missing_wait)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Poison

    A stale value is a number like others, so training goes on. minidl can fill freed bytes with NaN as soon as
    the waits allow it (`Runtime(poisoned=True)`). What reads too early or too late then reads NaN:
    """)
    return


@app.cell
def _():
    def first_nan(name):
        losses = planted(name, poisoned=True).losses
        return next((step for step, loss in enumerate(losses, 1) if loss != loss), "no step")

    mo.md("\n".join(f"* training {name}, poisoned: the loss is NaN from step {first_nan(name)} on" for name in "ABC"))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * Pieces of work on different streams that share bytes need a wait, unless both only read.
    * A falling loss proves nothing about waits. Compare bits, on a clock that makes copies late.
    * On a real clock a missing wait does harm in a few runs; on a virtual clock in all of them or in none.

    minidl's tests remove waits one by one, and see that each is missed (`tests/memory/test_planted_bugs.py`), by a
    race detector that looks at order and not at time. `cpu:virtual` is the device of this lesson with all kernels.
    """)
    return


if __name__ == "__main__":
    app.run()
