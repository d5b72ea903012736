"""Batch normalisation (Ioffe & Szegedy 2015) as two calls, statistics and apply; layer normalisation as one.

Layer normalisation (Ba, Kiros & Hinton 2016) takes the statistics of each row. It keeps them next to its input, so
that neither part of its gradient looks for them again. Batch statistics are small and are kept, so that replaying a
dropped output is the apply alone. Running statistics are updated by an in-place call of their own, once, however often
the others are replayed.
"""

from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta
from minidl.op import Op
from minidl.tensor import Tensor, apply, apply_all, give


def _channels(x: Meta) -> Meta:
    if len(x.shape) < 2:
        raise ShapeError(f"batch norm needs [N, C, ...], not {list(x.shape)}")
    return meta((x.shape[1],), x.dtype)


def _stats_infer(x: Meta) -> tuple[Meta, Meta]:
    return _channels(x), _channels(x)


def _stats_cost(inputs, outputs, attrs) -> Cost:
    # One pass: mean and mean of squares (or Welford's update) are found together.
    return Cost(3.0 * inputs[0].size, float(inputs[0].nbytes), "reduce")


def _apply_infer(x: Meta, gamma: Meta, beta: Meta, mean: Meta, var: Meta, *, eps: float, training: bool) -> Meta:
    if not gamma.shape == beta.shape == mean.shape == var.shape == _channels(x).shape:
        raise ShapeError(f"batch norm over {list(gamma.shape)} channels does not fit {list(x.shape)}")
    return meta(x.shape, x.dtype)


def _grad_reduce_infer(dy: Meta, x: Meta, mean: Meta, var: Meta, *, eps: float) -> tuple[Meta, Meta]:
    return _channels(x), _channels(x)


def _grad_reduce_cost(inputs, outputs, attrs) -> Cost:
    return Cost(4.0 * inputs[0].size, float(inputs[0].nbytes + inputs[1].nbytes), "reduce")


def _grad_infer(dy: Meta, x: Meta, gamma: Meta, mean: Meta, var: Meta, dgamma: Meta, dbeta: Meta,
                *, eps: float, training: bool) -> Meta:
    return meta(x.shape, x.dtype)


def _apply_vjp(needs, dy, x, gamma, mean, var, *, eps, training):
    """With batch statistics, mean and var are functions of x: this is the whole gradient of both calls."""
    dgamma, dbeta = apply_all(BATCH_NORM_GRAD_REDUCE, dy, x, mean, var, eps=eps)
    dx = None
    if needs[0]:
        # The last use of dy and of the saved x: either may be written over.
        dx = apply(BATCH_NORM_GRAD, give(dy), give(x), gamma, mean, var, dgamma, dbeta, eps=eps, training=training)
    return dx, dgamma if needs[1] else None, dbeta if needs[2] else None, None, None


BATCH_NORM_STATS = Op("batch_norm_stats", _stats_infer, _stats_cost, outputs=("mean", "var"))
BATCH_NORM = Op("batch_norm", _apply_infer, vjp=_apply_vjp, donates=((0, 0),))
BATCH_NORM_GRAD_REDUCE = Op("batch_norm_grad_reduce", _grad_reduce_infer, _grad_reduce_cost,
                            outputs=("dgamma", "dbeta"), long_lived=True)
BATCH_NORM_GRAD = Op("batch_norm_grad", _grad_infer, donates=((0, 0), (0, 1)))
BATCH_NORM_UPDATE = Op("batch_norm_update_",
                       lambda running_mean, running_var, mean, var, *, momentum, count: (),
                       mutates=lambda n: (0, 1))


def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, running_mean: Tensor, running_var: Tensor, *,
               training: bool, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gamma + beta, per channel.  x: [N, C, ...]; the others: [C].

    In training mean and (biased) variance are those of the batch, and the running ones move towards them by
    ``momentum`` (the variance unbiased, as PyTorch has it); otherwise the running ones are used.
    """
    if not training:
        return apply(BATCH_NORM, x, gamma, beta, running_mean, running_var, eps=eps, training=False)
    count = x.size // x.shape[1]
    if count < 2:
        raise ShapeError(f"batch norm in training needs more than one value per channel, not {list(x.shape)}")
    mean, var = apply_all(BATCH_NORM_STATS, x)
    apply_all(BATCH_NORM_UPDATE, running_mean, running_var, mean, var, momentum=momentum, count=count)
    return apply(BATCH_NORM, x, gamma, beta, mean, var, eps=eps, training=True)


def _rows(x: Meta) -> Meta:
    return meta(x.shape[:-1], x.dtype)


def _layer_infer(x: Meta, gamma: Meta, beta: Meta, *, eps: float) -> tuple[Meta, Meta, Meta]:
    if not x.shape or not gamma.shape == beta.shape == x.shape[-1:]:
        raise ShapeError(f"layer norm over rows of {list(gamma.shape)} does not fit {list(x.shape)}")
    return meta(x.shape, x.dtype), _rows(x), _rows(x)


def _layer_cost(inputs, outputs, attrs) -> Cost:
    return Cost(8.0 * inputs[0].size, float(sum(m.nbytes for m in (*inputs, *outputs))), "reduce")


def _layer_grad_reduce_infer(dy: Meta, x: Meta, mean: Meta, rstd: Meta) -> tuple[Meta, Meta]:
    return meta(x.shape[-1:], x.dtype), meta(x.shape[-1:], x.dtype)


def _layer_grad_infer(dy: Meta, x: Meta, gamma: Meta, mean: Meta, rstd: Meta) -> Meta:
    return meta(x.shape, x.dtype)


def _layer_vjp(needs, dy, x, gamma, mean, rstd):
    dgamma = dbeta = dx = None
    if needs[1] or needs[2]:
        dgamma, dbeta = apply_all(LAYER_NORM_GRAD_REDUCE, dy, x, mean, rstd)
    if needs[0]:
        dx = apply(LAYER_NORM_GRAD, give(dy), give(x), gamma, mean, rstd)
    return dx, dgamma if needs[1] else None, dbeta if needs[2] else None


LAYER_NORM_GRAD_REDUCE = Op("layer_norm_grad_reduce", _layer_grad_reduce_infer, _grad_reduce_cost,
                            outputs=("dgamma", "dbeta"), long_lived=True)
LAYER_NORM_GRAD = Op("layer_norm_grad", _layer_grad_infer, _layer_cost, donates=((0, 0), (0, 1)))
LAYER_NORM = Op("layer_norm", _layer_infer, _layer_cost, outputs=("y", "mean", "rstd"), vjp=_layer_vjp,
                donates=((0, 0),))


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gamma + beta, with mean and biased variance of each row of D values.

    x: [..., D], gamma and beta: [D].  Raises ShapeError.
    """
    return apply_all(LAYER_NORM, x, gamma, beta, eps=eps)[0]
