"""Converts images to columns of a matrix product (im2col) and back: ``pack``, its adjoint ``scatter``, ``transpose``.

A tensor is a flat array with the strides (in elements) of its four dimensions. A tap is one position (r, s) in the
window of a convolution; a tile is a range of output pixels, which are numbered through the batch. Columns are a matrix
[C R S, T] with a row for each tap of each channel and a column for each pixel of a tile:

  columns[(c, r, s), (n, p, q)] = x[n, c, p * stride + r - padding, q * stride + s - padding], 0 outside

The offsets of a tile's pixels are computed once per tile, and once per tap whether they are inside the image. So the
loop over channels only moves vectors.
"""

from typing import Any

import numba

from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.vectors import (
    lanes,
    pick_halves,
    pick_quarters,
    pick_run,
    pick_scattered,
    turn_run,
    turn_scattered,
)

# Rows of the table ``places`` (int32): offset, height and width of tap (0, 0); offset of the current tap; start of each
# vector, and the pattern of its pixels.
PLACES = 6
SCATTERED, RUN, HALVES, QUARTERS = 0, 1, 2, 4
OUTSIDE = -(1 << 30)  # a height so negative that no tap is inside the image


@compiled
def padded(count: int, lane_count: int) -> Any:
    """Return ``count`` rounded up to a multiple of ``lane_count``, the elements of a vector register."""
    return (count + lane_count - 1) // lane_count * lane_count


@compiled
def locate(places: Any, pixels: Any, output: Any, stride: Any, padding: Any, strides: Any, lane_count: int) -> None:
    """Fill ``places`` with the position in x of tap (0, 0) for each output pixel in ``pixels``; borders are ignored.

    A vector's pixels are consecutive elements of x; or (at stride 2, in short rows) in halves or quarters of the vector
    every second element; or scattered. Which of these is the same for every tap, and is stored, too.
    """
    area, count = output[0] * output[1], pixels[1] - pixels[0]
    n, pixel = 0, pixels[0] % area
    p, q = pixel // output[1], pixel % output[1]
    origins, heights, widths, starts, steps = places[0], places[1], places[2], places[4], places[5]
    for i in range(count):
        h, w = p * stride[0] - padding[0], q * stride[1] - padding[1]
        origins[i], heights[i], widths[i] = n * strides[0] + h * strides[2] + w * strides[3], h, w
        q += 1
        if q == output[1]:
            p, q = p + 1, 0
            if p == output[0]:
                n, p = n + 1, 0
    for i in range(count, padded(count, lane_count)):
        heights[i] = OUTSIDE
    for first in range(0, count, lane_count):
        last = min(first + lane_count, count) - 1
        run, halves, quarters = True, True, True
        for i in range(first, last):
            step, next_lane = origins[i + 1] - origins[i], i + 1 - first
            run = run and step == 1
            halves = halves and (step == 2 or next_lane % (lane_count // 2) == 0)
            quarters = quarters and (step == 2 or next_lane % (lane_count // 4) == 0)
        starts[first // lane_count] = origins[first]
        steps[first // lane_count] = RUN if run else HALVES if halves else QUARTERS if quarters else SCATTERED


@compiled
def _find_tap(places: Any, count: int, r: int, s: int, size: Any, strides: Any) -> Any:
    """Write to ``places[3]`` each of ``count`` pixels' offset of tap (r, s), or -1 if the tap is outside the image.
    Return the distance from tap (0, 0) to it. Offsets are in elements of x. size: an image's height and width."""
    origins, heights, widths, offsets = places[0][:count], places[1][:count], places[2][:count], places[3][:count]
    height, width, shift = numba.int32(size[0]), numba.int32(size[1]), numba.int32(r * strides[2] + s * strides[3])
    for i in range(count):
        h, w = heights[i] + numba.int32(r), widths[i] + numba.int32(s)
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
        offsets[i] = origins[i] + shift if inside else numba.int32(-1)
    return shift


@compiled
def pack(columns: Any, at: int, width: int, x: Any, strides: Any, size: Any, kernel: Any, channels: Any, places: Any,
         first_image: int, count: int) -> None:
    """Write the columns of channels (first, last) and of the ``count`` pixels in ``places``, in panels ``width`` wide.

    They go to ``columns`` from element ``at`` on. x has images of ``size`` (height, width); the first pixel is in image
    ``first_image``. kernel: (R, S). A panel has ``width`` columns of the matrix, stored as [rows][width]; panels follow
    each other. With a width of at least ``count`` there is one panel, the matrix itself.
    """
    lane_count = lanes(columns)
    taps, origins, offsets = kernel[0] * kernel[1], places[0], places[3]
    rows = (channels[1] - channels[0]) * taps
    begin = first_image * strides[0] + channels[0] * strides[1]
    for r in range(kernel[0]):
        for s in range(kernel[1]):
            tap = begin + _find_tap(places, padded(count, lane_count), r, s, size, strides)
            for first in range(0, count, lane_count):
                start, step = tap + places[4, first // lane_count], places[5, first // lane_count]
                to = at + first // width * rows * width + first % width + (r * kernel[1] + s) * width
                if step == RUN:
                    for c in range(channels[1] - channels[0]):
                        pick_run(columns, to + c * taps * width, x, start + c * strides[1], offsets, first)
                elif step == HALVES:
                    for c in range(channels[1] - channels[0]):
                        pick_halves(columns, to + c * taps * width, x, tap + c * strides[1], offsets, first, origins)
                elif step == QUARTERS:
                    for c in range(channels[1] - channels[0]):
                        pick_quarters(columns, to + c * taps * width, x, tap + c * strides[1], offsets, first, origins)
                else:
                    for c in range(channels[1] - channels[0]):
                        pick_scattered(columns, to + c * taps * width, x, begin + c * strides[1], offsets, first)


@compiled
def transpose(panels: Any, at: int, width: int, dy: Any, strides: Any, size: Any, channels: Any, places: Any,
              first_image: int, count: int) -> None:
    """Write the transpose of dy: pixels as rows, channels (first, last) in panels ``width`` wide, [count][width] each.
    They go to ``panels`` from element ``at`` on; the other arguments are as in ``pack``."""
    lane_count = lanes(panels)
    _find_tap(places, padded(count, lane_count), 0, 0, size, strides)
    offsets, starts, steps = places[3], places[4], places[5]
    for k in range(0, channels[1] - channels[0], lane_count):
        to = at + k // width * count * width + k % width
        rows = channels[1] - channels[0] - k
        origin = first_image * strides[0] + (channels[0] + k) * strides[1]
        for i in range(0, count, lane_count):
            start = starts[i // lane_count]
            if steps[i // lane_count] != RUN:
                turn_scattered(panels, to + i * width, width, count - i, dy, origin, strides[1], rows, offsets, i)
            else:
                turn_run(panels, to + i * width, width, count - i, dy, origin + start, strides[1], rows, offsets, i)


@compiled
def span(count: int, size: int, tap: int, stride: int, padding: int) -> Any:
    """Return (first, one past the last) of ``count`` outputs whose window element ``tap`` falls inside [0, size)."""
    first = min(count, max(0, -((tap - padding) // stride)))
    return first, max(first, min(count, (size - 1 + padding - tap) // stride + 1))


# The loops below run over slices that start at zero. The compiler then knows that no index is negative, leaves out the
# test for Python's wrap-around, and emits vector instructions.
@compiled
def _fill(target: Any, at: int, count: int, value: Any) -> None:
    part = target[at:at + count]
    for i in range(count):
        part[i] = value


@compiled
def _add(target: Any, at: int, step: int, source: Any, start: int, count: int) -> None:
    run = source[start:start + count]
    if step == 1:
        part = target[at:at + count]
        for i in range(count):
            part[i] += run[i]
    else:
        for i in range(count):
            target[at + i * step] += run[i]


@compiled
def scatter(dx: Any, to: int, image_step: int, columns: Any, at: int, ld: int, size: Any, output: Any, kernel: Any,
            stride: Any, padding: Any, images: int, channels: int, rows: Any) -> None:
    """Add every column entry to the element of dx that it came from.

    dx is [images, channels, *size] from element ``to`` on, an image every ``image_step`` elements. Rows of the columns
    are ``ld`` elements apart, from element ``at`` on, and have the pixels of the rows ``rows`` (first, last) of each
    image's ``output`` (P, Q). Column entries of taps outside the image are overwritten.
    """
    height, width = size
    q_count = output[1]
    row_count = rows[1] - rows[0]
    shifted = stride[0] == 1 and stride[1] == 1 and width == q_count
    row = at
    for c in range(channels):
        for r in range(kernel[0]):
            p_first, p_last = span(output[0], height, r, stride[0], padding[0])
            p_first = min(max(p_first, rows[0]), rows[1])
            p_last = max(p_first, min(p_last, rows[1]))
            for s in range(kernel[1]):
                q_first, q_last = span(q_count, width, s, stride[1], padding[1])
                if q_last > q_first and p_last > p_first:
                    for n in range(images):
                        start = row + (n * row_count - rows[0]) * q_count
                        begin = to + n * image_step + c * height * width
                        if shifted:
                            for p in range(p_first, p_last - 1):
                                _fill(columns, start + p * q_count + q_last, q_count - q_last, 0)
                                _fill(columns, start + (p + 1) * q_count, q_first, 0)
                            _add(dx, begin + (p_first + r - padding[0]) * width + q_first + s - padding[1], 1,
                                 columns, start + p_first * q_count + q_first,
                                 (p_last - p_first - 1) * q_count + q_last - q_first)
                        else:
                            for p in range(p_first, p_last):
                                _add(dx, begin + (p * stride[0] + r - padding[0]) * width
                                     + q_first * stride[1] + s - padding[1], stride[1],
                                     columns, start + p * q_count + q_first, q_last - q_first)
                row += ld
