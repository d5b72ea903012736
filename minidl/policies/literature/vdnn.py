"""vDNN: the inputs of layers are swapped out beside computation (Rhu et al., MICRO 2016); and vDNN++.

    forward    a layer's input X is copied out while the layer computes, if no later layer reads it. The layer's end
               waits for the copy and the computation; then X is freed.
    backward   beside a layer's gradient, the X of the nearest earlier layer that is still away is copied in; the
               search ends at the first convolution. The layer's end waits for both.
    memory     a layer's X, Y and their gradients have separate bytes, where minidl would donate one to another.

If several layers read X, its copy starts when the last of them has run. The last layer's X stays. Convolutions take the
fastest algorithm whose workspace is free, so vDNN's choice of algorithms is not needed: ``vdnn-dyn`` takes the first of
"none", "conv" and "all" that fits. ``vdnn-join`` is a reading for networks with shortcuts, which vDNN's paper leaves
open (docs/reproduction/table2.md). vDNN++ (Shriram et al., "Dynamic Memory Management for GPU-based training of Deep
Neural Networks", IPDPS 2019) waits for no copy at a layer's end; its compression on the host is left out.
"""

from minidl.errors import Unsuitable
from minidl.meta import aligned
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, AccessKey, Action, Plan
from minidl.plan.trace import TensorId
from minidl.policies.literature.network import (
    ACTIVATIONS,
    CONVOLUTIONS,
    JOINS,
    LOSSES,
    PRODUCTS,
    FeatureMap,
    IterationNetwork,
)
from minidl.policies.literature.static import Static, outcome_of
from minidl.policies.literature.swapping import beside_gradients


class VdnnAll(Static):
    """Swaps out the inputs of all layers but activations, fully connected layers and the loss; layers wait for copies.
    """

    name = "vdnn-all"
    waits = True

    def offloads(self, op: str) -> bool:
        """Return True if the inputs of layers with this operation are offloaded."""
        return op not in (*ACTIVATIONS, *PRODUCTS, *LOSSES)

    def takes(self, network: IterationNetwork, m: FeatureMap) -> bool:
        """Return True if a feature map is offloaded: one of its readers is a layer whose inputs are."""
        return any(self.offloads(network.op(k)) for k in m.readers)

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan that offloads the feature maps that ``takes`` selects, except for the last map.
        Raises Unsuitable without a convolution, or if ``largest_layer`` exceeds the device's budget."""
        if next(network.convolutions, None) is None:
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
    """Swaps out the inputs of convolutions only; layers wait for copies."""

    name = "vdnn-conv"

    def offloads(self, op: str) -> bool:
        """Return True if the operation is a convolution."""
        return op in CONVOLUTIONS


class VdnnJoin(VdnnConv):
    """Swaps out the inputs of convolutions, and the values added to or joined with such an input: shortcuts."""

    name = "vdnn-join"

    def takes(self, network: IterationNetwork, m: FeatureMap) -> bool:
        """Return True if a convolution reads the map, or a join reads it together with an input of a convolution."""
        return super().takes(network, m) or any(
            network.op(k) in JOINS and any(t != m.tensor_id and self._read_by_convolution(network, t)
                                           for t in network.trace.calls[k].inputs) for k in m.readers)

    def _read_by_convolution(self, network: IterationNetwork, tensor_id: TensorId) -> bool:
        return tensor_id in network.made and any(k < network.turn and self.offloads(network.op(k))
                                                 for k in network.trace.uses[tensor_id][1:])


class VdnnDyn(VdnnAll):
    """Swaps out nothing if all fits, else the inputs of convolutions if that is enough, else as ``vdnn-all``."""

    name = "vdnn-dyn"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the first of the three plans that fits, or the last one. Raises Unsuitable as ``vdnn-all`` does."""
        every = super().choose(network, costs, limits)
        for plan in (EMPTY_PLAN, VdnnConv().choose(network, costs, limits)):
            if outcome_of(network, plan, limits).excess <= 0:
                return plan
        return every


class VdnnPlusPlus(VdnnAll):
    """Swaps out as ``vdnn-all`` does, but no layer waits for copies: a block is free when its copy has ended."""

    name = "vdnn++"
    waits = False


def largest_layer(network: IterationNetwork) -> int:
    """Return the bytes of persistent tensors plus the largest layer's X and Y, each with a gradient of its size.
    vDNN gives all four separate bytes. Activations do not count, because they are computed in place."""
    sizes = {t: aligned(tensor.nbytes) for t, tensor in network.trace.tensors.items()}
    lasting = {t for t, tensor in network.trace.tensors.items() if tensor.persistent}
    layers = (sum(sizes[t] for t in {*call.inputs, *call.outputs} - lasting)
              for call in network.trace.calls[:network.turn] if call.op not in ACTIVATIONS)
    return sum(sizes[t] for t in lasting) + 2 * max(layers)


def _offloading(network: IterationNetwork, chosen: list[FeatureMap]) -> tuple[dict[AccessKey, Action], list[AccessKey]]:
    """Return the evictions after each map's last forward use, and the accesses after which these layers wait.

    A copy that overlaps its layer starts before the layer: the map is evicted before the layer's call, which finds it
    still on the device, and it leaves for good afterwards.
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
