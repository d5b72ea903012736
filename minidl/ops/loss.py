"""Softmax cross-entropy over the last dimension, averaged over the rows whose label is not ignored.

For the gradient it keeps softmax(logits) - onehot(label), the gradient up to a factor. Keeping the softmax would not
suffice for 16-bit floats: a probability near 1 rounds to 1, and its row would have no gradient at its label.
"""

from collections.abc import Sequence

from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta, wide
from minidl.op import Attrs, Op
from minidl.ops.choose import compare, convert, logical_not, masked_fill
from minidl.ops.elementwise import ADD, add, div, mean, scale, sub
from minidl.ops.elementwise import sum as sum_
from minidl.ops.embedding import gather_rows
from minidl.ops.shape import cast, reshape
from minidl.parts.slice_rules import along
from minidl.tensor import Tensor


def _infer(logits: Meta, labels: Meta, *, ignore_index: int = -100) -> tuple[Meta, Meta]:
    if len(logits.shape) != 2 or labels.shape != logits.shape[:1] or labels.dtype.floating:
        raise ShapeError(f"cross_entropy needs logits [N, classes] and integer labels [N], not {logits} and {labels}")
    return meta((), wide(logits.dtype)), meta(logits.shape, logits.dtype)


def _cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(4.0 * inputs[0].size, 2.0 * inputs[0].nbytes, "reduce")


def _grad_infer(dloss: Meta, residual: Meta, labels: Meta, *, ignore_index: int = -100) -> Meta:
    return meta(residual.shape, residual.dtype)


def _share_infer(value: Meta, part: Meta, labels: Meta, *, ignore_index: int = -100) -> Meta:
    return value


# Scales the mean over a slice to its share of the mean over the batch: value * counted rows of the slice / of the
# batch. A slice without counted rows gives 0, a batch without any NaN.
LABEL_SHARE = Op("label_share", _share_infer, integers=("part", "labels"), donates=((0, 0),))
CROSS_ENTROPY_GRAD = Op("cross_entropy_grad", _grad_infer, donates=((0, 1),), integers=("labels",),
                        slices=along(1, 2, shared=(0,), share=LABEL_SHARE, labels=2))
CROSS_ENTROPY = Op("cross_entropy", _infer, _cost, outputs=("loss", "residual"), donates=((1, 0),), checks=True,
                   integers=("labels",), vjp=lambda needs, dloss, dresidual, residual, labels, *, ignore_index:
                   (apply(CROSS_ENTROPY_GRAD, dloss, donate(residual), labels, ignore_index=ignore_index), None),
                   slices=along(0, 1, whole=(0,), fold=ADD, shares=(0,), share=LABEL_SHARE, labels=1))


def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> Tensor:
    """Return -mean(log softmax(logits)[label]). logits: [N, classes], labels: [N], integers.

    Rows with the label ``ignore_index`` do not count; if all rows are ignored the loss is NaN. ``label_smoothing`` e
    changes the target to 1 - e for the label plus e / classes for each class (Szegedy et al. 2016, section 7). This
    adds e * mean(z[label] - z) to the loss, where z are the logits, because -log softmax(z)[c] differs between classes
    only by -z[c]; no second softmax is needed. For 16-bit floats the loss is float32.
    """
    loss = apply_all(CROSS_ENTROPY, logits, labels, ignore_index=ignore_index)[0]
    if not label_smoothing:
        return loss
    n, classes = logits.shape
    ignored = compare(labels, ignore_index, "==")
    own = gather_rows(reshape(logits, (n, classes, 1)), reshape(masked_fill(labels, ignored, 0), (n, 1)))
    every = mean(cast(logits, loss.dtype), 1)  # a mean in halves would lose precision
    apart = masked_fill(sub(reshape(cast(own, loss.dtype), (n,)), every), ignored, 0.0)
    counted = convert(sum_(logical_not(ignored)), loss.dtype)
    return add(loss, scale(div(sum_(apart), counted), label_smoothing))
