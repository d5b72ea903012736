"""Each elementwise formula once, as a plain function of numbers.

Devices compile these functions into their kernels: Numba compiles them unchanged, for the CPU and for CUDA. So they use
only comparisons, + - * /, square roots, integers, and each other. Called from Python they compute in double precision,
or in the type of their NumPy arguments.

Literals are exact in float32 and have that type, because a Python number would turn all arithmetic into float64;
``typed`` converts constants that have to be rounded. Conditions are written so that NaN passes through.

The transcendental functions (``exp`` to ``normal_below``) are those of ``math``. For float32 a device may instead use
the polynomials at the end (``FLOAT32``): they have no branches and no calls, so loops over them become vector
instructions.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Number = Any  # a float of either precision, or an integer

ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
ROOT_HALF = 0.5**0.5
DENSITY = (2.0 * math.pi)**-0.5  # of the normal distribution at 0
GELU_FACTOR, GELU_CUBIC = (2.0 / math.pi)**0.5, 0.044715


def typed(value: float, like: Number) -> Number:
    """Return a constant in the type of ``like``. Devices compile it as a conversion."""
    return type(like)(value)


# Transcendental functions -------------------------------------------------------------------------------------------
def exp(x: Number) -> Number:
    """Return e to the power of x."""
    return math.exp(x)


def exp_below(x: Number) -> Number:
    """Return e to the power of x, for x <= 0 only, where it cannot overflow."""
    return math.exp(x)


def tanh(x: Number) -> Number:
    """Return the hyperbolic tangent of x."""
    return math.tanh(x)


def bell(x: Number) -> Number:
    """Return exp(-x^2 / 2), the bell curve."""
    return math.exp(-0.5 * x * x)


def normal_below(x: Number) -> Number:
    """Return the probability that a standard normal number is below x; accurate where it is near 0, unlike 1 + erf."""
    return 0.5 * math.erfc(-ROOT_HALF * x)


# Arithmetic ---------------------------------------------------------------------------------------------------------
def add(a: Number, b: Number) -> Number:
    """Return a + b."""
    return a + b


def sub(a: Number, b: Number) -> Number:
    """Return a - b."""
    return a - b


def mul(a: Number, b: Number) -> Number:
    """Return a * b."""
    return a * b


def div(a: Number, b: Number) -> Number:
    """Return a / b."""
    return a / b


def neg(x: Number) -> Number:
    """Return -x."""
    return -x


def sqrt(x: Number) -> Number:
    """Return the square root of x."""
    return math.sqrt(x)


def sqrt_grad(dy: Number, y: Number) -> Number:
    """Return dy / (2 * y), the gradient of y = sqrt(x)."""
    return HALF * dy / y


# Activations, and their gradients in terms of what they save --------------------------------------------------------
def relu(x: Number) -> Number:
    """Return max(x, 0); NaN stays NaN."""
    return typed(0, x) if x <= ZERO else x


def add_relu(a: Number, b: Number) -> Number:
    """Return max(a + b, 0); NaN stays NaN."""
    return relu(a + b)


def relu_grad(dy: Number, y: Number) -> Number:
    """Return 0 where y <= 0, else dy, also for a y of NaN: the gradient of ReLU. No product, since 0 * inf is NaN."""
    return typed(0, dy) if y <= ZERO else dy


def tanh_grad(dy: Number, y: Number) -> Number:
    """Return dy * (1 - y^2), the gradient of y = tanh(x)."""
    return dy * (ONE - y * y)


def sigmoid(x: Number) -> Number:
    """Return 1 / (1 + exp(-x)); if exp overflows to infinity the quotient is 0, as it should be."""
    return ONE / (ONE + exp(-x))


def sigmoid_grad(dy: Number, y: Number) -> Number:
    """Return dy * y * (1 - y), the gradient of y = sigmoid(x)."""
    return dy * ((ONE - y) * y)


def silu(x: Number) -> Number:
    """Return x / (1 + exp(-x))."""
    return x * sigmoid(x)


def silu_grad(dy: Number, x: Number) -> Number:
    """Return dy * s * (1 + x * (1 - s)), with s = sigmoid(x): the gradient of SiLU."""
    s = sigmoid(x)
    return dy * (s * (ONE + x * (ONE - s)))


def gelu(x: Number) -> Number:
    """Return x * P(x), P(x) the probability that a standard normal number is below x (Hendrycks & Gimpel 2016)."""
    return x * normal_below(x)


def gelu_grad(dy: Number, x: Number) -> Number:
    """Return dy * (P(x) + x * p(x)), the gradient of ``gelu``; p is the density of the normal distribution P."""
    return dy * (normal_below(x) + x * (typed(DENSITY, x) * bell(x)))


def _gelu_inner(x: Number) -> Number:
    """Return tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))."""
    return tanh(typed(GELU_FACTOR, x) * x * (ONE + typed(GELU_CUBIC, x) * x * x))


def gelu_tanh(x: Number) -> Number:
    """Return x * (1 + tanh(u)) / 2, with u = sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    return HALF * x * (ONE + _gelu_inner(x))


def gelu_tanh_grad(dy: Number, x: Number) -> Number:
    """Return dy * (1 + t + x * (1 - t^2) * u') / 2, the gradient of ``gelu_tanh``, with t = tanh(u), u as there."""
    t = _gelu_inner(x)
    slope = typed(GELU_FACTOR, x) * (ONE + typed(3 * GELU_CUBIC, x) * x * x)
    return HALF * dy * ((ONE + t) + x * (ONE - t * t) * slope)


# Dropout ------------------------------------------------------------------------------------------------------------
def dropout(x: Number, bits: int, threshold: int, keep_scale: Number) -> Number:
    """Return x * keep_scale if ``bits``, 32 random bits, are at least ``threshold`` = p * 2^32, else 0."""
    return x * keep_scale if bits >= threshold else typed(0, x)


# Optimizer steps of one element: what is written, the parameter first -----------------------------------------------
def sgd(p: Number, g: Number, lr: Number, weight_decay: Number) -> Number:
    """Return p - lr * (g + weight_decay * p)."""
    return p - lr * (g + weight_decay * p)


def sgd_momentum(p: Number, velocity: Number, g: Number, lr: Number, momentum: Number,
                 weight_decay: Number) -> tuple[Number, Number]:
    """Return (p - lr * v, v), with v = momentum * velocity + g + weight_decay * p."""
    velocity = momentum * velocity + (g + weight_decay * p)
    return p - lr * velocity, velocity


def adam(p: Number, m: Number, v: Number, g: Number, step_size: Number, beta1: Number, rest1: Number, beta2: Number,
         rest2: Number, eps: Number, correction: Number, l2: Number, shrink: Number) -> tuple[Number, Number, Number]:
    """Return the new (p, m, v) of Adam (Kingma & Ba 2015, algorithm 1), with two numbers for its bias corrections.

    step_size   lr / (1 - beta1^t);  correction: sqrt(1 - beta2^t)
    rest        1 - beta, computed in float64: from a rounded beta near 1 its sixth digit would be wrong
    l2, shrink  weight decay added to the gradient; 1 - lr weight_decay as a factor of p (AdamW). One of them is unused.
    """
    p = shrink * p
    g = g + l2 * p
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * (g * g)
    return p - step_size * (m / (math.sqrt(v) / correction + eps)), m, v


def adadelta(p: Number, v: Number, u: Number, g: Number, lr: Number, rho: Number, rest: Number, eps: Number,
             weight_decay: Number) -> tuple[Number, Number, Number]:
    """Return Adadelta's new (p, v, u) (Zeiler 2012); v, u: mean squares of gradients and of steps. rest: 1 - rho."""
    g = g + weight_decay * p
    v = rho * v + rest * (g * g)
    step = math.sqrt(u + eps) / math.sqrt(v + eps) * g
    return p - lr * step, v, rho * u + rest * (step * step)


# float32 without branches and calls; errors are in units in the last place, measured over the whole range by the tests
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693145751953125)  # 15 bits: its products with all exponents are exact
_LN2_LOW = np.float32(1.42860682030941723212e-6)
_ROUND = np.float32(1.5 * 2**23)  # added, it leaves the nearest integer in the lowest bits
_ROUND_BITS = np.int32(0x4B400000)
_POWER_OF_MINUS_64 = np.float32(2.0**-64)


def _power_of_two(n: Number) -> Number:
    """Return 2^n for -127 < n < 128."""
    return np.int32((n + 127) << 23).view(np.float32)


def _exp_parts(x: Number, tail: Number) -> tuple[Number, Number]:
    """Return (p, n), p in [0.7, 1.5], with exp(x + tail) = p 2^n, for x in [-104, 89] (or NaN) and a tail near 0.

    n = round(x / ln 2), r = x - n ln 2 + tail in [-0.37, 0.37], exp(r) by the polynomial of Cephes' expf.
    """
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = ((x - n * _LN2_HIGH) - n * _LN2_LOW) + tail
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = (p * r + np.float32(8.3334519073e-3)) * r + np.float32(4.1665795894e-2)
    p = (p * r + np.float32(1.6666665459e-1)) * r + np.float32(5.0000001201e-1)
    return p * (r * r) + r + ONE, np.int32(np.float32(shifted).view(np.int32) - _ROUND_BITS)


def _exp_of_sum(x: Number, tail: Number) -> Number:
    """Return exp(x + tail) for a tail near 0; 2^n is two factors, so that subnormal results are rounded once."""
    p, n = _exp_parts(x, tail)
    return p * _power_of_two(np.int32(n >> 1)) * _power_of_two(np.int32(n - np.int32(n >> 1)))


def exp32(x: Number) -> Number:
    """Return exp(x) in float32 within 1.1 units in the last place, also for infinities, NaN and subnormal results."""
    x = np.float32(89) if x > np.float32(89) else x
    x = np.float32(-104) if x < np.float32(-104) else x
    return _exp_of_sum(x, ZERO)


def exp32_below(x: Number) -> Number:
    """Return ``exp32(x)``, with the same bits, for x <= 0 (or NaN) only, by fewer operations."""
    p, n = _exp_parts(np.float32(-104) if x < np.float32(-104) else x, ZERO)
    return p * _power_of_two(np.int32(n + 64)) * _POWER_OF_MINUS_64


def tanh32(x: Number) -> Number:
    """Return tanh(x) within 1.5 units in the last place: a polynomial (Cephes' tanhf) for |x| < 0.625, exp above."""
    size = abs(x)
    s = x * x
    p = np.float32(-5.70498872745e-3)
    p = p * s + np.float32(2.06390887954e-2)
    p = p * s + np.float32(-5.37397155531e-2)
    p = p * s + np.float32(1.33314422036e-1)
    p = p * s + np.float32(-3.33332819422e-1)
    near = x * (ONE + s * p)
    clamped = np.float32(10) if size > np.float32(10) else size
    far = ONE - TWO / (_exp_of_sum(TWO * clamped, ZERO) + ONE)
    far = -far if x < ZERO else far
    return near if size < np.float32(0.625) else far


def bell32(x: Number) -> Number:
    """Return exp(-x^2 / 2) within 1.3 units in the last place; x^2 is split in two, so that it is not rounded."""
    x = np.float32(15) if x > np.float32(15) else x
    x = np.float32(-15) if x < np.float32(-15) else x
    high = np.int32(np.float32(x).view(np.int32) & -4096).view(np.float32)  # 12 bits, so that its square is exact
    return _exp_of_sum(-HALF * (high * high), -HALF * ((x - high) * (x + high)))


def normal_below32(x: Number) -> Number:
    """Return the probability P(x) that a normal number is below x, within 6 units in the last place.

    P(-t) = exp(-t^2 / 2) Q(t), and Q(t) (t + 4) is a polynomial in w = (t - 4) / (t + 4) for 0 <= t <= 15: fitted to
    erfcx(t / sqrt 2) / 2 with a relative error of 1e-8.
    """
    t = abs(x)
    t = np.float32(15) if t > np.float32(15) else t
    share = ONE / (t + np.float32(4))
    w = (t - np.float32(4)) * share
    q = np.float32(-0.00013661528646480292) * w + np.float32(0.0001704266032902524)
    q = (q * w + np.float32(0.001568485633470118)) * w + np.float32(-0.0035071736201643944)
    q = (q * w + np.float32(-0.007523388601839542)) * w + np.float32(0.0604027658700943)
    q = (q * w + np.float32(-0.18652379512786865)) * w + np.float32(0.38713696599006653)
    q = (q * w + np.float32(-0.6078965663909912)) * w + np.float32(0.7552851438522339)
    below = bell32(x) * (q * share)
    return ONE - below if x > ZERO else below


# What a device may compute instead if the argument is a float32.
FLOAT32: dict[Callable[..., Any], Callable[..., Any]] = {exp: exp32, exp_below: exp32_below, tanh: tanh32, bell: bell32,
                                                         normal_below: normal_below32}
