"""Losses composed of other operations; cross-entropy, which keeps less as one operation, has a file of its own.

``reduction`` is PyTorch's: the mean of all elements (of the counted rows), their sum, or none.
"""

from minidl.errors import UserError
from minidl.meta import wide
from minidl.ops.choose import compare, convert, logical_not, masked_fill
from minidl.ops.elementwise import add, div, log, mean, mul, neg, shift, sub
from minidl.ops.elementwise import sum as sum_
from minidl.ops.embedding import gather_rows
from minidl.ops.functions import absolute, log_softmax, softplus
from minidl.ops.loss import cross_entropy as mean_cross_entropy
from minidl.ops.shape import cast, permute, reshape
from minidl.tensor import Tensor

LEAST_LOG = -100.0  # of a probability of 0


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return mean(losses)
    if reduction == "sum":
        return sum_(losses)
    if reduction == "none":
        return losses
    raise UserError(f"reduction is mean, sum or none, not {reduction!r}")


def nll_loss(log_probabilities: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """-log_probabilities[n, label of n].  log_probabilities: [N, classes], labels: [N] integers.

    Rows whose label is ``ignore_index`` count neither in the sum nor in the mean. Raises ShapeError, UserError.
    """
    n, classes = log_probabilities.shape
    ignored = compare(labels, ignore_index, "==")
    own = gather_rows(reshape(log_probabilities, (n, classes, 1)), reshape(masked_fill(labels, ignored, 0), (n, 1)))
    losses = masked_fill(neg(cast(reshape(own, (n,)), wide(own.dtype))), ignored, 0.0)
    if reduction != "mean":
        return _reduced(losses, reduction)
    return div(sum_(losses), convert(sum_(logical_not(ignored)), losses.dtype))


def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                  reduction: str = "mean") -> Tensor:
    """-log softmax(logits)[label].  logits: [N, classes, ...], labels: [N, ...] integers.

    Label smoothing goes with the mean alone. Raises ShapeError, UserError.
    """
    rest = labels.shape
    if logits.ndim > 2:
        logits = permute(logits, (0, *range(2, logits.ndim), 1))
        logits, labels = reshape(logits, (-1, logits.shape[-1])), reshape(labels, (-1,))
    if reduction == "mean":
        return mean_cross_entropy(logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing)
    if label_smoothing:
        raise UserError("label_smoothing goes with reduction='mean' alone")
    losses = nll_loss(log_softmax(logits), labels, ignore_index=ignore_index, reduction=reduction)
    return reshape(losses, rest) if reduction == "none" else losses


def mse_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(x - target)^2. Raises ShapeError, UserError."""
    apart = sub(x, target)
    return _reduced(mul(apart, apart), reduction)


def l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|x - target|. Raises ShapeError, UserError."""
    return _reduced(absolute(sub(x, target)), reduction)


def binary_cross_entropy(p: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """-(target log p + (1 - target) log(1 - p)), where no logarithm is below -100. Raises ShapeError, UserError."""
    def bounded(x: Tensor) -> Tensor:
        y = log(x)
        return masked_fill(y, compare(y, LEAST_LOG, "<"), LEAST_LOG)
    one = mul(target, bounded(p))
    other = mul(shift(neg(target), 1.0), bounded(shift(neg(p), 1.0)))
    return _reduced(neg(add(one, other)), reduction)


def binary_cross_entropy_with_logits(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """The same of sigmoid(x), without its cancellation: log(1 + exp(x)) - target x. Raises ShapeError, UserError."""
    return _reduced(sub(softplus(x), mul(x, target)), reduction)
