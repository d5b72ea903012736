"""The policy ``none``, without memory management: the first allocation that fails raises OutOfMemory."""

from collections.abc import Sequence

from minidl.plan.plan import Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency


class NoPolicy(OnDemand):
    """Evicts nothing: bytes are freed only after their last use (the original TensorFlow in the paper, TF-ori)."""

    name = "none"
    moves_tensors = False

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return no victims."""
        return ()
