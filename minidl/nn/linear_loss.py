"""Cross-entropy of a linear layer's results without all of them: as in Hsu et al., "Liger Kernel", 2024, section 3.2.

A language model's logits, [tokens, vocabulary], are often its largest tensor. Here they are made for some rows at a
time. Each chunk's gradient is computed at once, while its logits exist, and the loss is a scalar, so that backward()
only multiplies the finished gradients by that of the loss. This costs the three products of the usual way, and none is
repeated. It is a function of other operations, not one operation: it runs on every device, and its calls are seen by
policies one by one. Chunks are of rows, since a row's softmax needs its whole row of the vocabulary.
"""

from minidl.context import current
from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError, UserError
from minidl.meta import wide
from minidl.nn.precision import lowered
from minidl.ops.custom import with_gradients
from minidl.ops.elementwise import add
from minidl.ops.grad_modes import no_grad
from minidl.ops.linear import LINEAR_DGRAD, LINEAR_WGRAD, linear
from minidl.ops.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, LABEL_SHARE
from minidl.ops.shape import cast, concat, narrow
from minidl.ops.update import full
from minidl.tensor import Tensor

LEAST_ROWS = 128  # of a chunk: fewer make slow products
CHUNKS = 8  # at least, of many rows
MOST_CHUNKS = 256  # however many rows there are: each chunk is some ten calls


def linear_cross_entropy(input: Tensor, linear_weight: Tensor, target: Tensor, *, ignore_index: int = -100,
                         rows: int | None = None) -> Tensor:
    """Return ``cross_entropy(linear(input, linear_weight), target)``, a scalar, with one chunk's logits at a time.

    input         [N, width], computed in the runtime's precision
    linear_weight [classes, width]; target: [N], integers; rows with the label ``ignore_index`` do not count
    rows          of a chunk; the last one may have fewer. None: max(128, min(width, N / 8), N / 256), rounded up

    The gradient of the weight is summed over chunks in at least float32. If all rows are ignored the loss is NaN.
    Raises ShapeError for other shapes; UserError for chunks without rows.
    """
    if input.ndim != 2 or target.shape != input.shape[:1]:
        raise ShapeError(f"linear_cross_entropy needs input [N, width] and target [N], not {list(input.shape)} and "
                         f"{list(target.shape)}")
    if rows is not None and rows < 1:
        raise UserError(f"linear_cross_entropy: a chunk needs at least 1 row, not {rows}")
    n, width = input.shape
    rows = rows or max(LEAST_ROWS, min(width, -(-n // CHUNKS)), -(-n // MOST_CHUNKS))
    learns = current().grad_enabled
    for_input, for_weight = learns and input.requires_grad, learns and linear_weight.requires_grad
    total: Tensor | None = None
    for_weights: Tensor | None = None
    for_inputs: list[Tensor] = []
    with no_grad():
        x, weight = lowered(input), lowered(linear_weight)
        kind = wide(x.dtype)
        for start in range(0, max(n, 1), rows):
            part, labels = (narrow(t, 0, start, min(rows, n - start)) for t in (x, target))
            loss, residual = apply_all(CROSS_ENTROPY, donate(linear(part, weight)), labels, ignore_index=ignore_index)
            loss = apply(LABEL_SHARE, donate(loss), labels, target, ignore_index=ignore_index)
            total = loss if total is None else add(donate(total), donate(loss))
            if not for_input and not for_weight:
                continue
            share = apply(LABEL_SHARE, full((), 1.0, kind), labels, target, ignore_index=ignore_index)
            change = apply(CROSS_ENTROPY_GRAD, share, donate(residual), labels, ignore_index=ignore_index)
            if for_input:
                for_inputs.append(apply(LINEAR_DGRAD, change, weight))
            if for_weight:
                more = cast(apply(LINEAR_WGRAD, donate(change), part), kind)
                for_weights = more if for_weights is None else add(donate(for_weights), donate(more))
            del change, residual
        assert total is not None
        pairs = []
        if for_input:
            whole = concat(for_inputs, 0) if len(for_inputs) > 1 else for_inputs[0]
            pairs.append((input, cast(whole, input.dtype)))
            for_inputs.clear()
        if for_weights is not None:
            pairs.append((linear_weight, cast(for_weights, linear_weight.dtype)))
    return with_gradients(total, *pairs) if pairs else total
