"""Lesson 8: a PyTorch program, managed from inside. Needs PyTorch. Its last part needs Numba, behind a switch."""

import marimo

app = marimo.App(app_title="8. Inside PyTorch")

with app.setup:
    from collections.abc import Callable, Sequence
    from importlib.util import find_spec
    from typing import Any

    import marimo as mo

    from checks import pytorch as check
    from minidl.outside.units import format_bytes


@app.cell(hide_code=True)
def _():
    missing = find_spec("torch") is None
    mo.md("""
    # 8. Inside PyTorch

    The engine of the other lessons sees every call, because every call passes through it. In PyTorch the calls belong
    to PyTorch, and the tensors to the program. Can a tensor leave the device while the program stays as it is?

    PyTorch has one opening for this, the *saved-tensor hooks*. For each tensor that autograd saves it calls a function,
    `pack`, and keeps what this returns. When the backward pass needs the tensor, it calls `unpack` with that, and takes
    what comes back.
    """ + missing * '\n    **PyTorch is missing.** Install it, then open this: `pip install -e ".[course,torch]"`.')
    return (missing,)


@app.cell
def _(missing):
    mo.stop(missing)
    import torch
    return (torch,)


@app.cell
def _(torch):
    def network(width: int = 256, layers: int = 8) -> Any:
        """Layers with dropout, from a fixed seed."""
        torch.manual_seed(0)
        return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(),
                                                         torch.nn.Dropout(0.1)) for _ in range(layers)])

    saves = []

    def noted(tensor: Any) -> Any:
        """Write down what is saved, and keep it as it is."""
        storage = tensor.untyped_storage()
        saves.append((storage.data_ptr(), tensor._version, storage.nbytes()))
        return tensor

    data = torch.randn(512, 256)
    with torch.autograd.graph.saved_tensors_hooks(noted, lambda kept: kept):
        network()(data).square().mean().backward()
    mo.md(f"""
    Autograd saves {len(saves)} tensors in a step of this network. If you add their bytes up you get
    {format_bytes(sum(nbytes for _, _, nbytes in saves))}, but fewer than that are in memory: several operations save
    the same tensor, or views of it. Their bytes are in one *storage*, which has an address.
    """)
    return data, network


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: copy once

    Each save is a triple: the address of the storage, its version, and its bytes. A write in place changes the bytes of
    a storage and raises its version by one, so that a later save of it has other contents. How many bytes does one
    have to copy so that every save can be brought back?
    """)
    return


@app.function
def bytes_to_copy(saves: list[tuple[int, int, int]]) -> int | None:
    """The bytes of all copies. saves: (address, version, bytes) of each."""
    return None


@app.cell
def _():
    check.bytes_to_copy(bytes_to_copy)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: let go

    How does a tensor leave? Not by making it empty: the program may hold it, too, and would find it empty. The hook
    copies the bytes and *lets go* of the tensor. If nothing else holds it, its memory is free. If the program still
    holds it, nothing is lost but a copy.

    Write `pack`. It takes a tensor and returns a function without arguments that returns an equal tensor. Copy to the
    "host", for which a NumPy array does: `tensor.detach().numpy().copy()`. The check trains with your function as
    `pack`, and with `lambda back: back()` as `unpack`. Then it compares gradients bit by bit, and looks whether the
    memory of the saved tensors is free between forward and backward.
    """)
    return


@app.function
def pack(tensor: Any) -> Callable[[], Any] | None:
    """A function that returns an equal tensor, and that does not hold this one."""
    return None


@app.cell
def _():
    check.pack(pack)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 3: the same random numbers

    The other way to bring a tensor back is to compute it again. Dropout would then draw other random numbers, and the
    gradient would be wrong without any error. So a replay sets the generator to the state that it had before the call,
    and puts its *present* state back afterwards.

    `call` is a function that draws, `state` is what `torch.get_rng_state()` returned before it was called first.
    Call it again, and return its result. `torch.set_rng_state` sets a state.
    """)
    return


@app.function
def again(call: Callable[[], Any], state: Any) -> Any:
    """The result that ``call`` had when the generator was in this state."""
    return None


@app.cell
def _():
    check.again(again)
    return


@app.cell(hide_code=True)
def _():
    compiled = mo.ui.switch(label="train with the compiled planner")
    _text = mo.md("""
    ## A budget

    `minidl.torch.managed` does all of this and plans it. The first step lets go of every saved tensor, so that it fits
    if any step fits. The second step is recorded: that is the trace of the other lessons, and the same policies plan
    it. Later steps follow the plan. We train with all the room in the world, and ask what smaller budgets would cost.
    The planner is compiled by **Numba**, which takes up to a minute the first time. Switch it on if you have the time.
    """)
    mo.vstack([_text, compiled])
    return (compiled,)


@app.cell
def _(compiled, data, network, torch):
    mo.stop(not compiled.value, mo.md("*The planner has not been asked for.*"))
    import minidl.torch

    def train(budget: int | str | None, steps: int = 4) -> tuple[Any, list[Any]]:
        """Train under a budget (None: unmanaged). Returns the managed memory and all parameters."""
        trained = network()
        optimizer = torch.optim.AdamW(trained.parameters(), 1e-3)
        memory = minidl.torch.managed(budget) if budget is not None else None

        def run() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                trained(data).square().mean().backward()
                optimizer.step()
        (memory(run) if memory is not None else run)()
        return memory, [p.detach() for p in trained.parameters()]

    fit = train("1GiB")[0].fit()
    mo.vstack([
        mo.md(f"Unmanaged the step takes {format_bytes(fit.unmanaged_bytes)}. With everything away that can be away it "
              f"takes {fit.floor}. That is its floor."),
        mo.ui.table([{"budget": format_bytes(point.budget_bytes), "predicted step": f"x{point.slower:.2f}"}
                     for point in fit], selection=None)])
    return fit, train


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: which budget?

    Points are pairs (budget, slower): the bytes, and the duration of a step as a multiple of the unmanaged step. Return
    the smallest budget with which a step takes at most `slowest` times as long as unmanaged; 0 if there is none.
    """)
    return


@app.function
def smallest_budget(points: Sequence[tuple[int, float]], slowest: float) -> int | None:
    """The bytes of the smallest budget that is fast enough; 0 if none is."""
    return None


@app.cell
def _():
    check.smallest_budget(smallest_budget)
    return


@app.cell
def _(fit, torch, train):
    half = (fit.floor.nbytes + fit.unmanaged_bytes) // 2
    managed, found = train(half)
    _, expected = train(None)
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    mo.md(f"""
    Half of the way, in {format_bytes(half)}, the plan needs {format_bytes(managed.report().planned_bytes)}, and after
    four steps all parameters have {"**the same bits** as" if same else "other bits than"} unmanaged. Its largest
    evictions:

    ```text
    {managed.explain(6)}
    ```
    """.replace("\n    ", "\n"))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * Only what autograd alone holds leaves, and it leaves by letting go of it. So no part of the program can find a
      tensor without its bytes.
    * Identity is a storage and a version. A hook that forgets the version turns PyTorch's error about a tensor that was
      overwritten into a wrong gradient.
    * A replay is exact only with the generator's state of the first time.
    * The planner is that of the other lessons: a trace goes in, and a plan comes out.

    `docs/guides/torch.md` is the guide for your own program.
    """)
    return


if __name__ == "__main__":
    app.run()
