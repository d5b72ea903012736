"""A model of the time of one call on a named GPU, and of the algorithms that a convolution can choose from there.

A roofline with two corrections, for one kernel of ``flops`` operations and ``nbytes`` of memory traffic:

  seconds = max(flops / (peak * efficiency * fill(flops)), nbytes / (bandwidth * streaming * fill(nbytes))) + floor
  fill(work) = work / (work + half)            a small kernel does not fill the GPU
  streaming = the efficiency of a copy for arithmetic kinds (conv, matmul, ...), else of the kind itself

Convolutions have the algorithms of cuDNN, in three classes of equal bits:

  gemm      implicit_gemm (no workspace), implicit_precomp_gemm (offsets precomputed: faster, a small workspace)
  winograd  F(2x2, 3x3) of Lavin and Gray 2016, for 3x3 at stride 1: 2.25 times fewer products. winograd transforms
            in registers (no workspace); winograd_nonfused stores the transformed tiles and multiplies them as 16
            batched products: nearer the peak, but 4 times the activations as workspace
  fft       for 5x5 and larger at stride 1: products of whole spectra, which are the workspace

The transformed tiles and spectra are fp32 for every tensor dtype, because products are accumulated in fp32.
Knows shapes and profiles; runs nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minidl.device.profiles import Profile, for_bf16
from minidl.kernels.roles import ROLES
from minidl.meta import Algorithm, Cost, Meta, Shape, aligned, bfloat16

TENSOR_CORE_KINDS = ("conv", "matmul")
ARITHMETIC_KINDS = ("conv", "winograd", "fft", "matmul")
IMPLICIT_GEMM_SLOWDOWN = 1.15  # it divides for every element's address where the precomputed variant looks it up
WINOGRAD_SAVING = 2.25  # 36 products of a 2x2 tile of outputs by 3x3 become 16
TILE, TILE_VALUES = 2, 16  # a tile of 2x2 outputs is 4x4 = 16 values when transformed
PARTS = (1, 2, 5, 10)  # into how many parts of about equal size a batch may be cut
COMPLEX_BYTES = 8
MAX_FFT_EXTENT = 256  # the longest padded side that cuDNN transforms in one piece


def kernel_seconds(profile: Profile, kind: str, flops: float, nbytes: float) -> float:
    """Return the device seconds of one kernel with this kind of work, ``flops`` operations and ``nbytes`` of traffic.
    Kind ``link`` is a copy from the host, ``exchange`` one between devices."""
    if kind == "link":
        return nbytes / profile.link_in_bandwidth + profile.link_latency_s
    if kind == "exchange":
        return nbytes / profile.between_devices + profile.link_latency_s
    # A kernel that is bound by its arithmetic still streams its operands as well as any copy does.
    streaming = profile.efficiency["copy" if kind in ARITHMETIC_KINDS else kind]
    peak = profile.tensor_flops if kind in TENSOR_CORE_KINDS else profile.peak_flops
    # work / fill(work) is work + half; without any work there is nothing to fill.
    compute = (flops + profile.half_fill_flops) / (peak * profile.efficiency[kind]) if flops else 0.0
    memory = (nbytes + profile.half_fill_bytes) / (profile.memory_bandwidth * streaming) if nbytes else 0.0
    return max(compute, memory) + profile.kernel_floor_s


def host_seconds(profile: Profile, cost: Cost) -> float:
    """Return the seconds of work of the kind ``host``: of its slowest part, since pieces of the others overlap it."""
    return profile.link_latency_s + max(cost.nbytes / profile.host_bandwidth,
                                        cost.link_bytes / profile.link_out_bandwidth,
                                        cost.link_bytes / profile.link_in_bandwidth)


def call_seconds(profile: Profile, outputs: Sequence[Meta], cost: Cost) -> float:
    """Return the device seconds of a call that is one kernel. A product uses the peak of its dtype."""
    if cost.kind == "host":
        return host_seconds(profile, cost)
    if cost.kind in TENSOR_CORE_KINDS and outputs and outputs[0].dtype is bfloat16:
        profile = for_bf16(profile)
    return kernel_seconds(profile, cost.kind, cost.flops, cost.nbytes)


def algorithms(profile: Profile, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
               attrs: Mapping[str, Any], cost: Cost) -> tuple[Algorithm, ...]:
    """Return the algorithms of a call. The first one's bits class is that of the deterministic mode.

    That class comes first and has a member without workspace; the other classes follow. Each part is sorted fastest
    first.
    """
    role = ROLES.get(op_name)
    if role is None:
        return (Algorithm("", call_seconds(profile, outputs, cost)),)
    if outputs[0].dtype is bfloat16:
        profile = for_bf16(profile)
    x, w, y = (m.shape for m in role.pick(outputs[0], inputs))
    return _convolution(profile, x, w, y, attrs, cost, sums_over_images=role.kind == "conv2d_wgrad")


def _convolution(profile: Profile, x: Shape, w: Shape, y: Shape, attrs: Mapping[str, Any], cost: Cost, *,
                 sums_over_images: bool) -> tuple[Algorithm, ...]:
    """Return the algorithms of a convolution or of a gradient of it.
    Shapes: x [N, C, H, W], w [K, C / groups, R, S], y [N, K, P, Q].
    sums_over_images: True for the weight's gradient."""
    unit_stride = tuple(attrs["stride"]) == (1, 1)
    choices = _gemm(profile, w, y, cost)
    first_class = "gemm"
    if x[1] > w[1]:
        return tuple(choices)  # groups have too few channels for products in another domain
    if w[2:] == (3, 3) and unit_stride:
        # A batch may be run in parts, each with its share of the workspace (Oyama et al., "u-cuDNN: Accelerating Deep
        # Learning Frameworks with Micro-Batching", 2018). Images are independent, so the bits are the same, except
        # in the weight's gradient, which is a sum over images.
        choices += _winograd(profile, x, w, y, cost, parts=(1,) if sums_over_images else PARTS)
        if profile.tensor_flops <= WINOGRAD_SAVING * profile.peak_flops:
            first_class = "winograd"  # otherwise GEMM on tensor cores, which a fused Winograd cannot use, is faster
    if min(w[2:]) >= 5 and unit_stride:
        choices += _fft(profile, x, w, cost, attrs["padding"])
    return tuple(sorted(choices, key=lambda choice: (choice.bits_class != first_class, choice.seconds)))


def _gemm(profile: Profile, w: Shape, y: Shape, cost: Cost) -> list[Algorithm]:
    seconds = kernel_seconds(profile, "conv", cost.flops, cost.nbytes)
    # One 4-byte offset an output position of an image, one a row of the unfolded filter.
    offsets = 4 * (y[2] * y[3] + w[1] * w[2] * w[3])
    return [Algorithm("implicit_precomp_gemm", seconds, aligned(offsets), "gemm"),
            Algorithm("implicit_gemm", seconds * IMPLICIT_GEMM_SLOWDOWN, 0, "gemm")]


def _winograd(profile: Profile, x: Shape, w: Shape, y: Shape, cost: Cost, *,
              parts: Sequence[int]) -> list[Algorithm]:
    """Return the Winograd algorithms. For the weight's gradient, cuDNN has no fused one; MIOpen and this model do.
    parts: numbers of equal parts into which the batch may be cut; the workspace is then one part's."""
    n, k, c = x[0], w[0], w[1]
    flops = cost.flops / WINOGRAD_SAVING
    choices = [Algorithm("winograd", kernel_seconds(profile, "winograd", flops, cost.nbytes), 0, "winograd")]
    for count in parts:
        images = math.ceil(n / count)  # of the largest part
        tiles = images * math.ceil(y[2] / TILE) * math.ceil(y[3] / TILE)
        transformed = 4 * TILE_VALUES * (tiles * (c + k) + c * k)
        # Every operand is transformed to or from its tiles, in two passes over them, around the product over the tiles.
        nonfused = count * (kernel_seconds(profile, "elementwise", 0.0, cost.nbytes / count + transformed)
                            + kernel_seconds(profile, "matmul", flops / count, transformed))
        name = "winograd_nonfused" if count == 1 else f"winograd_nonfused/{count}"
        choices.append(Algorithm(name, nonfused, aligned(transformed), "winograd"))
    return choices


def _fft(profile: Profile, x: Shape, w: Shape, cost: Cost, padding: Sequence[int]) -> list[Algorithm]:
    n, k, c = x[0], w[0], w[1]
    # Circular convolution is the linear one on the padded input alone; real input needs half of a spectrum.
    height, width = (_fast_extent(size + 2 * pad) for size, pad in zip(x[2:], padding, strict=True))
    if max(height, width) > MAX_FFT_EXTENT:
        return []
    frequencies = height * (width // 2 + 1)
    planes = n * c + n * k + k * c
    spectra = COMPLEX_BYTES * frequencies * planes
    transform_flops = 2.5 * height * width * math.log2(height * width) * planes
    product_flops = 8.0 * frequencies * n * c * k  # a complex multiplication and addition are 8 operations
    seconds = (kernel_seconds(profile, "fft", transform_flops, cost.nbytes + spectra)
               + kernel_seconds(profile, "fft", product_flops, spectra))
    return [Algorithm("fft", seconds, aligned(spectra), "fft")]


def _fast_extent(size: int) -> int:
    """Return the least even length from ``size`` on that transforms fast: a product of 2, 3 and 5."""
    extent = size + size % 2
    while True:
        rest = extent
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return extent
        extent += 2
