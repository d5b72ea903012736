"""vDNN: the inputs of layers leave for the host, coupled with computation (Rhu et al., MICRO 2016); and vDNN++.

    forward    the input X of a layer is copied out while the layer computes, if no later layer reads it; both are
               waited for at the layer's end, and X is freed.
    backward   beside a layer's gradient the X of the nearest earlier layer that is not back yet is copied in; the
               search ends at the first convolution. Both are waited for at the layer's end.
    memory     a layer's X, Y and their gradients have bytes of their own, where minidl would write one over another.

Of a layer whose X other layers read, too, the copy starts when the last of them has run. The X of the last layer stays.
Convolutions take the fastest algorithm whose workspace is free, so vDNN's choice of algorithms has nothing left to do:
``vdnn-dyn`` takes the first of "none", "conv" and "all" that fits. ``vdnn-join`` is a reading for networks with
shortcuts, which its authors had none of (docs/reproduction/table2.md). vDNN++ (Shriram et al., "Dynamic Memory
Management for GPU-based training of Deep Neural Networks", IPDPS 2019) waits for no copy at a layer's end; its
compression on the host is left out.
"""

from __future__ import annotations

from minidl.errors import Unsuitable
from minidl.meta import aligned
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, AccessKey, Action, Plan
from minidl.plan.trace import TensorId
from minidl.policies.literature.network import ACTIVATIONS, CONVOLUTIONS, JOINS, LOSSES, PRODUCTS, FeatureMap, Network
from minidl.policies.literature.static import Static, outcome_of
from minidl.policies.literature.swapping import beside_gradients


class VdnnAll(Static):
    """Offload the inputs of all layers but activations, fully connected ones and the loss."""

    name = "vdnn-all"
    waits = True

    def offloads(self, op: str) -> bool:
        """True if the input of a layer is offloaded."""
        return op not in (*ACTIVATIONS, *PRODUCTS, *LOSSES)

    def takes(self, network: Network, m: FeatureMap) -> bool:
        """True if a map is offloaded: a layer reads it whose input is."""
        return any(self.offloads(network.op(k)) for k in m.readers)

    def choose(self, network: Network, costs: Costs, limits: Limits) -> Plan:
        """Raises Unsuitable where there is no convolution: vDNN was made for convolutional networks."""
        if not any(network.convolutions):
            raise Unsuitable(f"policy {self.name!r} offloads the feature maps of convolutional networks; none of this "
                             f"one's {len(network.trace.calls)} calls is a convolution")
        layer_bytes = largest_layer(network)
        if layer_bytes > limits.device_bytes:
            raise Unsuitable(f"policy {self.name!r} cannot run this in {format_bytes(limits.device_bytes)}: its "
                             f"largest layer needs {format_bytes(layer_bytes)} for X, Y and their gradients, beside "
                             "parameters")
        chosen = [m for m in network.maps[:-1] if self.takes(network, m)]
        evictions, waits = _offloading(network, chosen)
        prefetches, joins = beside_gradients(network, chosen)
        return Plan(evictions, prefetches, waits=frozenset((*waits, *joins)) if self.waits else frozenset())


class VdnnConv(VdnnAll):
    """Offload the inputs of convolutions."""

    name = "vdnn-conv"

    def offloads(self, op: str) -> bool:
        """True if it is a convolution."""
        return op in CONVOLUTIONS


class VdnnJoin(VdnnConv):
    """Offload the inputs of convolutions, and what is joined with one of them: a branch beside its shortcut."""

    name = "vdnn-join"

    def takes(self, network: Network, m: FeatureMap) -> bool:
        """True if a convolution reads it, or a join that reads what a convolution reads, too."""
        return super().takes(network, m) or any(
            network.op(k) in JOINS and any(t != m.tensor_id and self._read_by_convolution(network, t)
                                           for t in network.trace.calls[k].inputs) for k in m.readers)

    def _read_by_convolution(self, network: Network, tensor_id: TensorId) -> bool:
        return tensor_id in network.made and any(k < network.turn and self.offloads(network.op(k))
                                                 for k in network.trace.uses[tensor_id][1:])


class VdnnDyn(VdnnAll):
    """Offload nothing if all fits, else the inputs of convolutions if that is enough, else all."""

    name = "vdnn-dyn"

    def choose(self, network: Network, costs: Costs, limits: Limits) -> Plan:
        """The first that fits. Raises Unsuitable as ``vdnn-all`` does."""
        every = super().choose(network, costs, limits)
        for plan in (EMPTY_PLAN, VdnnConv().choose(network, costs, limits)):
            if outcome_of(network, plan, limits).excess <= 0:
                return plan
        return every


class VdnnPlusPlus(VdnnAll):
    """As ``vdnn-all``, and no layer waits for copies: memory is free when its copy has landed."""

    name = "vdnn++"
    waits = False


def largest_layer(network: Network) -> int:
    """Bytes of what outlives the iteration, and of the largest layer's X and Y with a gradient of the size of each:
    vDNN gives all four bytes of their own. Activations are computed in place."""
    sizes = {t: aligned(tensor.nbytes) for t, tensor in network.trace.tensors.items()}
    lasting = {t for t, tensor in network.trace.tensors.items() if tensor.persistent}
    layers = (sum(sizes[t] for t in {*call.inputs, *call.outputs} - lasting)
              for call in network.trace.calls[:network.turn] if call.op not in ACTIVATIONS)
    return sum(sizes[t] for t in lasting) + 2 * max(layers)


def _offloading(network: Network, chosen: list[FeatureMap]) -> tuple[dict[AccessKey, Action], list[AccessKey]]:
    """Evictions after each map's last use forward, and the waits at the ends of these layers.

    A copy that overlaps its own layer is one that starts before it: the map is given back by the layer's call, which
    finds it still there, and leaves for good afterwards.
    """
    evictions: dict[AccessKey, Action] = {}
    waits = []
    for m in chosen:
        at = network.trace.uses[m.tensor_id]
        before = at[at.index(m.last) - 1] if m.last != m.made else m.last
        if network.trace.windows is None and not any(
                network.trace.calls[k].outputs for k in range(before + 1, m.last)):
            evictions[network.key(m.tensor_id, before)] = Action.SWAP_OUT
            waits.append(network.key(m.tensor_id, m.last))
        evictions[network.key(m.tensor_id, m.last)] = Action.SWAP_OUT
    return evictions, waits
