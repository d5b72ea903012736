"""FlashNeuron: offload the earliest feature maps until the rest fits (Bae et al., FAST 2021).

    reserved   parameters and other persistent tensors, and the largest call's working set
    offloaded  feature maps in the order in which they are made, until the others fit beside what is reserved; each
               after its last use forward
    back       queued so that each arrives when it is wanted, if there is room

The SSD is the disk behind host memory, which is filled first; without a disk host memory stands for the SSD. The second
phase, which prefers tensors that compress well, is left out. So is its allocator, since minidl can move every tensor.
"""

from __future__ import annotations

from minidl.meta import aligned
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.policies.literature.network import Network
from minidl.policies.literature.static import Static
from minidl.policies.literature.swapping import Swap, of_gap, serialised


class FlashNeuron(Static):
    """Offload from the front of the network."""

    name = "flashneuron"

    def choose(self, network: Network, costs: Costs, limits: Limits) -> Plan:
        """As many feature maps as must leave, the earliest first; all of them where that is not enough."""
        rest = sum(m.nbytes for m in network.maps) + reserved_bytes(network)
        offloaded: list[Swap] = []
        on_host = 0  # bytes in its memory: all is there at once when the backward pass begins
        for m in sorted(network.maps, key=lambda m: (m.made, m.tensor_id)):
            if rest <= limits.device_bytes:
                break
            spilled = on_host + m.nbytes > network.facts.memory_bytes
            on_host += 0 if spilled else m.nbytes
            offloaded.append(of_gap(network, m.gap, spilled=spilled))
            rest -= m.nbytes
        return serialised(network, offloaded)


def reserved_bytes(network: Network) -> int:
    """Bytes of what outlives the iteration, and of the largest call's other operands with its least workspace."""
    sizes = {t: aligned(tensor.nbytes) for t, tensor in network.trace.tensors.items()}
    lasting = {t for t, tensor in network.trace.tensors.items() if tensor.persistent}
    working = (sum(sizes[t] for t in {*call.inputs, *call.outputs} - lasting)
               + min((a.workspace for a in call.algorithms), default=0) for call in network.trace.calls)
    return sum(sizes[t] for t in lasting) + max(working)
