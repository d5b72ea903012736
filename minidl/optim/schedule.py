"""Learning rates by step: a warm-up, then one of a few shapes.

With W steps of warm-up out of N, and t the step from 0:
    warm-up    peak (t + 1) / (W + 1)                              for t < W
    constant   peak
    linear     peak (N - t) / (N - W)
    cosine     peak (1 + cos(pi (t - W) / (N - W))) / 2            Loshchilov & Hutter 2017, SGDR, equation 5
    step       peak rate^floor((t - W) / every)

None of the N steps has a rate of 0: the warm-up starts above 0, and the rate would reach 0 only after the last step.
"""

from dataclasses import dataclass
from math import cos, pi

from minidl.errors import UserError

SHAPES = ("constant", "linear", "cosine", "step")
ENDING_SHAPES = ("linear", "cosine")  # their rates depend on how many steps there are


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning-rate schedule: ``schedule(step)`` returns the rate of a step, counted from 0.

    peak           learning rate after the warm-up
    shape          one of SHAPES
    warmup_steps   number of warm-up steps
    total_steps    for linear and cosine: the steps with the warm-up; later steps have the rate 0
    every, rate    for the shape "step": after the warm-up the rate is multiplied by ``rate`` every ``every`` steps

    Raises UserError for an unknown shape, a negative warm-up, ``every`` below 1, or no step left for linear or cosine.
    """

    peak: float
    shape: str = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    every: int = 1
    rate: float = 0.1

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UserError(f"there is no schedule {self.shape!r}; there are {', '.join(SHAPES)}")
        if self.warmup_steps < 0 or self.every < 1:
            raise UserError(f"a schedule cannot have {self.warmup_steps} steps of warm-up and decay every {self.every}")
        if self.shape in ENDING_SHAPES and (self.total_steps is None or self.total_steps <= self.warmup_steps):
            raise UserError(f"a {self.shape} schedule of {self.total_steps} steps leaves none after "
                            f"{self.warmup_steps} of warm-up")

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step. Raises UserError if it overflows."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / (self.warmup_steps + 1)
        after = step - self.warmup_steps
        if self.shape == "constant":
            return self.peak
        if self.shape == "step":
            try:
                return self.peak * self.rate ** (after // self.every)
            except OverflowError:
                raise UserError(f"the learning rate of step {step} overflows: {self.peak} x {self.rate} to the power "
                                f"of {after // self.every}") from None
        assert self.total_steps is not None
        part = min(1.0, after / (self.total_steps - self.warmup_steps))
        return self.peak * (1.0 - part if self.shape == "linear" else 0.5 * (1.0 + cos(pi * part)))
