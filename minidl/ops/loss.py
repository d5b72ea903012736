"""Softmax cross-entropy over the last dimension, averaged over the rows."""

from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta
from minidl.op import Op
from minidl.tensor import Tensor, apply, apply_all, give


def _infer(logits: Meta, labels: Meta) -> tuple[Meta, Meta]:
    if len(logits.shape) != 2 or labels.shape != logits.shape[:1] or labels.dtype.floating:
        raise ShapeError(f"cross_entropy needs logits [N, classes] and integer labels [N], not {logits} and {labels}")
    return meta((), logits.dtype), meta(logits.shape, logits.dtype)


def _cost(inputs, outputs, attrs) -> Cost:
    return Cost(4.0 * inputs[0].size, 2.0 * inputs[0].nbytes, "reduce")


CROSS_ENTROPY_GRAD = Op("cross_entropy_grad", lambda dloss, probs, labels: meta(probs.shape, probs.dtype),
                        donates=((0, 1),))
CROSS_ENTROPY = Op("cross_entropy", _infer, _cost, outputs=("loss", "probs"), donates=((1, 0),),
                   vjp=lambda needs, dloss, dprobs, probs, labels:
                   (apply(CROSS_ENTROPY_GRAD, dloss, give(probs), labels), None))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-mean(log softmax(logits)[label]).  logits: [N, classes], labels: [N], integers."""
    return apply_all(CROSS_ENTROPY, logits, labels)[0]
