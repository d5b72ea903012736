"""No memory management: what does not fit is an error at the first failure."""

from collections.abc import Sequence

from minidl.plan.plan import Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency


class NoPolicy(OnDemand):
    """Evicts nothing: bytes are freed only after their last use (the paper's TF-ori)."""

    name = "none"
    moves_tensors = False

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Nothing."""
        return ()
