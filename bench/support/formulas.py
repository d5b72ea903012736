"""The formula of each operation, in plain NumPy and float64: one for each kernel. Knows no operation and no device.

Names are those of the operations; a gradient's operands come in the order in which its kernel has them.
"""

from math import erf
from typing import Any

import numpy as np

from minidl.kernels.random import fold_seed, random_bits


def patches(x: Any, kernel: Any, stride: Any, padding: Any, fill: Any = 0.0) -> Any:
    """Return the windows of x, [N, C, P, Q, R, S]: R x S elements of each channel for each output position P, Q."""
    ph, pw = padding
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))
    return windows[:, :, ::stride[0], ::stride[1]]


def unpatch(d_patches: Any, shape: Any, stride: Any, padding: Any) -> Any:
    """Return the gradient of ``patches`` with respect to x: each window's gradient is added where the window lies."""
    n, c, p, q, r, s = d_patches.shape
    padded = np.zeros((n, c, shape[2] + 2 * padding[0], shape[3] + 2 * padding[1]))
    for i in range(p):
        for j in range(q):
            padded[:, :, i * stride[0]:i * stride[0] + r, j * stride[1]:j * stride[1] + s] += d_patches[:, :, i, j]
    return padded[:, :, padding[0]:padding[0] + shape[2], padding[1]:padding[1] + shape[3]]


def conv_ref(x: Any, w: Any, b: Any = None, *, stride: Any, padding: Any, groups: int = 1) -> Any:
    """The sum over each window of x times w, and the bias: [N, K, P, Q]."""
    y = np.concatenate([np.einsum("ncpqrs,kcrs->nkpq", patches(part, w.shape[2:], stride, padding), weights)
                        for part, weights in zip(np.split(x, groups, 1), np.split(w, groups), strict=True)], 1)
    return y if b is None else y + b[:, None, None]


def conv_relu_ref(x: Any, w: Any, b: Any = None, *, stride: Any, padding: Any, groups: int = 1) -> Any:
    """A convolution followed by ReLU."""
    return np.maximum(conv_ref(x, w, b, stride=stride, padding=padding, groups=groups), 0)


def dgrad_ref(dy: Any, w: Any, onto: Any = 0.0, *, x_shape: Any, stride: Any, padding: Any, groups: int = 1) -> Any:
    """Return a convolution's gradient with respect to its input, added to ``onto``."""
    shape = (x_shape[0], x_shape[1] // groups, *x_shape[2:])
    return onto + np.concatenate([
        unpatch(np.einsum("nkpq,kcrs->ncpqrs", part, weights), shape, stride, padding)
        for part, weights in zip(np.split(dy, groups, 1), np.split(w, groups), strict=True)], 1)


def wgrad_ref(dy: Any, x: Any, *, kernel: Any, stride: Any, padding: Any, groups: int = 1) -> Any:
    """Return a convolution's gradient with respect to its weight."""
    return np.concatenate([np.einsum("nkpq,ncpqrs->kcrs", of_y, patches(of_x, kernel, stride, padding)[
        :, :, :dy.shape[2], :dy.shape[3]])
        for of_y, of_x in zip(np.split(dy, groups, 1), np.split(x, groups, 1), strict=True)])


def max_ref(x: Any, *, kernel: Any, stride: Any, padding: Any) -> Any:
    """The largest value of each window, and its place in the window."""
    flat = patches(x, kernel, stride, padding, -np.inf)
    flat = flat.reshape(*flat.shape[:4], -1)
    return flat.max(-1), flat.argmax(-1)


def max_grad_ref(dy: Any, index: Any, *, x_shape: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    """Return max pooling's gradient: each element of dy is added at the place that the window's maximum came from."""
    onehot = index[..., None] == np.arange(kernel[0] * kernel[1])
    return unpatch((dy[..., None] * onehot).reshape(*dy.shape, *kernel), x_shape, stride, padding)


def avg_grad_ref(dy: Any, *, x_shape: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    """Return average pooling's gradient: each element of dy is spread evenly over its window."""
    share = np.broadcast_to(dy[..., None, None] / (kernel[0] * kernel[1]), (*dy.shape, *kernel))
    return unpatch(share, x_shape, stride, padding)


def adaptive_matrix(size: Any, out: Any) -> Any:
    """Return weights [out, size]: the share of each input in each output of adaptive average pooling in one dimension.
    """
    m = np.zeros((out, size))
    for i in range(out):
        start, stop = int(np.floor(i * size / out)), int(np.ceil((i + 1) * size / out))
        m[i, start:stop] = 1 / (stop - start)
    return m


def adaptive_ref(x: Any, *, size: Any) -> Any:
    """Return adaptive average pooling to ``size``."""
    return np.einsum("ph,nchw,qw->ncpq", adaptive_matrix(x.shape[2], size[0]), x, adaptive_matrix(x.shape[3], size[1]))


def adaptive_grad_ref(dy: Any, *, x_shape: Any) -> Any:
    """Return the gradient of adaptive average pooling with respect to its input."""
    return np.einsum("ph,ncpq,qw->nchw", adaptive_matrix(x_shape[2], dy.shape[2]), dy,
                     adaptive_matrix(x_shape[3], dy.shape[3]))


def sum_ref(x: Any, *, shape: Any) -> Any:
    """Return the sum of x over the dimensions in which ``shape`` is 1 or that it lacks."""
    wide = (1,) * (x.ndim - len(shape)) + shape
    return x.sum(axis=tuple(i for i, n in enumerate(wide) if n == 1), keepdims=True).reshape(shape)


def spread(v: Any, x: Any) -> Any:
    """Reshape a vector with one value a channel so that it broadcasts against x."""
    return v.reshape(-1, *(1,) * (x.ndim - 2))


def normed(x: Any, mean: Any, var: Any, eps: Any) -> Any:
    """Return x minus its channel's mean, divided by its channel's standard deviation."""
    return (x - spread(mean, x)) / np.sqrt(spread(var, x) + eps)


def other_axes(x: Any) -> Any:
    """Return all dimensions of x except that of the channels."""
    return (0, *range(2, x.ndim))


def bn_merge_ref(mean: Any, var: Any, other_mean: Any, other_var: Any, *, count: Any, other: Any) -> Any:
    """Return mean and variance of all values from those of two parts, by the means of their squares."""
    share = other / (count + other)
    merged = mean * (1 - share) + other_mean * share
    squares = (var + mean**2) * (1 - share) + (other_var + other_mean**2) * share
    return merged, squares - merged**2


def bn_grad_ref(dy: Any, x: Any, gamma: Any, mean: Any, var: Any, dgamma: Any, dbeta: Any, *, eps: Any,
                training: Any) -> Any:
    """Return batch norm's gradient with respect to its input, from the sums dgamma and dbeta."""
    m = x.size // x.shape[1]
    if training:
        dy = dy - spread(dbeta, x) / m - normed(x, mean, var, eps) * spread(dgamma, x) / m
    return dy * spread(gamma / np.sqrt(var + eps), x)


def line_ref(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: Any) -> Any:
    """Return batch norm's result: for each channel a linear function of x."""
    return normed(x, mean, var, eps) * spread(gamma, x) + spread(beta, x)


def bn_relu_reduce_ref(dy: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, *, eps: Any) -> Any:
    """Return the gradients of gamma and beta of a batch norm that a ReLU follows."""
    dy = dy * (line_ref(x, gamma, beta, mean, var, eps) > 0)
    return (dy * normed(x, mean, var, eps)).sum(other_axes(x)), dy.sum(other_axes(x))


def bn_relu_grad_ref(dy: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, dgamma: Any, dbeta: Any, *,
                     eps: Any, training: Any) -> Any:
    """Return the gradient with respect to the input of a batch norm that a ReLU follows."""
    dy = dy * (line_ref(x, gamma, beta, mean, var, eps) > 0)
    return bn_grad_ref(dy, x, gamma, mean, var, dgamma, dbeta, eps=eps, training=training)


def layer_ref(x: Any, gamma: Any, beta: Any, *, eps: Any) -> Any:
    """Return layer norm over the last dimension, each row's mean, and 1 / standard deviation of each row."""
    mean, rstd = x.mean(-1), 1 / np.sqrt(x.var(-1) + eps)
    return (x - mean[..., None]) * rstd[..., None] * gamma + beta, mean, rstd


def layer_reduce_ref(dy: Any, x: Any, mean: Any, rstd: Any) -> Any:
    """Return the gradients of layer norm's gamma and beta."""
    rows = tuple(range(x.ndim - 1))
    return (dy * (x - mean[..., None]) * rstd[..., None]).sum(rows), dy.sum(rows)


def layer_grad_ref(dy: Any, x: Any, gamma: Any, mean: Any, rstd: Any) -> Any:
    """Return layer norm's gradient with respect to its input."""
    xhat, g = (x - mean[..., None]) * rstd[..., None], dy * gamma
    return (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)) * rstd[..., None]


def softmax_ref(x: Any, mask: Any = 0.0) -> Any:
    """Return the softmax of x + mask over the last dimension."""
    return np.exp(x + mask) / np.exp(x + mask).sum(-1, keepdims=True)


def by_heads(x: Any, heads: Any) -> Any:
    """Reshape [N, L, heads D] to [N, heads, L, D]."""
    n, length, width = x.shape
    return x.reshape(n, length, heads, width // heads).swapaxes(1, 2)


def side_by_side(x: Any) -> Any:
    """Reshape [N, heads, L, D] to [N, L, heads D]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def scores_ref(q: Any, k: Any, mask: Any, heads: Any, causal: Any) -> Any:
    """Return the scores [N, heads, L, S] of which attention takes the softmax."""
    scores = by_heads(q, heads) @ np.swapaxes(by_heads(k, heads), 2, 3) / (q.shape[2] // heads)**0.5 + mask
    return np.where(np.tril(np.ones(scores.shape[2:])), scores, -np.inf) if causal else scores


def attention_ref(q: Any, k: Any, v: Any, mask: Any = 0.0, *, heads: Any, causal: Any, p: Any, seed: Any) -> Any:
    """Return scaled dot-product attention, and the logarithm of each row's sum of exponentials."""
    scores = scores_ref(q, k, mask, heads, causal)
    top = scores.max(-1)
    lse = top + np.log(np.exp(scores - top[..., None]).sum(-1))
    probabilities = dropout_ref(np.exp(scores - lse[..., None]), p=p, seed=seed)
    return side_by_side(probabilities @ by_heads(v, heads)), lse


def attention_grad_ref(dy: Any, q: Any, k: Any, v: Any, y: Any, lse: Any, mask: Any = 0.0, *, heads: Any,
                       causal: Any, p: Any, seed: Any) -> Any:
    """Return attention's gradients with respect to q, k and v."""
    probabilities = np.exp(scores_ref(q, k, mask, heads, causal) - lse[..., None])
    dy, q, k, v, y = (by_heads(x, heads) for x in (dy, q, k, v, y))
    dv = np.swapaxes(dropout_ref(probabilities, p=p, seed=seed), 2, 3) @ dy
    slopes = dropout_ref(dy @ np.swapaxes(v, 2, 3), p=p, seed=seed) - (dy * y).sum(-1, keepdims=True)
    slopes = probabilities * slopes / q.shape[3]**0.5
    return tuple(map(side_by_side, (slopes @ k, np.swapaxes(slopes, 2, 3) @ q, dv)))


def gelu_ref(x: Any) -> Any:
    """Return GELU, computed with the error function."""
    return x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2


def gelu_grad_ref(dy: Any, x: Any) -> Any:
    """Return the gradient of GELU, computed with the error function."""
    return dy * ((1 + np.vectorize(erf)(x / 2**0.5)) / 2 + x * np.exp(-x * x / 2) / (2 * np.pi)**0.5)


def gelu_tanh_ref(x: Any) -> Any:
    """Return GELU, approximated with tanh."""
    return x * (1 + np.tanh((2 / np.pi)**0.5 * (x + 0.044715 * x**3))) / 2


def gelu_tanh_grad_ref(dy: Any, x: Any) -> Any:
    """Return the gradient of GELU's approximation with tanh."""
    inner = np.tanh((2 / np.pi)**0.5 * (x + 0.044715 * x**3))
    return dy * (1 + inner + x * (1 - inner**2) * (2 / np.pi)**0.5 * (1 + 3 * 0.044715 * x * x)) / 2


def embedding_grad_ref(dy: Any, ids: Any, *, rows: Any) -> Any:
    """Return an embedding's gradient [rows, D]: for each row the sum of dy over the positions whose id it is."""
    return np.einsum("ir,id->rd", np.eye(rows)[ids.reshape(-1)], dy.reshape(-1, dy.shape[-1]))


def gather_ref(x: Any, positions: Any) -> Any:
    """Return the rows of each sequence at its ``positions``, one below the other."""
    return np.take_along_axis(x, positions[..., None], 1).reshape(-1, x.shape[2])


def gather_grad_ref(dy: Any, positions: Any, *, x_shape: Any) -> Any:
    """Return the gradient of ``gather_ref`` with respect to x."""
    n, p = positions.shape
    return np.einsum("npl,npd->nld", np.eye(x_shape[1])[positions], dy.reshape(n, p, -1))


def label_share_ref(value: Any, part: Any, labels: Any) -> Any:
    """Return the value times the share of the labels that are not ignored which lies in ``part``."""
    return value * ((part != -100).sum() / (labels != -100).sum())


def cross_entropy_ref(logits: Any, labels: Any) -> Any:
    """Return the mean loss over the labels that are not ignored, and softmax minus 1 at the label."""
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    counted = np.flatnonzero(labels != -100)
    loss = -np.mean(np.log(p[counted, labels[counted]]))
    p[counted, labels[counted]] -= 1
    return loss, p


def cross_entropy_grad_ref(dloss: Any, residual: Any, labels: Any) -> Any:
    """Return the gradient of the mean loss with respect to the logits; zero where the label is ignored."""
    counted = (labels != -100)[:, None]
    return residual * counted * dloss / counted.sum()


def dropout_ref(x: Any, *, p: Any, seed: Any, start: Any = 0) -> Any:
    """Return x / (1 - p) where the random bits of the seed keep an element, else 0. start: the first element's number.
    """
    positions = (np.arange(x.size, dtype=np.uint64) + np.uint64(start)).astype(np.uint32)
    kept = (random_bits(fold_seed(seed), positions) >= p * 2**32).reshape(x.shape)
    return np.where(kept, x / (1 - p), 0)


def sgd_ref(p: Any, g: Any, *, lr: Any, weight_decay: Any) -> Any:
    """Return a parameter after one step of SGD."""
    return (p - lr * (g + weight_decay * p),)


def momentum_ref(p: Any, buf: Any, g: Any, *, lr: Any, momentum: Any, weight_decay: Any, first: Any = False) -> Any:
    """Return a parameter and its momentum after one step of SGD."""
    buf = g + weight_decay * p + (0 if first else momentum * buf)
    return p - lr * buf, buf


def adam_ref(p: Any, m: Any, v: Any, g: Any, *, lr: Any, beta1: Any, beta2: Any, eps: Any, weight_decay: Any,
             step: Any, decoupled: Any = False) -> Any:
    """Return a parameter and its two moments after one step of Adam, or of AdamW if ``decoupled``."""
    if decoupled:
        p = p - lr * weight_decay * p
    else:
        g = g + weight_decay * p
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return p - lr * (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps), m, v


def by_tensor(ref: Any, groups: Any) -> Any:
    """Make of a formula for one parameter a formula for groups of tensors, one result group for each output."""
    def apply(*tensors: Any, **attrs: Any) -> Any:
        n = len(tensors) // groups
        results = [ref(*tensors[i::n], **attrs) for i in range(n)]
        return [r[k] for k in range(groups - 1) for r in results]
    return apply
