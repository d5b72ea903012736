"""Lesson 11: the bytes of a language model, counted by kind. Needs neither a GPU nor a compiler."""

import marimo

app = marimo.App(app_title="11. The bytes of a language model")

with app.setup:
    from dataclasses import replace

    import marimo as mo

    import drawn
    from checks import language as check
    from llamas import SMALL, Training, at_the_peak, saved
    from minidl.models.llama import TINY
    from minidl.outside.units import format_bytes


@app.cell(hide_code=True)
def _():
    mo.md("""
    # 11. The bytes of a language model

    A language model reads b sequences of s tokens. It has L layers of the width h, each with a heads, and a vocabulary
    of V words. These few letters say where its bytes go:

    * Parameters, gradients and the optimizer's states depend on the network alone.
    * Activations of the layers grow with b s.
    * The attention's probabilities grow with b s², a number for each pair of tokens.
    * Logits, the scores of all words at each token, grow with b s V.

    So there is no one remedy: most make one of these kinds smaller, and leave the others. The networks of this lesson
    are like Llama; the smallest is minidl's `llama-tiny`. The engine counts their bytes on a simulated GPU.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 1: bytes that last

    A parameter in float32 has 4 bytes. If it is trained, its gradient has 4 more, and AdamW keeps two states of 4 bytes
    each, averages of the gradient and of its square. These are 16 bytes, whatever the batch is.

    With **LoRA** the network's own parameters are frozen: they have neither a gradient nor states. Small adapters
    beside them are trained. With `host_update` the states are in host memory, and the update runs there.

    A network has `parameters` numbers in all, adapters included, of which `trained` are trained. How many bytes are on
    the device after a step? `on_host` says whether the states are on the host.
    """)
    return


@app.function
def lasting_bytes(parameters: int, trained: int, on_host: bool) -> int | None:
    """The bytes of parameters, gradients and states on the device."""
    return None


@app.cell
def _():
    check.lasting_bytes(lasting_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    In bf16 minidl keeps trained parameters, gradients and states in float32, and computes with copies of 2 bytes a
    parameter. A copy is an activation: it comes with the step, and goes with it. So bf16 makes activations smaller, and
    not these 16 bytes. Only weights that LoRA has frozen are stored in 2 bytes, since nothing updates them.
    Some programs keep trained parameters and gradients in 2 bytes, too, and so have 12 bytes instead of 16.

    ## Exercise 2: attention

    For each pair of tokens of a sequence, each head of each layer computes how much one token attends to the other. The
    softmax saves these probabilities for its gradient, in float32. How many bytes are they in all layers together?
    """)
    return


@app.function
def probability_bytes(batch: int, length: int, heads: int, layers: int) -> int | None:
    """The bytes of all attention probabilities of a step."""
    return None


@app.cell
def _():
    check.probability_bytes(probability_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Attention as one operation (FlashAttention, Dao et al. 2022) never stores them: it computes them in pieces, and once
    more in the backward pass. It saves its result and one number for each token and head.

    ## Exercise 3: logits

    The loss compares a score for each word of the vocabulary with the word that comes next, at each token.
    `linear_cross_entropy` computes scores, loss and gradient for a **chunk** of tokens, and frees the scores before the
    next chunk. How many bytes of float32 scores exist at once? `rows` is the number of tokens of a chunk; None: there
    are no chunks. A batch may have fewer tokens than a chunk.
    """)
    return


@app.function
def logits_bytes(batch: int, length: int, vocabulary: int, rows: int | None) -> int | None:
    """The bytes of the scores that exist at once."""
    return None


@app.cell
def _():
    check.logits_bytes(logits_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercise 4: a layer

    These are the tensors that the first layer of `llama-tiny` saves for its backward pass, in order: 4 sequences of 64
    tokens, the width 64, the inner width 176 of the feed-forward network, 4 heads. The first one is the layer's input.
    A normalisation keeps two numbers a token (`sqrt` and `div`).
    """)
    return


@app.cell
def _():
    with_one_layer = saved(Training(replace(TINY, num_hidden_layers=1), batch=4, length=64).trace())
    of_the_layer = [each for each in with_one_layer if each[0] != "upload"][:-6]  # six: of the last norm and the loss
    mo.ui.table([{"made by": op, "bytes": nbytes, "numbers a token": nbytes // 4 // (4 * 64)}
                 for op, nbytes in of_the_layer], selection=None, pagination=False)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    How many bytes does a layer save? Count the tensors of the width and those of the inner width, and do not forget the
    probabilities. Keys and values are repeated for the heads that share them, so both have the whole width.
    """)
    return


@app.function
def layer_bytes(batch: int, length: int, width: int, inner: int, heads: int) -> int | None:
    """The bytes that a layer saves for its backward pass."""
    return None


@app.cell
def _():
    check.layer_bytes(layer_bytes)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Where the bytes go

    Now a network of 8 layers: width 1,024, inner width 4,096, 16 heads, 32,000 words. The bars are the bytes at the
    moment at which the step needs the most, for several lengths. Move the batch.
    """)
    return


@app.cell
def _():
    batch = mo.ui.slider(1, 8, value=4, label="batch", show_value=True)
    mo.hstack([batch], justify="start")
    return (batch,)


@app.cell
def _(batch):
    bars = {f"{length:,}": at_the_peak(Training(batch=batch.value, length=length).trace())
            for length in (256, 512, 1024, 2048)}
    drawn.stacked(bars, across="tokens of a sequence", title=f"the peak of a step at a batch of {batch.value}")
    return


@app.cell
def _():
    crossing = (10 * SMALL.hidden_size + 4 * SMALL.intermediate_size + 4) // SMALL.num_attention_heads
    mo.md(f"""
    In a large step the peak is at the end of the forward pass, where only the first gradients are there: others come
    while activations go. So a trained parameter has about 12 bytes at the peak, not 16. In a small step, such as one
    sequence of 256 tokens, the peak is at the end of the backward pass: activations are gone, and all gradients there.

    Up to {crossing:,} tokens the probabilities are the smaller part of a layer, and beyond that the larger one,
    whatever the batch is.

    ## What each remedy saves

    The same network with 4 sequences of 1,024 tokens. Each row has one remedy, and the last row all of them:
    """)
    return


@app.cell
def _():
    usual = Training(batch=4, length=1024)
    remedies = {"none": {}, "attention as one operation": {"fused_attention": True},
                "loss in chunks": {"chunks": True}, "bf16": {"precision": "bf16"}, "LoRA of rank 8": {"adapters": 8},
                "states on the host": {"on_host": True}}
    remedies["all"] = {key: value for each in remedies.values() for key, value in each.items()}
    demands = {name: usual.but(**changes).demand() for name, changes in remedies.items()}
    mo.ui.table([{"remedy": name, "needs": format_bytes(demand.unmanaged_peak_bytes),
                  "saved": f"{1 - demand.unmanaged_peak_bytes / demands['none'].unmanaged_peak_bytes:.0%}",
                  "largest operation": format_bytes(demand.largest_op_bytes)} for name, demand in demands.items()],
                selection=None)
    return demands, usual


@app.cell(hide_code=True)
def _():
    mo.md("""
    LoRA leaves nearly all activations: an adapter needs its layer's input, and gradients still pass through all layers.
    bf16 leaves attention's probabilities in float32 if attention is several operations. Chunks need a second gradient
    of the table of words, to add up the chunks' gradients; so they pay off for many tokens and a large vocabulary.

    ## Or a budget

    These remedies change the program. A budget does not: the engine swaps or recomputes what does not fit, of every
    kind, and results have the same bits. Only the largest operation must fit. The cost is time:
    """)
    return


@app.cell
def _(demands, usual):
    whole = demands["none"].unmanaged_peak_bytes
    times = {share: usual.seconds(round(whole * share)) for share in (1.0, 0.75, 0.5)}
    mo.md("\n".join(f"* {format_bytes(round(whole * share))}, {share:.0%}: {seconds:.2f} s a step, "
                    f"{seconds / times[1.0] - 1:.0%} longer" for share, seconds in times.items()))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What to take along

    * 16 bytes a trained parameter last. LoRA and states on the host make them fewer, but hardly save activations.
    * Short sequences need memory for layers, long ones for probabilities, large vocabularies for logits.
    * First leave out what need not be stored (one operation for attention, chunks), then take a budget for the rest.

    `minidl fit llama-1b:4 --memory 16GiB` says what a network of minidl needs, and how fast it is in that memory.
    """)
    return


if __name__ == "__main__":
    app.run()
