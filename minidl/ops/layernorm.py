"""Layer normalisation (Ba, Kiros & Hinton 2016).

The statistics of each row are kept beside the input, so that the gradient does not recompute them. Parameters,
statistics and their gradients are float32 if the input is a 16-bit float (``meta.wide``).
"""

from collections.abc import Sequence

from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta, wide
from minidl.op import Attrs, Op
from minidl.ops.arguments import plain_number
from minidl.ops.elementwise import ADD
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor


def _grad_reduce_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(4.0 * inputs[0].size, float(inputs[0].nbytes + inputs[1].nbytes), "reduce")


def _rows(x: Meta) -> Meta:
    return meta(x.shape[:-1], wide(x.dtype))


def _layer_infer(x: Meta, gamma: Meta, beta: Meta, *, eps: float) -> tuple[Meta, Meta, Meta]:
    plain_number("layer norm's eps", eps)
    if not x.shape or not gamma.shape == beta.shape == x.shape[-1:]:
        raise ShapeError(f"layer norm over rows of {list(gamma.shape)} does not fit {list(x.shape)}")
    if not gamma.dtype is beta.dtype is wide(x.dtype):
        raise ShapeError(f"layer norm of {x.dtype.name} needs its parameters in {wide(x.dtype).name}, not "
                         f"{gamma.dtype.name} and {beta.dtype.name}")
    return meta(x.shape, x.dtype), _rows(x), _rows(x)


def _layer_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(8.0 * inputs[0].size, float(sum(m.nbytes for m in (*inputs, *outputs))), "reduce")


def _layer_grad_reduce_infer(dy: Meta, x: Meta, mean: Meta, rstd: Meta) -> tuple[Meta, Meta]:
    parameter = meta(x.shape[-1:], wide(x.dtype))
    return parameter, parameter


def _layer_grad_infer(dy: Meta, x: Meta, gamma: Meta, mean: Meta, rstd: Meta) -> Meta:
    return meta(x.shape, x.dtype)


def _layer_vjp(needs: Needs, dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    dgamma = dbeta = dx = None
    if needs[1] or needs[2]:
        dgamma, dbeta = apply_all(LAYER_NORM_GRAD_REDUCE, dy, x, mean, rstd)
    if needs[0]:
        dx = apply(LAYER_NORM_GRAD, donate(dy), donate(x), gamma, mean, rstd)
    return dx, dgamma if needs[1] else None, dbeta if needs[2] else None


LAYER_NORM_GRAD_REDUCE = Op("layer_norm_grad_reduce", _layer_grad_reduce_infer, _grad_reduce_cost,
                            outputs=("dgamma", "dbeta"), long_lived=True,
                            slices=along(0, 1, 2, 3, dims=2, whole=(0, 1), fold=ADD))
LAYER_NORM_GRAD = Op("layer_norm_grad", _layer_grad_infer, _layer_cost, donates=((0, 0), (0, 1)),
                     slices=along(0, 1, 3, 4, dims=2))
LAYER_NORM = Op("layer_norm", _layer_infer, _layer_cost, outputs=("y", "mean", "rstd"), vjp=_layer_vjp,
                donates=((0, 0),), slices=along(0, dims=2))


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) * gamma + beta, with mean and biased variance of each row of D values.
    x: [..., D], gamma and beta: [D]. Raises ShapeError for other shapes, WrongKind if ``eps`` is no number."""
    return apply_all(LAYER_NORM, x, gamma, beta, eps=eps)[0]
