"""Batch normalisation (Ioffe & Szegedy 2015) as two calls, statistics and normalisation; optionally fused with a ReLU.

Batch statistics are small and are kept, so that a replay of a dropped output needs only the second call. Running
statistics are updated by a separate in-place call, once, however often the other calls are replayed.

All calls here are memory-bound: their time is the number of passes over a feature map. The fused calls save the passes
between normalisation, addition and ReLU, in replays, too:

    separate  y = relu(norm(x) + residual)    reads x, n, residual, s; writes n, s, y     seven passes
    fused                                     reads x, residual; writes y                 three

Without a residual the gradient recomputes ReLU's mask from x, without an extra pass and without the output. Fused calls
give the bits of the separate calls. Per-channel tensors (parameters, statistics, their gradients) are float32 if x has
16-bit floats (``meta.wide``).
"""

from collections.abc import Sequence

from minidl.context import current
from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta, wide
from minidl.op import Attrs, Op
from minidl.ops.elementwise import ADD, RELU_GRAD, add
from minidl.ops.elementwise import relu as relu_
from minidl.ops.shape import contiguous
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor


def _channels(x: Meta) -> Meta:
    if len(x.shape) < 2:
        raise ShapeError(f"batch norm needs [N, C, ...], not {list(x.shape)}")
    return meta((x.shape[1],), wide(x.dtype))


def _check(x: Meta, *per_channel: Meta) -> None:
    if any(m.shape != _channels(x).shape for m in per_channel):
        raise ShapeError(f"batch norm over {list(per_channel[0].shape)} channels does not fit {list(x.shape)}")
    if any(m.dtype is not wide(x.dtype) for m in per_channel):
        raise ShapeError(f"batch norm of {x.dtype.name} needs parameters and statistics in {wide(x.dtype).name}, not "
                         f"{', '.join(m.dtype.name for m in per_channel)}")


def _stats_infer(x: Meta) -> tuple[Meta, Meta]:
    return _channels(x), _channels(x)


def _stats_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    # One pass computes mean and mean of squares (or Welford's update) together.
    return Cost(3.0 * inputs[0].size, float(inputs[0].nbytes), "reduce")


def _apply_infer(x: Meta, gamma: Meta, beta: Meta, mean: Meta, var: Meta, *, eps: float, training: bool) -> Meta:
    _check(x, gamma, beta, mean, var)
    return meta(x.shape, x.dtype)


def _add_infer(x: Meta, residual: Meta, gamma: Meta, beta: Meta, mean: Meta, var: Meta, *,
               eps: float, training: bool) -> Meta:
    _check(x, gamma, beta, mean, var)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ShapeError(f"batch norm cannot add {residual} to {x}")
    return meta(x.shape, x.dtype)


def _grad_reduce_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(4.0 * inputs[0].size, float(inputs[0].nbytes + inputs[1].nbytes), "reduce")


def _grad_reduce_infer(dy: Meta, x: Meta, mean: Meta, var: Meta, *, eps: float) -> tuple[Meta, Meta]:
    return _channels(x), _channels(x)


def _relu_grad_reduce_infer(dy: Meta, x: Meta, gamma: Meta, beta: Meta, mean: Meta, var: Meta, *,
                            eps: float) -> tuple[Meta, Meta]:
    return _channels(x), _channels(x)


def _grad_infer(dy: Meta, x: Meta, gamma: Meta, mean: Meta, var: Meta, dgamma: Meta, dbeta: Meta,
                *, eps: float, training: bool) -> Meta:
    return meta(x.shape, x.dtype)


def _relu_grad_infer(dy: Meta, x: Meta, gamma: Meta, beta: Meta, mean: Meta, var: Meta, dgamma: Meta, dbeta: Meta,
                     *, eps: float, training: bool) -> Meta:
    return meta(x.shape, x.dtype)


def _apply_vjp(needs: Needs, dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, var: Tensor, *, eps: float,
               training: bool) -> Gradients:
    """Return the gradients with respect to x, gamma and beta; with batch statistics mean and var are functions of x."""
    dy = contiguous(dy)  # both kernels would copy an expanded dy, in memory outside the budget
    dgamma, dbeta = apply_all(BATCH_NORM_GRAD_REDUCE, dy, x, mean, var, eps=eps)
    dx = None
    if needs[0]:
        # This is the last use of dy and of the saved x, so both are donated.
        dx = apply(BATCH_NORM_GRAD, donate(dy), donate(x), gamma, mean, var, dgamma, dbeta, eps=eps, training=training)
    return dx, dgamma if needs[1] else None, dbeta if needs[2] else None, None, None


def _relu_vjp(needs: Needs, dy: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, *,
              eps: float, training: bool) -> Gradients:
    dy = contiguous(dy)
    dgamma, dbeta = apply_all(BATCH_NORM_RELU_GRAD_REDUCE, dy, x, gamma, beta, mean, var, eps=eps)
    dx = None
    if needs[0]:
        dx = apply(BATCH_NORM_RELU_GRAD, donate(dy), donate(x), gamma, beta, mean, var, dgamma, dbeta, eps=eps,
                   training=training)
    return dx, dgamma if needs[1] else None, dbeta if needs[2] else None, None, None


def _add_relu_vjp(needs: Needs, dy: Tensor, y: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, var: Tensor, *,
                  eps: float, training: bool) -> Gradients:
    """Return the gradients with respect to x, residual, gamma and beta.
    The gradient of norm(x) + residual is that of both terms, so it is computed once, and not donated."""
    dsum = apply(RELU_GRAD, donate(dy), donate(y))
    dgamma, dbeta = apply_all(BATCH_NORM_GRAD_REDUCE, dsum, x, mean, var, eps=eps)
    dx = None
    if needs[0]:
        dx = apply(BATCH_NORM_GRAD, dsum, donate(x), gamma, mean, var, dgamma, dbeta, eps=eps, training=training)
    return dx, dsum if needs[1] else None, dgamma if needs[2] else None, dbeta if needs[3] else None, None, None


def _merge_infer(mean: Meta, var: Meta, other_mean: Meta, other_var: Meta, *, count: int, other: int
                 ) -> tuple[Meta, Meta]:
    return mean, var


# Merges the statistics of two parts of a batch, of ``count`` and ``other`` examples (Chan, Golub & LeVeque, "Updating
# formulae and a pairwise algorithm for computing sample variances", 1979).
BATCH_NORM_MERGE = Op("batch_norm_merge", _merge_infer, outputs=("merged_mean", "merged_var"),
                      donates=((0, 0), (1, 1)))
BATCH_NORM_STATS = Op("batch_norm_stats", _stats_infer, _stats_cost, outputs=("mean", "var"),
                      slices=along(0, whole=(0, 1), fold=BATCH_NORM_MERGE, counted=True))
BATCH_NORM = Op("batch_norm", _apply_infer, vjp=_apply_vjp, donates=((0, 0),), slices=along(0))
BATCH_NORM_RELU = Op("batch_norm_relu", _apply_infer, vjp=_relu_vjp, donates=((0, 0),), slices=along(0))
BATCH_NORM_ADD_RELU = Op("batch_norm_add_relu", _add_infer, vjp=_add_relu_vjp, donates=((0, 1), (0, 0)),
                         slices=along(0, 1))
# The sums are over the whole batch; a kernel divides by its slice's examples, so each slice gets its share of the sums.
BATCH_NORM_GRAD_REDUCE = Op("batch_norm_grad_reduce", _grad_reduce_infer, _grad_reduce_cost,
                            outputs=("dgamma", "dbeta"), long_lived=True,
                            slices=along(0, 1, whole=(0, 1), fold=ADD))
BATCH_NORM_GRAD = Op("batch_norm_grad", _grad_infer, donates=((0, 0), (0, 1)), slices=along(0, 1, shared=(5, 6)))
BATCH_NORM_RELU_GRAD_REDUCE = Op("batch_norm_relu_grad_reduce", _relu_grad_reduce_infer, _grad_reduce_cost,
                                 outputs=("dgamma", "dbeta"), long_lived=True,
                                 slices=along(0, 1, whole=(0, 1), fold=ADD))
BATCH_NORM_RELU_GRAD = Op("batch_norm_relu_grad", _relu_grad_infer, donates=((0, 0), (0, 1)),
                          slices=along(0, 1, shared=(6, 7)))
BATCH_NORM_UPDATE = Op("batch_norm_update_",
                       lambda running_mean, running_var, mean, var, *, momentum, count: (),
                       mutates=lambda n: (0, 1))


def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, running_mean: Tensor, running_var: Tensor, *,
               training: bool, momentum: float = 0.1, eps: float = 1e-5, relu: bool = False,
               residual: Tensor | None = None) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) * gamma + beta, per channel. x: [N, C, ...]; the others: [C].

    A residual [N, C, ...] is added to the result, then ``relu`` is applied. In training, mean and (biased) variance are
    those of the batch, and the running statistics move towards them by ``momentum`` (with the unbiased variance, as in
    PyTorch); otherwise the running statistics are used. Raises ShapeError for shapes or dtypes that do not fit,
    and in training for fewer than two values per channel.
    """
    if not training:
        return _normalise(x, gamma, beta, running_mean, running_var, eps, False, relu, residual)
    count = x.numel() // x.shape[1]
    if count < 2:
        raise ShapeError(f"batch norm in training needs more than one value per channel, not {list(x.shape)}")
    _check(x.meta, gamma.meta, beta.meta, running_mean.meta, running_var.meta)  # before the statistics change
    mean, var = apply_all(BATCH_NORM_STATS, x)
    apply_all(BATCH_NORM_UPDATE, running_mean, running_var, mean, var, momentum=momentum, count=count)
    return _normalise(x, gamma, beta, mean, var, eps, True, relu, residual)


def _normalise(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float, training: bool,
               relu: bool, residual: Tensor | None) -> Tensor:
    if relu and current().fuses:
        if residual is None:
            return apply(BATCH_NORM_RELU, x, gamma, beta, mean, var, eps=eps, training=training)
        return apply(BATCH_NORM_ADD_RELU, x, residual, gamma, beta, mean, var, eps=eps, training=training)
    y = apply(BATCH_NORM, x, gamma, beta, mean, var, eps=eps, training=training)
    if residual is not None:
        y = add(y, residual)
    return relu_(y) if relu else y
