"""Depthwise convolutions: cases, and formulas by a plain convolution whose weight is 0 off the diagonal of channels."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.support import formulas as ref
from bench.support.kernel_case import Case

WINDOWS = [  # kernel, stride, padding, dilation
    ((3, 3), (1, 1), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1), (1, 1)), ((5, 3), (1, 1), (2, 0), (1, 1)),
    ((2, 3), (3, 2), (0, 2), (2, 1)), ((1, 1), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 3), (3, 1), (3, 2)),
    ((2, 2), (1, 3), (1, 0), (1, 4)), ((1, 4), (5, 1), (0, 1), (1, 1)),
]
IMAGES = [(2, 3, 9, 8), (1, 1, 7, 9), (3, 5, 6, 10)]


def _spread(kernel: Any, dilation: Any) -> tuple[int, ...]:
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))


def _dense(w: Any, dilation: Any) -> Any:
    """Return the weight [C, C, R', S'] of a plain convolution, for w [C, 1, R, S]."""
    made = np.zeros((w.shape[0], w.shape[0], *_spread(w.shape[2:], dilation)))
    for c in range(w.shape[0]):
        made[c, c, ::dilation[0], ::dilation[1]] = w[c, 0]
    return made


def depthwise_ref(x: Any, w: Any, *, stride: Any, padding: Any, dilation: Any) -> Any:
    """Return the cross-correlation of each channel with its own window."""
    return ref.conv_ref(x, _dense(w, dilation), stride=stride, padding=padding)


def depthwise_dgrad_ref(dy: Any, w: Any, *, x_shape: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """Return the gradient with respect to the input."""
    return ref.dgrad_ref(dy, _dense(w, dilation), x_shape=x_shape, stride=stride, padding=padding)


def depthwise_wgrad_ref(dy: Any, x: Any, *, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """Return the gradient with respect to the weight."""
    dense = ref.wgrad_ref(dy, x, kernel=_spread(kernel, dilation), stride=stride, padding=padding)
    return np.stack([dense[c, c, ::dilation[0], ::dilation[1]] for c in range(x.shape[1])])[:, None]


def cases(block: int) -> Iterator[Case]:
    """Yield cases of depthwise convolutions and their gradients, at every kind of window, and a plane of many rows."""
    for image in (*IMAGES, (1, 2, 2 * block + 1, 3)):
        for kernel, stride, padding, dilation in WINDOWS:
            window = {"stride": stride, "padding": padding, "dilation": dilation}
            size = [(n + 2 * p - k) // t + 1 for n, p, k, t in zip(image[2:], padding, _spread(kernel, dilation),
                                                                   stride, strict=True)]
            if min(size) < 1:
                continue
            w, y = (image[1], 1, *kernel), (*image[:2], *size)
            yield Case("depthwise", (image, w), depthwise_ref, window)
            yield Case("depthwise_dgrad", (y, w), depthwise_dgrad_ref, {"x_shape": image, **window})
            yield Case("depthwise_wgrad", (y, image), depthwise_wgrad_ref, {"kernel": kernel, **window})
