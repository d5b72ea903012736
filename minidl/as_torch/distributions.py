"""``torch.distributions``: the classes Categorical and Normal."""

from math import log, pi

from minidl.errors import UserError
from minidl.ops.arithmetic import add, div, mul, sub
from minidl.ops.creation import multinomial, randn_like
from minidl.ops.elementwise import neg, scale, shift
from minidl.ops.elementwise import sum as sum_
from minidl.ops.functions import log_softmax
from minidl.ops.library import exp
from minidl.ops.library import log as natural_log
from minidl.ops.parts import squeeze, unsqueeze
from minidl.ops.ranking import gather
from minidl.tensor import Tensor


class Categorical:
    """A distribution over the classes of the last dimension, given by ``probs`` (divided by their sum) or ``logits``.
    Raises UserError if both are given, or neither."""

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None) -> None:
        if (probs is None) == (logits is None):
            raise UserError("Categorical takes probs or logits")
        if probs is not None:
            self.probs = div(probs, sum_(probs, -1, keepdim=True))
            self.logits = natural_log(self.probs)
        else:
            assert logits is not None
            self.logits = log_softmax(logits, -1)
            self.probs = exp(self.logits)

    def sample(self) -> Tensor:
        """Draw the number of a class from each distribution: int64, without the last dimension."""
        return squeeze(multinomial(self.probs, 1), -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of class ``value``, an integer for each distribution."""
        return squeeze(gather(self.logits, -1, unsqueeze(value, -1)), -1)

    def entropy(self) -> Tensor:
        """Return the entropy, -sum(p log p)."""
        return neg(sum_(mul(self.probs, self.logits), -1))


class Normal:
    """A normal distribution with mean ``loc`` and standard deviation ``scale``."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        self.loc, self.scale = loc, scale

    def rsample(self) -> Tensor:
        """Draw a sample through which gradients flow to the mean and the deviation."""
        return add(self.loc, mul(self.scale, randn_like(self.loc)))

    def sample(self) -> Tensor:
        """Draw a sample without a gradient."""
        return self.rsample().detach()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density at ``value``, element by element."""
        apart = div(sub(value, self.loc), self.scale)
        return sub(shift(scale(mul(apart, apart), -0.5), -0.5 * log(2 * pi)), natural_log(self.scale))

    def entropy(self) -> Tensor:
        """Return the entropy, (1 + log(2 pi)) / 2 + log(deviation)."""
        return shift(natural_log(self.scale), 0.5 + 0.5 * log(2 * pi))
