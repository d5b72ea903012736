"""Systems of the literature as policies, by name: one file each; ``docs/policies.md`` has a row for every one."""

from collections.abc import Callable

from minidl.plan.policy import Policy
from minidl.policies.systems.chen import ChenGreedy, ChenSqrt
from minidl.policies.systems.on_demand import ByLot, KeepAll, OnDemandBelady, OnDemandSize, OnlineMsps
from minidl.policies.systems.openai import OpenAiMemory, OpenAiSpeed
from minidl.policies.systems.vdnn import VdnnAll, VdnnConv, VdnnDyn, VdnnPlusPlus

SYSTEMS: dict[str, Callable[[], Policy]] = {
    "keep-all": KeepAll,
    "random": ByLot,
    "od-belady": OnDemandBelady,
    "od-size": OnDemandSize,
    "msps": OnlineMsps,
    "vdnn-all": VdnnAll,
    "vdnn-conv": VdnnConv,
    "vdnn-dyn": VdnnDyn,
    "vdnn++": VdnnPlusPlus,
    "openai-speed": OpenAiSpeed,
    "openai-memory": OpenAiMemory,
    "chen-sqrt": ChenSqrt,
    "chen-greedy": ChenGreedy,
}
"""Everything here is offered beside minidl's own policies (``minidl.policies``)."""
