"""FlashNeuron: offload the earliest feature maps until the others fit (Bae et al., FAST 2021).

    reserved   parameters and other persistent tensors, and the largest call's working set
    offloaded  feature maps in program order, until the others fit beside the reserved bytes; each leaves after its
               last use in the forward pass
    back       swap-ins queue so that each arrives at its use, if there is memory

The SSD is the disk behind host memory, which is filled first; without a disk, host memory stands for it. The second
phase, which prefers compressible tensors, is left out. So is the allocator, since minidl can move every tensor.
"""

from minidl.meta import aligned
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.static import Static
from minidl.policies.literature.swapping import Swap, of_gap, serialised


class FlashNeuron(Static):
    """Swaps out the earliest feature maps of the network, until the others fit."""

    name = "flashneuron"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan that offloads the fewest feature maps that suffice, the earliest first; else all of them."""
        rest = sum(m.nbytes for m in network.maps) + reserved_bytes(network)
        offloaded: list[Swap] = []
        on_host = 0  # bytes in host memory: all offloaded maps are there when the backward pass begins
        for m in sorted(network.maps, key=lambda m: (m.made, m.tensor_id)):
            if rest <= limits.device_bytes:
                break
            spilled = on_host + m.nbytes > network.facts.memory_bytes
            on_host += 0 if spilled else m.nbytes
            offloaded.append(of_gap(network, m.gap, spilled=spilled))
            rest -= m.nbytes
        return serialised(network, offloaded)


def reserved_bytes(network: IterationNetwork) -> int:
    """Return the bytes of persistent tensors plus the largest call's other operands and least workspace."""
    sizes = {t: aligned(tensor.nbytes) for t, tensor in network.trace.tensors.items()}
    lasting = {t for t, tensor in network.trace.tensors.items() if tensor.persistent}
    working = (sum(sizes[t] for t in {*call.inputs, *call.outputs} - lasting)
               + min((a.workspace for a in call.algorithms), default=0) for call in network.trace.calls)
    return sum(sizes[t] for t in lasting) + max(working)
