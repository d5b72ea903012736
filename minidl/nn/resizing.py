"""PyTorch's functions that pad, resize and rearrange images, composed of joins, look-ups and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import numpy as np

from minidl.errors import ShapeError, UserError
from minidl.meta import wide
from minidl.ops.choose import convert
from minidl.ops.linear import matmul
from minidl.ops.rearranging import at, uploaded
from minidl.ops.shape import concat, permute, reshape, sizes_of
from minidl.ops.update import full
from minidl.tensor import Tensor

PAD_MODES = ("constant", "reflect", "replicate", "circular")


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Return input padded along its last dimensions.

    pad: numbers of elements before and after the last dimension, then before and after the second to last, and so on;
    negative numbers cut. Mode "constant" pads with ``value`` (None: 0), "reflect" mirrors input without repeating the
    edge, "replicate" repeats the edge, "circular" takes the elements of the opposite side. Raises ShapeError for
    numbers that do not fit input, UserError for an unknown mode.
    """
    if mode not in PAD_MODES:
        raise UserError(f"pad: mode must be one of {', '.join(PAD_MODES)}, not {mode!r}")
    pad, filler = sizes_of((pad,)), 0.0 if value is None else value
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ShapeError(f"pad takes two numbers for each of the last dimensions, not {list(pad)} for "
                         f"{list(input.shape)}")
    for number in range(len(pad) // 2):
        axis, (before, after) = input.ndim - 1 - number, pad[2 * number:2 * number + 2]
        size = input.shape[axis]
        if mode != "constant" and min(before, after) < 0:
            input = at(input, axis, slice(max(0, -before), max(0, size - max(0, -after))))
            before, after, size = max(0, before), max(0, after), input.shape[axis]
        if mode == "constant":
            if size + before + after < 0:
                raise ShapeError(f"pad: {before} and {after} remove more than the {size} elements of dimension {axis}")
            y = at(input, axis, slice(max(0, -before), size - max(0, -after)))
            parts = [full((*input.shape[:axis], max(0, n), *input.shape[axis + 1:]), filler, input.dtype)
                     for n in (before, after)]
            input = concat([part for part in (parts[0], y, parts[1]) if part.shape[axis]] or [y], axis)
        elif before or after:
            input = at(input, axis, _places(mode, size, before, after))
    return input


def _places(mode: str, size: int, before: int, after: int) -> np.ndarray:
    places = np.arange(-before, size + after)
    most = {"reflect": size - 1, "circular": size, "replicate": before + after + size}[mode]
    if max(before, after) > most or min(before, after) < 0 or not size:
        raise ShapeError(f"pad: {size} elements cannot be padded by {before} and {after} in mode {mode}")
    if mode == "reflect":
        places = np.abs(places)
        return np.where(places >= size, 2 * (size - 1) - places, places)
    return places % size if mode == "circular" else np.clip(places, 0, size - 1)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Move channels into pixels (Shi et al. 2016): [N, C r^2, H, W] -> [N, C, H r, W r] with r = ``upscale_factor``.
    Raises ShapeError for other shapes, and for r below 1."""
    r = upscale_factor
    if input.ndim != 4 or r < 1 or input.shape[1] % (r * r):
        raise ShapeError(f"pixel_shuffle: {list(input.shape)} is not [N, C r^2, H, W] with r = {r}")
    n, c, h, w = input.shape
    y = permute(reshape(input, (n, c // (r * r), r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(y, (n, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Move pixels into channels, the inverse of ``pixel_shuffle``: [N, C, H r, W r] -> [N, C r^2, H, W].
    Raises ShapeError for other shapes, and for r = ``downscale_factor`` below 1."""
    r = downscale_factor
    if input.ndim != 4 or r < 1 or input.shape[2] % r or input.shape[3] % r:
        raise ShapeError(f"pixel_unshuffle: {list(input.shape)} is not [N, C, H r, W r] with r = {r}")
    n, c, h, w = input.shape
    y = permute(reshape(input, (n, c, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return reshape(y, (n, c * r * r, h // r, w // r))


def _linear_weights(size: int, wanted: int, scale: float, align: bool) -> np.ndarray:
    """Return linear interpolation's weights [wanted, size]: the share of each old element in each new one.
    scale: old elements per new one; with ``align`` it is not used, and the first and last elements coincide."""
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        place = i * (size - 1) / max(1, wanted - 1) if align else max(0.0, (i + 0.5) * scale - 0.5)
        low = min(floor(place), size - 1)
        share = place - low
        weights[i, low] += 1.0 - share
        weights[i, min(low + 1, size - 1)] += share
    return weights


def _cubic_weights(size: int, wanted: int, scale: float, align: bool) -> np.ndarray:
    """Return cubic interpolation's weights [wanted, size], with a = -0.75 (Keys 1981): old elements' shares in new."""
    a = -0.75

    def share(d: float) -> float:
        d = abs(d)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        place = i * (size - 1) / max(1, wanted - 1) if align else (i + 0.5) * scale - 0.5
        for tap in range(floor(place) - 1, floor(place) + 3):
            weights[i, min(max(tap, 0), size - 1)] += share(place - tap)
    return weights


def _area_weights(size: int, wanted: int, scale: float, align: bool) -> np.ndarray:
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        first, last = i * size // wanted, -(-(i + 1) * size // wanted)
        weights[i, first:last] = 1.0 / (last - first)
    return weights


WEIGHTS = {"linear": _linear_weights, "bilinear": _linear_weights, "trilinear": _linear_weights,
           "bicubic": _cubic_weights, "area": _area_weights}
DIMENSIONS = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}
NEAREST = {"nearest": 0.0, "nearest-exact": 0.5}  # the position within a new element that is mapped to an old one


def interpolate(input: Tensor, size: int | Sequence[int] | None = None,
                scale_factor: float | Sequence[float] | None = None,
                mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
                antialias: bool = False) -> Tensor:
    """Return input [N, C, ...] resized to ``size`` or by ``scale_factor``.
    mode: nearest, nearest-exact, linear (one dimension), bilinear and bicubic (two), trilinear (three) or area.
    ``recompute_scale_factor`` uses the ratio of the sizes instead of the given factor. Raises ShapeError for other
    dimensions and unless one of size and factor is given, UserError for another mode and for ``antialias``."""
    known = (*NEAREST, *WEIGHTS)
    if antialias:
        raise UserError("interpolate: antialias is not supported")
    if mode not in known:
        raise UserError(f"interpolate: mode must be one of {', '.join(known)}, not {mode!r}")
    spatial = input.ndim - 2
    if spatial < 1 or DIMENSIONS.get(mode, spatial) != spatial or (size is None) == (scale_factor is None):
        raise ShapeError(f"interpolate: {mode} cannot resize {list(input.shape)} to size {size}, factor {scale_factor}")
    if size is not None:
        sizes = list(sizes_of((size,))) * (1 if hasattr(size, "__iter__") else spatial)
        scales = [0.0] * spatial
    else:
        assert scale_factor is not None
        scales = [float(scale_factor)] * spatial if not hasattr(scale_factor, "__iter__") else list(scale_factor)
        sizes = [floor(n * s) for n, s in zip(input.shape[2:], scales, strict=True)]
        if recompute_scale_factor:
            scales = [0.0] * spatial
    for axis, (wanted, factor) in enumerate(zip(sizes, scales, strict=True), 2):
        n = input.shape[axis]
        if wanted < 1 or n < 1:
            raise ShapeError(f"interpolate: {n} elements cannot become {wanted}")
        scale = 1.0 / factor if factor else n / wanted
        if mode in NEAREST:
            places = np.floor((np.arange(wanted) + NEAREST[mode]) * scale).astype(np.int64)
            input = at(input, axis, np.minimum(places, n - 1))
            continue
        shares = WEIGHTS[mode](n, wanted, scale, bool(align_corners))
        weights = convert(uploaded(shares, wide(input.dtype)), input.dtype)
        order = tuple(i for i in range(input.ndim) if i != axis)
        rows = permute(input, (*order, axis))
        y = matmul(reshape(rows, (-1, n)), weights, transpose_b=True)
        y = reshape(y, (*[input.shape[i] for i in order], wanted))
        input = permute(y, tuple(sorted(range(input.ndim), key=(*order, axis).__getitem__)))
    return input
