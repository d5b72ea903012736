"""Losses composed of other operations; ``loss`` has mean cross-entropy as one operation, which keeps less memory.

``reduction`` is PyTorch's: the mean of all elements (of the rows that are not ignored), their sum, or none.
"""

from minidl.errors import ShapeError, UserError
from minidl.meta import wide
from minidl.ops.arguments import tensor_for
from minidl.ops.choose import compare, convert, logical_not, masked_fill, where
from minidl.ops.elementwise import add, div, log, mean, mul, neg, scale, shift, sub
from minidl.ops.elementwise import sum as sum_
from minidl.ops.embedding import embedding, gather_rows
from minidl.ops.functions import clamp, log_softmax, softplus
from minidl.ops.library import absolute, exp
from minidl.ops.loss import cross_entropy as mean_cross_entropy
from minidl.ops.shape import cast, detach, permute, reshape
from minidl.tensor import Tensor

LEAST_LOG = -100.0  # the logarithm of a probability of 0
LEAST_VARIANCE = 1e-12


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Return the losses' mean, their sum, or the losses themselves ("none"). Raises UserError for another reduction."""
    if reduction == "mean":
        return mean(losses)
    if reduction == "sum":
        return sum_(losses)
    if reduction == "none":
        return losses
    raise UserError(f"reduction must be mean, sum or none, not {reduction!r}")


def _rows(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten x [N, classes, ...] and labels [N, ...] to [M, classes] and [M]. Raises ShapeError for other shapes."""
    if x.ndim < 2 or labels.shape != (x.shape[0], *x.shape[2:]) or labels.dtype.floating:
        raise ShapeError(f"this loss needs [N, classes, ...] and integer labels [N, ...], not {x.meta} and "
                         f"{labels.meta}")
    if x.ndim > 2:
        x = reshape(permute(x, (0, *range(2, x.ndim), 1)), (-1, x.shape[1]))
    return x, reshape(labels, (-1,))


def _row_weights(labels: Tensor, ignored: Tensor, weight: Tensor | None, like: Tensor) -> Tensor:
    """Return each row's weight, with the dtype of ``like``: its class's entry in ``weight`` or 1; 0 if ignored."""
    if weight is None:
        return convert(logical_not(ignored), like.dtype)
    own = reshape(embedding(reshape(weight, (-1, 1)), masked_fill(labels, ignored, 0)), labels.shape)
    return masked_fill(cast(own, like.dtype), ignored, 0.0)


def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
             reduction: str = "mean") -> Tensor:
    """Return -weight[label] * input[n, label]. input: log-probabilities [N, classes, ...] or [classes]; target: labels.

    ``weight``: [classes], by default 1; a mean divides by the sum of the rows' weights. Rows with the label
    ``ignore_index`` do not count. Raises ShapeError for misfitting shapes, UserError for an unknown reduction.
    """
    if input.ndim == 1 and not target.shape:
        y = nll_loss(reshape(input, (1, -1)), reshape(target, (1,)), weight, ignore_index=ignore_index,
                     reduction=reduction)
        return reshape(y, ())
    shape = target.shape
    x, labels = _rows(input, target)
    n, classes = x.shape
    ignored = compare(labels, ignore_index, "==")
    own = gather_rows(reshape(x, (n, classes, 1)), reshape(masked_fill(labels, ignored, 0), (n, 1)))
    losses = masked_fill(neg(cast(reshape(own, (n,)), wide(own.dtype))), ignored, 0.0)
    shares = _row_weights(labels, ignored, weight, losses)
    losses = losses if weight is None else mul(losses, shares)
    if reduction == "none":
        return reshape(losses, shape)
    return div(sum_(losses), sum_(shares)) if reduction == "mean" else reduced(losses, reduction)


def _soft_loss(logits: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float) -> Tensor:
    """Return the cross-entropy of logits and target probabilities [N, classes, ...], reduced, with label smoothing."""
    if target.shape != logits.shape:
        raise ShapeError(f"cross_entropy: probabilities {list(target.shape)} do not fit logits {list(logits.shape)}")
    target = shift(scale(target, 1.0 - smoothing), smoothing / logits.shape[1]) if smoothing else target
    terms = mul(target, log_softmax(logits, 1))
    if weight is not None:
        terms = mul(terms, reshape(weight, (-1, *(1,) * (logits.ndim - 2))))
    losses = neg(sum_(terms, 1))
    return scale(sum_(losses), 1.0 / losses.numel()) if reduction == "mean" else reduced(losses, reduction)


def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
                  label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """Return -log softmax(input)[label]. input: [N, classes, ...], target: labels [N, ...] or probabilities like input.
    ``weight``: [classes], as in ``nll_loss``. ``label_smoothing`` e changes the target to 1 - e for the label plus
    e / classes for each class. Rows with the label ``ignore_index`` do not count. Raises ShapeError for
    misfitting shapes, UserError for another reduction or a ``label_smoothing`` outside of [0, 1], WrongKind for
    a target that is no tensor."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise UserError(f"label_smoothing must be in [0, 1], not {label_smoothing}")
    if tensor_for("cross_entropy's target", target).dtype.floating:
        return _soft_loss(input, target, weight, reduction, label_smoothing)
    if input.ndim == 1 and not target.shape:
        return reshape(cross_entropy(reshape(input, (1, -1)), reshape(target, (1,)), weight, ignore_index=ignore_index,
                                     label_smoothing=label_smoothing, reduction=reduction), ())
    shape = target.shape
    rows, flat = _rows(input, target)
    if reduction == "mean" and weight is None:
        return mean_cross_entropy(rows, flat, ignore_index=ignore_index, label_smoothing=label_smoothing)
    logs = log_softmax(rows)
    losses = nll_loss(logs, flat, weight, ignore_index=ignore_index, reduction=reduction)
    if label_smoothing:
        ignored = compare(flat, ignore_index, "==")
        terms = logs if weight is None else mul(logs, weight)
        spread = masked_fill(neg(sum_(terms, 1)), ignored, 0.0)
        if reduction == "mean":
            spread = div(sum_(spread), sum_(_row_weights(flat, ignored, weight, spread)))
        else:
            spread = reduced(spread, reduction)
        losses = add(scale(losses, 1.0 - label_smoothing), scale(spread, label_smoothing / rows.shape[1]))
    return reshape(losses, shape) if reduction == "none" else losses


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return (input - target)^2, its mean or its sum. Raises ShapeError on a misfit, UserError for other reductions."""
    apart = sub(input, target)
    return reduced(mul(apart, apart), reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return |input - target|, its mean or its sum. Raises ShapeError on a misfit, UserError for other reductions."""
    return reduced(absolute(sub(input, target)), reduction)


def _same_shape(what: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ShapeError(f"{what}: a target {list(target.shape)} for {list(input.shape)}; both must have one shape")


def _weighed(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses if weight is None else mul(losses, weight)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                         reduction: str = "mean") -> Tensor:
    """Return -(target log(input) + (1 - target) log(1 - input)), reduced, with logarithms of at least -100.
    ``weight`` broadcasts. Outside of [0, 1] the result is NaN: values are not read. Raises ShapeError unless both
    have one shape, UserError for an unknown reduction."""
    _same_shape("binary_cross_entropy", input, target)

    def bounded(x: Tensor) -> Tensor:
        y = log(x)
        return masked_fill(y, compare(y, LEAST_LOG, "<"), LEAST_LOG)
    p = detach(input)
    one = mul(target, bounded(p))
    other = mul(shift(neg(target), 1.0), bounded(shift(neg(p), 1.0)))
    losses = neg(add(one, other))
    if input.requires_grad:
        # Of a probability of 0 or 1 the logarithms have no gradient; PyTorch divides by LEAST_VARIANCE at least.
        slope = div(sub(p, target), clamp(mul(p, shift(neg(p), 1.0)), min=LEAST_VARIANCE))
        losses = add(losses, mul(sub(input, p), detach(slope)))
    return reduced(_weighed(losses, weight), reduction)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                                     reduction: str = "mean", pos_weight: Tensor | None = None) -> Tensor:
    """Return the binary cross-entropy of sigmoid(input), computed stably as log(1 + exp(input)) - target * input.
    ``pos_weight`` multiplies positive targets' losses, and broadcasts. Raises ShapeError unless input and target have
    one shape, UserError for an unknown reduction."""
    _same_shape("binary_cross_entropy_with_logits", input, target)
    if pos_weight is None:
        return reduced(_weighed(sub(softplus(input), mul(input, target)), weight), reduction)
    more = shift(mul(target, shift(pos_weight, -1.0)), 1.0)
    losses = add(mul(shift(neg(target), 1.0), input), mul(more, softplus(neg(input))))
    return reduced(_weighed(losses, weight), reduction)


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return target * (log(target) - input), reduced, for log-probabilities ``input``; 0 where the target is 0.
    ``reduction``: mean of all elements, batchmean (sum / batch size), sum or none. Misfits raise ShapeError,
    other reductions UserError. ``log_target``: True if the target is log-probabilities, too."""
    if log_target:
        terms = mul(exp(target), sub(target, input))
    else:
        nothing = compare(target, 0, "==")
        terms = sub(masked_fill(mul(target, log(masked_fill(target, nothing, 1.0))), nothing, 0.0), mul(target, input))
    if reduction == "batchmean" and input.ndim:
        return scale(reduced(terms, "sum"), 1.0 / input.shape[0])
    return reduced(terms, "sum" if reduction == "batchmean" else reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2 (Girshick 2015), reduced.
    Raises ShapeError on a misfit, UserError for another reduction."""
    apart = absolute(sub(input, target))
    if beta == 0:
        return reduced(apart, reduction)
    near = masked_fill(apart, compare(apart, beta, ">="), 0.0)  # no square of what is large
    square = scale(mul(near, near), 0.5 / beta)
    return reduced(where(compare(apart, beta, "<"), square, shift(apart, -0.5 * beta)), reduction)


def huber_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return d^2 / 2 where d = |input - target| <= delta, else delta * (d - delta / 2) (Huber 1964), reduced.
    Raises ShapeError on a misfit, UserError for another reduction."""
    return scale(smooth_l1_loss(input, target, reduction=reduction, beta=delta), delta)
