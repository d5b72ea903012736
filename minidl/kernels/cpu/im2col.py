"""Convolutions as matrix products over tiles of columns (im2col), in compiled code on all cores.

Output pixels are cut into tiles and channels into chunks, so that the columns of one tile and chunk stay in a core's
own cache, packed for the product. A task owns a part of the result: no two tasks write the same element, and no sums
are left for later.

  fprop    task = (tile, block of K):        for chunks of C, in order:  y += w[chunk] columns(x)[chunk]
  dgrad    task = (tile, block of C):        for chunks of the block:    add the columns w[chunk]^T dy to dx
  wgrad    task = (block of K, chunk of C):  for tiles, in order:        dw[chunk]^T += columns(x)[chunk] dy^T

Here C and K are the channels of x and y, and a block is a range of them. Groups of channels are convolutions of their
own in the same arrays: C and K are those of a group, and one loop does the tasks of all groups. A tile of dgrad is
several whole images, or one image in consecutive pieces. Cuts follow from the shapes alone, and worker i does tasks i,
i + workers, ..., in its own part of the workspace: the result does not depend on the number of workers. Tensors are
flat arrays with strides; y, dx and dw are contiguous.

16-bit floats (elements.py) are converted when they are packed; weights, and results until they are complete, have a
float32 copy of a task's part in the buffer.
"""

from functools import partial
from typing import Any

import numba
import numpy as np

from minidl.kernels import scalar
from minidl.kernels.cpu.columns import PLACES, locate, pack, padded, scatter, transpose
from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.elements import operand, read, room, write
from minidl.kernels.cpu.product import multiply
from minidl.kernels.cpu.vectors import lanes

parallel = partial(compiled, parallel=True)

# Arguments of all kernels: x_shape (N, C, H, W), w_shape (K, R, S), y_shape (P, Q), stride, padding, groups, and cuts:
#   tile    pixels of it (fprop, wgrad), or rows of an image (dgrad)
 #   images  dgrad: images of a tile; fprop: 1 if a tile is within one image, more if it may span several
#   chunk, block, width    channels that are gathered at a time, channels of a task, pixels of the widest tile
#   weights, results       elements at the start of the buffer for decoded weights and results; 0 if there are none


@compiled
def _fprop_task(y: Any, x: Any, x_strides: Any, w: Any, b: Any, relu: bool, buffer: Any, at: int, places: Any,
                x_shape: Any, w_shape: Any, y_shape: Any, stride: Any, padding: Any, groups: int, cuts: Any,
                task: int) -> None:
    n_count, c_count, height, width = x_shape
    k_count, taps, area = w_shape[0], w_shape[1] * w_shape[2], y_shape[0] * y_shape[1]
    panel, image_step = 3 * lanes(buffer), groups * k_count * area
    blocks = (k_count + cuts[3] - 1) // cuts[3]
    tile, k = task // blocks, task % blocks * cuts[3]
    block = min(cuts[3], k_count - k)
    weights_at, at, straight = at, at + cuts[5], cuts[1] == 1
    if straight:  # a piece of one image: the product goes straight to y
        pieces = (area + cuts[0] - 1) // cuts[0]
        first = tile // pieces * area + tile % pieces * cuts[0]
        last = min(first + cuts[0], (tile // pieces + 1) * area)
        out_at, ld, columns_at = first // area * image_step + k * area + first % area, area, at
    else:
        first = tile * cuts[0]
        last = min(first + cuts[0], n_count * area)
        ld = padded(last - first, lanes(buffer))
        out_at, columns_at = at, at + block * ld
    out = room(y, buffer, straight)
    count = last - first
    image = first // area
    locate(places, (first, last), y_shape, stride, padding, x_strides, lanes(buffer))
    if b.size:
        for i in range(block):
            row = out[out_at + i * ld:out_at + i * ld + count]
            for j in range(count):
                row[j] = b[k + i]
    for c in range(0, c_count, cuts[2]):
        stop = min(c + cuts[2], c_count)
        pack(buffer, columns_at, panel, x, x_strides, (height, width), (w_shape[1], w_shape[2]), (c, stop), places,
             image, count)
        depth = (stop - c) * taps
        a, a_at, down, across = operand(w, (k * c_count + c) * taps, c_count * taps, 1, buffer, weights_at, block,
                                        depth)
        multiply(out, out_at, ld, a, a_at, down, across, buffer, columns_at, block, count, depth, c > 0 or b.size > 0)
    if straight and relu:  # the task's results are still in the core's own cache
        for i in range(block):
            row = out[out_at + i * ld:out_at + i * ld + count]
            for j in range(count):
                row[j] = scalar.relu(row[j])
    if not straight:
        for i in range(block):
            pixel = first
            while pixel < last:
                run = min(last - pixel, area - pixel % area)
                to = pixel // area * image_step + (k + i) * area + pixel % area
                origin = at + i * ld + pixel - first
                target, source = y[to:to + run], buffer[origin:origin + run]
                for j in range(run):
                    write(target, j, scalar.relu(source[j]) if relu else source[j])
                pixel += run


@parallel
def fprop(y: Any, x: Any, x_strides: Any, w: Any, b: Any, relu: bool, buffer: Any, x_shape: Any, w_shape: Any,
          y_shape: Any, stride: Any, padding: Any, groups: int, cuts: Any, workers: int, tasks: int) -> None:
    """y = convolution of x and w, plus b if that is not empty, with a ReLU if ``relu``.
    x_shape: (N, C, H, W), w_shape: (K, R, S), y_shape: (P, Q). cuts: ``Cuts.numbers``. tasks: of one group.
    buffer: scratch space, in equal parts for the workers, which share the tasks of all groups."""
    share = buffer.size // workers
    for worker in numba.prange(workers):
        places = np.empty((PLACES, cuts[4]), np.int32)
        for task in range(worker, groups * tasks, workers):
            c, k = task // tasks * x_shape[1], task // tasks * w_shape[0]
            _fprop_task(y[k * y_shape[0] * y_shape[1]:], x[c * x_strides[1]:], x_strides,
                        w[k * x_shape[1] * w_shape[1] * w_shape[2]:], b[k:], relu, buffer, worker * share, places,
                        x_shape, w_shape, y_shape, stride, padding, groups, cuts, task % tasks)


@compiled
def _plane(out: Any, at: int, size: Any, onto: Any, origin: int, strides: Any) -> None:
    """Copy one channel of an image, from element ``origin`` of ``onto`` on, to ``out`` from element ``at`` on.
    size: (height, width). If ``onto`` is empty, write zeros."""
    height, width = size
    for h in range(height):
        row, start = out[at + h * width:at + (h + 1) * width], origin + h * strides[2]
        if not onto.size:
            row[:] = 0
        elif strides[3] == 1:
            source = onto[start:start + width]
            for j in range(width):
                row[j] = read(source, j)
        else:
            for j in range(width):
                row[j] = read(onto, start + j * strides[3])


@compiled
def _dgrad_task(dx: Any, dy: Any, dy_strides: Any, w: Any, onto: Any, onto_strides: Any, kept: bool, buffer: Any,
                at: int, places: Any, x_shape: Any, w_shape: Any, y_shape: Any, stride: Any, padding: Any, groups: int,
                cuts: Any, task: int) -> None:
    n_count, c_count, height, width = x_shape
    k_count, taps = w_shape[0], w_shape[1] * w_shape[2]
    area, panel = y_shape[0] * y_shape[1], 3 * lanes(buffer)
    blocks = (c_count + cuts[3] - 1) // cuts[3]
    images = (task // blocks * cuts[1], min((task // blocks + 1) * cuts[1], n_count))
    c_first = task % blocks * cuts[3]
    c_last = min(c_first + cuts[3], c_count)
    same = (cuts[1] == 1 and taps == 1 and stride[0] == 1 and stride[1] == 1 and padding[0] == 0 and padding[1] == 0)
    plane, weights_at, straight = height * width, at, cuts[6] == 0
    out = room(dx, buffer, True)
    image_step = groups * c_count * plane
    to, step = images[0] * image_step + c_first * plane, image_step
    if not straight:
        to, step = at + cuts[5], (c_last - c_first) * plane
    at += cuts[5] + cuts[6]
    if not kept and (onto.size or not same):
        for n in range(images[1] - images[0]):
            for c in range(c_last - c_first):
                _plane(out, to + n * step + c * plane, (height, width), onto,
                       (images[0] + n) * onto_strides[0] + (c_first + c) * onto_strides[1], onto_strides)
    for p in range(0, y_shape[0], cuts[0]):
        rows = (p, min(p + cuts[0], y_shape[0]))
        pixels = (images[0] * area + p * y_shape[1], (images[1] - 1) * area + rows[1] * y_shape[1])
        count = pixels[1] - pixels[0]
        ld = padded(count, lanes(buffer))
        columns_at = at + k_count * ((count + panel - 1) // panel * panel)
        locate(places, pixels, y_shape, (1, 1), (0, 0), dy_strides, lanes(buffer))
        pack(buffer, at, panel, dy, dy_strides, y_shape, (1, 1), (0, k_count), places, images[0], count)
        if same:
            a, a_at, down, across = operand(w, c_first, 1, c_count, buffer, weights_at, c_last - c_first, k_count)
            multiply(out, to + p * y_shape[1], area, a, a_at, down, across, buffer, at, c_last - c_first, count,
                     k_count, kept or onto.size > 0)
            continue
        for c in range(c_first, c_last, cuts[2]):
            stop = min(c + cuts[2], c_last)
            m = (stop - c) * taps
            a, a_at, down, across = operand(w, c * taps, 1, c_count * taps, buffer, weights_at, m, k_count)
            multiply(buffer, columns_at, ld, a, a_at, down, across, buffer, at, m, count, k_count, False)
            scatter(out, to + (c - c_first) * plane, step, buffer, columns_at, ld, (height, width), y_shape,
                    (w_shape[1], w_shape[2]), stride, padding, images[1] - images[0], stop - c, rows)
    if not straight:
        for n in range(images[1] - images[0]):
            for c in range(c_last - c_first):
                start, end = to + n * step + c * plane, (images[0] + n) * image_step + (c_first + c) * plane
                source, target = out[start:start + plane], dx[end:end + plane]
                for i in range(plane):
                    write(target, i, source[i])


@parallel
def dgrad(dx: Any, dy: Any, dy_strides: Any, w: Any, onto: Any, onto_strides: Any, kept: bool, buffer: Any,
          x_shape: Any, w_shape: Any, y_shape: Any, stride: Any, padding: Any, groups: int, cuts: Any, workers: int,
          tasks: int) -> None:
    """dx = the convolution's gradient with respect to x, plus ``onto`` if that is not empty, or plus dx if ``kept``.
    The other arguments are as in ``fprop``."""
    share = buffer.size // workers
    for worker in numba.prange(workers):
        places = np.empty((PLACES, cuts[4]), np.int32)
        for task in range(worker, groups * tasks, workers):
            c, k = task // tasks * x_shape[1], task // tasks * w_shape[0]
            _dgrad_task(dx[c * x_shape[2] * x_shape[3]:], dy[k * dy_strides[1]:], dy_strides,
                        w[k * x_shape[1] * w_shape[1] * w_shape[2]:], onto[c * onto_strides[1]:], onto_strides, kept,
                        buffer, worker * share, places, x_shape, w_shape, y_shape, stride, padding, groups, cuts,
                        task % tasks)


@compiled
def _wgrad_task(dw: Any, dy: Any, dy_strides: Any, x: Any, x_strides: Any, buffer: Any, at: int, places: Any,
                x_shape: Any, w_shape: Any, y_shape: Any, stride: Any, padding: Any, cuts: Any, task: int) -> None:
    n_count, c_count, height, width = x_shape
    k_count, taps, area = w_shape[0], w_shape[1] * w_shape[2], y_shape[0] * y_shape[1]
    lane_count = lanes(buffer)
    panel = 3 * lane_count
    chunks = (c_count + cuts[2] - 1) // cuts[2]
    c, k = task % chunks * cuts[2], task // chunks * cuts[3]
    channels, block = (c, min(c + cuts[2], c_count)), min(cuts[3], k_count - k)
    m = (channels[1] - channels[0]) * taps
    ld = padded(block, lane_count)
    right_at = at + m * ld
    columns_at = right_at + (block + panel - 1) // panel * panel * cuts[4]
    for first in range(0, n_count * area, cuts[0]):
        last = min(first + cuts[0], n_count * area)
        count, image = last - first, first // area
        pitch = padded(count, lane_count)
        locate(places, (first, last), y_shape, (1, 1), (0, 0), dy_strides, lanes(buffer))
        transpose(buffer, right_at, panel, dy, dy_strides, y_shape, (k, k + block), places, image, count)
        locate(places, (first, last), y_shape, stride, padding, x_strides, lanes(buffer))
        pack(buffer, columns_at, pitch, x, x_strides, (height, width), (w_shape[1], w_shape[2]), channels, places,
             image, count)
        multiply(buffer, at, ld, buffer, columns_at, pitch, 1, buffer, right_at, m, block, count, first > 0)
    for i in range(block):
        to = ((k + i) * c_count + c) * taps
        for j in range(m):
            write(dw, to + j, buffer[at + j * ld + i])


@parallel
def wgrad(dw: Any, dy: Any, dy_strides: Any, x: Any, x_strides: Any, buffer: Any, x_shape: Any, w_shape: Any,
          y_shape: Any, stride: Any, padding: Any, groups: int, cuts: Any, workers: int, tasks: int) -> None:
    """dw = the gradient of the convolution with respect to w, over images and pixels; arguments as in ``fprop``."""
    share = buffer.size // workers
    for worker in numba.prange(workers):
        places = np.empty((PLACES, cuts[4]), np.int32)
        for task in range(worker, groups * tasks, workers):
            c, k = task // tasks * x_shape[1], task // tasks * w_shape[0]
            _wgrad_task(dw[k * x_shape[1] * w_shape[1] * w_shape[2]:], dy[k * dy_strides[1]:], dy_strides,
                        x[c * x_strides[1]:], x_strides, buffer, worker * share, places, x_shape, w_shape, y_shape,
                        stride, padding, cuts, task % tasks)
