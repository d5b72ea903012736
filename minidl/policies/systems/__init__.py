"""Systems of the literature as policies, by name: one file each; ``docs/policies.md`` has a row for every one."""

from collections.abc import Callable

from minidl.plan.policy import Policy
from minidl.policies.systems.autoswap import AutoSwap, AutoSwapAoa, AutoSwapDoa, AutoSwapWdoa
from minidl.policies.systems.chen import ChenGreedy, ChenSqrt
from minidl.policies.systems.coop import Coop
from minidl.policies.systems.dtr import Dtr, DtrEqClass, DtrIgnore, DtrLocal
from minidl.policies.systems.flashneuron import FlashNeuron
from minidl.policies.systems.g10 import G10
from minidl.policies.systems.griewank import Griewank
from minidl.policies.systems.megengine import MegEngine
from minidl.policies.systems.on_demand import ByLot, KeepAll, OnDemandBelady, OnDemandSize, OnlineMsps
from minidl.policies.systems.openai import OpenAiMemory, OpenAiSpeed
from minidl.policies.systems.superneurons import SuperNeurons
from minidl.policies.systems.swapadvisor import SwapAdvisor
from minidl.policies.systems.tflms import Tflms, TflmsChain
from minidl.policies.systems.vdnn import VdnnAll, VdnnConv, VdnnDyn, VdnnJoin, VdnnPlusPlus

SYSTEMS: dict[str, Callable[[], Policy]] = {
    "keep-all": KeepAll,
    "random": ByLot,
    "od-belady": OnDemandBelady,
    "od-size": OnDemandSize,
    "msps": OnlineMsps,
    "vdnn-all": VdnnAll,
    "vdnn-conv": VdnnConv,
    "vdnn-dyn": VdnnDyn,
    "vdnn-join": VdnnJoin,
    "vdnn++": VdnnPlusPlus,
    "openai-speed": OpenAiSpeed,
    "openai-memory": OpenAiMemory,
    "chen-sqrt": ChenSqrt,
    "chen-greedy": ChenGreedy,
    "griewank": Griewank,
    "superneurons": SuperNeurons,
    "swapadvisor": SwapAdvisor,
    "tflms": Tflms,
    "tflms-chain": TflmsChain,
    "autoswap": AutoSwap,
    "autoswap-doa": AutoSwapDoa,
    "autoswap-aoa": AutoSwapAoa,
    "autoswap-wdoa": AutoSwapWdoa,
    "flashneuron": FlashNeuron,
    "g10": G10,
    "dtr": Dtr,
    "dtr-eqclass": DtrEqClass,
    "dtr-local": DtrLocal,
    "dtr-ignore": DtrIgnore,
    "megengine": MegEngine,
    "coop": Coop,
}
"""Everything here is offered beside minidl's own policies (``minidl.policies``)."""
