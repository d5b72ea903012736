"""The device of dry runs: shapes alone, with the choices of another device."""

from collections.abc import Sequence
from typing import Any

from minidl.device.clock import Timed
from minidl.device.contract import Device, Operand
from minidl.device.sim import SimDevice
from minidl.meta import Algorithm, Cost, DType, Meta


class DryDevice(SimDevice):
    """A device for dry runs: no values, and launches take no time. It asks ``device`` for every choice about a call."""

    def __init__(self, device: Device, *, timed: bool = True) -> None:
        super().__init__(f"dry {device.name}", device.profile)
        self._device = device
        self.updates_on_host = device.updates_on_host
        self._algorithms = device.algorithms if timed else device.untimed_algorithms

    def simulated_twin(self) -> Device | None:
        """Return the simulated twin of the wrapped device."""
        return self._device.simulated_twin()

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms of the wrapped device."""
        return self._algorithms(op_name, inputs, outputs, attrs, cost)

    def usable_bytes(self, budget_bytes: int) -> int:
        """Return the usable bytes of the wrapped device."""
        return self._device.usable_bytes(budget_bytes)

    def lay_out(self, op_name: str, inputs: tuple[Meta, ...], outputs: tuple[Meta, ...]) -> tuple[Meta, ...]:
        """Return the memory format that the wrapped device chooses."""
        return self._device.lay_out(op_name, inputs, outputs)

    def lay_out_leaf(self, leaf: Meta) -> Meta:
        """Return the memory format that the wrapped device chooses."""
        return self._device.lay_out_leaf(leaf)

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Return the choice of the wrapped device."""
        return self._device.fuses_attention(q, k, mask, heads=heads, causal=causal, p=p)

    def composes_attention_in(self, dtype: DType) -> DType:
        """Return the choice of the wrapped device."""
        return self._device.composes_attention_in(dtype)

    def fuses_recurrence(self, x: Meta) -> bool:
        """Return the choice of the wrapped device."""
        return self._device.fuses_recurrence(x)

    def fuses_depthwise(self, x: Meta) -> bool:
        """Return the choice of the wrapped device."""
        return self._device.fuses_depthwise(x)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Do nothing and take no time; return 0, a position that no stream has to wait for."""
        return 0
