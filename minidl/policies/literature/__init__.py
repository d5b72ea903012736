"""Policies that reimplement systems of the literature, by name; ``docs/policies.md`` has a row for each.

The policies named in ``SOLVERS`` solve an integer or a linear program and may take minutes for a plan.
"""

from collections.abc import Callable

from minidl.plan.policy import Policy
from minidl.policies.literature.autoswap import AutoSwap, AutoSwapAoa, AutoSwapDoa, AutoSwapWdoa
from minidl.policies.literature.chen import ChenGreedy, ChenSqrt
from minidl.policies.literature.coop import Coop
from minidl.policies.literature.dtr import Dtr, DtrEqClass, DtrIgnore, DtrLocal
from minidl.policies.literature.exact.policy import Exact
from minidl.policies.literature.flashneuron import FlashNeuron
from minidl.policies.literature.g10 import G10
from minidl.policies.literature.griewank import Griewank
from minidl.policies.literature.ilp import Checkmate, CheckmateRounded, OperatorSelection, SwapDominated
from minidl.policies.literature.megengine import MegEngine
from minidl.policies.literature.on_demand import KeepAll, OnDemandBelady, OnDemandSize, OnlineMsps, Random
from minidl.policies.literature.openai import OpenAiMemory, OpenAiSpeed
from minidl.policies.literature.superneurons import SuperNeurons
from minidl.policies.literature.swapadvisor import SwapAdvisor
from minidl.policies.literature.tflms import Tflms, TflmsChain
from minidl.policies.literature.vdnn import VdnnAll, VdnnConv, VdnnDyn, VdnnJoin, VdnnPlusPlus

SYSTEMS: dict[str, Callable[[], Policy]] = {
    "keep-all": KeepAll,
    "random": Random,
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
    "checkmate": Checkmate,
    "checkmate-lp": CheckmateRounded,
    "str-ilp": SwapDominated,
    "mo-sos": OperatorSelection,
    "exact": Exact,
}
SOLVERS = ("exact", "checkmate", "checkmate-lp", "mo-sos", "str-ilp")
"""Everything here is offered beside minidl's own policies (``minidl.policies``)."""
