"""Plans by integer programming, one stage per call: Checkmate, STR and MO-SOS."""

from minidl.policies.literature.ilp.policy import Checkmate, CheckmateRounded, OperatorSelection, SwapDominated

__all__ = ["Checkmate", "CheckmateRounded", "OperatorSelection", "SwapDominated"]
