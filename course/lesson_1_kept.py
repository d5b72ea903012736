"""Lesson 1: what a training step keeps in memory, and why. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="1. What a step keeps")

with app.setup:
    import marimo as mo

    import drawn
    from checks import kept as check
    from minidl import models
    from minidl.lab.training_step import trace_of
    from minidl.outside.units import format_bytes
    from minidl.planning.lifetimes import Lifetimes
    from runs import train


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 1. What a step keeps

    A network is trained in steps. Each step takes a batch of examples, computes a loss from it (the *forward pass*),
    then computes how the loss changes with each weight (the *backward pass*), and moves the weights a little.

    The computation is quick to say and the memory is not. The backward pass walks the network from its end to its
    beginning, and at each layer it needs numbers that the forward pass made there. So the first layer's numbers have to
    wait for the whole way forward and the whole way back. This lesson counts them.

    Everything below is measured on minidl's simulated GPU. It runs the real engine, which places every tensor and
    counts every byte, but computes no numbers. So it needs no GPU, and a batch of a thousand costs nothing.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The smallest network

    A perceptron of three layers on small pictures, 64 at a time. One row is one *call* of an operation, in the order
    in which the program makes them. Tensors have numbers. Negative ones were there before the step: weights, and what
    the optimizer remembers. `saves` is what the backward pass will ask for, `frees` what nobody can ask for any more.
    """)
    return


@app.cell
def _():
    small = trace_of("mlp", 64)
    mo.ui.table([{"call": number, "operation": call.op, "reads": str(call.inputs), "makes": str(call.outputs),
                  "saves": str(call.saves), "frees": str(call.frees)} for number, call in enumerate(small.calls)],
                selection=None, pagination=False)
    return (small,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    Look at call 2, the first layer (`linear`): it reads the pictures (tensor 0) and saves them. Its gradient is call
    19, `linear_wgrad`, the last before the optimizer. Tensor 0 is the first to come and the last to go.

    Look at call 3, `relu`: it saves its *result*, tensor 3, since where the result is zero the gradient is zero too.
    Its input, tensor 2, is freed at once. What is saved is a property of each operation's formula: a linear layer or a
    convolution saves its input, a ReLU its output, an addition nothing.

    ## Exercise 1: bytes of a picture in the middle of a network

    Between two convolutions lies a tensor of `batch` x `channels` x `height` x `width` numbers in float32.
    How many bytes are these?
    """)
    return


@app.function
def feature_bytes(batch: int, channels: int, height: int, width: int) -> int | None:
    """Bytes of a tensor of float32 numbers of this shape."""
    return None


@app.cell
def _():
    check.feature_bytes(feature_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Memory through a step

    Add up what is live during each call, and a picture appears that every deep network shares: up during the forward
    pass, while one saved tensor joins another, and down during the backward pass, which sets them free. Choose another
    network, and move the batch.
    """)
    return


@app.cell
def _():
    network = mo.ui.dropdown(["resnet18", "resnet50", "vgg16", "densenet121"], value="resnet50", label="network")
    batch = mo.ui.slider(16, 256, step=16, value=64, label="batch", show_value=True)
    mo.hstack([network, batch], justify="start", gap=2)
    return batch, network


@app.cell
def _(batch, network):
    step = trace_of(network.value, batch.value)
    drawn.memory(step, title=f"{network.value} at a batch of {batch.value}")
    return (step,)


@app.cell
def _(step):
    facts = Lifetimes.of(step)
    lasting = sum(facts.nbytes[t.tensor_id] for t in step.tensors.values() if t.persistent)
    top = max(facts.live_bytes)
    mo.md(f"""
    At its top, during call {facts.live_bytes.index(top)} of {len(step.calls)}, the step needs **{format_bytes(top)}**.
    Of these {format_bytes(lasting)} are weights and what the optimizer remembers of them. Everything else,
    {1 - lasting / top:.0%}, was made by this step and is gone at its end. When somebody says that a network does not
    fit, it is seldom the network: it is what its step keeps.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 2: count it yourself

    A step is given as a list of calls. Each is a triple: the tensors that it reads, those that it makes, and those that
    nobody wants any more once it has ended. `sizes` says how many bytes each tensor has. A tensor that no call makes
    was there from the beginning. Return a list with the bytes that are live *while* each call runs.
    """)
    return


@app.function
def live_bytes(calls: list[tuple[list[str], list[str], list[str]]], sizes: dict[str, int]) -> list[int] | None:
    """Bytes that are live during each call: those of what is there, of what it makes, and of what it frees, too."""
    return None


@app.cell
def _():
    check.live_bytes(live_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What grows with the batch

    Twice as many examples make every activation twice as large, and no weight any larger. So the peak is a straight
    line: something fixed, and something for each example.
    """)
    return


@app.cell
def _():
    def peak(network: str, batch: int) -> int:
        return max(Lifetimes.of(trace_of(network, batch)).live_bytes)

    batches = (16, 32, 48, 64)
    peaks = {name: [peak(name, batch) / drawn.GIB for batch in batches] for name in ("resnet50", "resnet18", "vgg16")}
    drawn.lines(peaks, across="batch, in steps of 16", upwards="peak GiB", start=1)
    return (peak,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    VGG-16 has the largest weights of the three (138 million), so its line starts high. ResNet-50 has the steepest: it
    is deep, and it keeps much at each of its many layers.

    ## Exercise 3: the largest batch

    You know the peak at two batches, in bytes. How many examples fit into `budget` bytes? Do not run anything: the line
    through two points is enough. (The check compares with peaks that the engine measured.)
    """)
    return


@app.function
def largest_batch(peaks: dict[int, int], budget: int) -> int | None:
    """The largest batch whose peak is at most the budget, from the peaks at two batches."""
    return None


@app.cell
def _():
    check.largest_batch(largest_batch)
    return


@app.cell
def _(peak):
    p100 = 14.8 * drawn.GIB
    first, second = peak("resnet50", 32), peak("resnet50", 64)
    mo.md(f"""
    A P100 leaves 14.8 GiB to tensors. ResNet-50 needs {format_bytes(second - first)} for every 32 examples, so about
    {(p100 - first) / ((second - first) / 32) + 32:.0f} fit. At the batch of 1,014 that the Capuchin paper reaches on
    this card the step would want **{format_bytes(peak("resnet50", 1014))}**. The other lessons are about the
    difference.
    """)
    return


@app.cell
def _():
    tried = train("resnet18", 64, steps=1)
    mo.md(f"""
    ## What to take along

    * A step keeps what its backward pass will read. That is most of its memory, and it grows with the batch.
    * Between the two uses of a saved tensor lies time, most of all for the first layers. Nobody looks at it meanwhile.
    * All of this is known after one step: ResNet-18 makes {tried.steps[-1].calls} calls, the same ones in every step.

    minidl knows {len(models.MODELS)} networks. Put another name into the cells above and see what changes.
    """)
    return


if __name__ == "__main__":
    app.run()
