"""What holds for every policy there is: the bits of an unmanaged run or a refusal, the budget, one decision for one
question, and plans that make sense.

A policy without pages is refused what it cannot plan; ``FLOOR`` says from what share of the unmanaged peak on each has
to run the network here. That of all others is the largest operation.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import minidl
import train
from bench.gpu_check.steps import state_of
from minidl import nn, policies
from minidl.errors import OutOfMemory, Unsuitable
from minidl.memory.ledger import Demand
from minidl.meta import ALIGNMENT
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action
from minidl.plan.trace import Trace
from minidl.policies.auto import policy as auto
from minidl.policies.literature.autoswap import AutoSwap

EVERY = [name for name in policies.POLICIES if name != "exact"]  # which takes traces of a dozen tensors
STEPS = 4  # one to warm up, one without gradients before, one to measure, and then by plan
BUDGETS = (90, 60, 30)  # percent of the unmanaged peak
SOLVED = ("checkmate", "checkmate-lp", "str-ilp", "mo-sos")  # by a solver: minutes, where memory is short
FLOOR = {"none": 101, "keep-all": 200, "openai-speed": 100,
         **dict.fromkeys(("vdnn-all", "vdnn-dyn", "vdnn++"), 60),
         **dict.fromkeys(("msps", "vdnn-conv", "vdnn-join", "openai-memory", "chen-sqrt", "chen-greedy", "griewank",
                          "tflms", "tflms-chain", "flashneuron", "dtr", "dtr-eqclass", "dtr-local", "dtr-ignore",
                          "coop", "megengine"), 90)}
UNLIMITED = 1 << 26


class Small(nn.Sequential):
    """[N, 3, 12, 12] -> [N, 5]: convolutions, batch norm, a pool, a product; 60 calls a step."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for before, after in ((3, 8), (8, 8), (8, 8), (8, 8)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNormReLU2d(after)]
        super().__init__(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 5))


class Outcome:
    """What a training of the network has left behind."""

    def __init__(self, device: str, policy: str, budget: int, steps: int = STEPS) -> None:
        self.budget = budget
        with minidl.Runtime(device, policy=policy, memory_budget=budget, host_memory=UNLIMITED,
                            poisoned=device == "cpu:virtual") as runtime:
            model = Small()
            optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
            values = device == "cpu:virtual"

            def step(rng: np.random.Generator) -> minidl.Tensor:
                x = rng.standard_normal((8, 3, 12, 12)).astype(np.float32)
                loss = cross_entropy(model(runtime.tensor(x)), runtime.tensor(rng.integers(0, 5, 8)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss
            self.demand: Demand = runtime.dry_run(lambda: step(np.random.default_rng(0)))
            rng, losses = np.random.default_rng(1), []
            for _ in range(steps):
                with runtime.iteration():
                    loss = step(rng)
                    losses.append(loss.item() if values else 0.0)
                    self.trace: Trace = runtime.trace()
                runtime.check()
            self.stats = runtime.stats()
            guide = runtime.guide
            self.entry = guide.active if guide is not None else None
            self.state = state_of(runtime, model, optimizer, losses) if values else {}
            self.costs: Costs = runtime.device.profile.link_costs


@cache
def unlimited(device: str = "cpu:virtual") -> Outcome:
    return Outcome(device, "none", UNLIMITED)


def budget_of(percent: int, device: str = "cpu:virtual") -> int:
    demand = unlimited(device).demand
    return max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * percent // 100)


def run(device: str, policy: str, percent: int) -> Outcome | None:
    """A training, or None where the policy may refuse, and does."""
    try:
        return Outcome(device, policy, budget_of(percent, device))
    except (OutOfMemory, Unsuitable) as error:
        assert percent < FLOOR.get(policy, 0), error
        assert "\n" not in str(error) and any(character.isdigit() for character in str(error))
        return None


def cells(names):
    """Every policy at every budget; what takes minutes only when all is asked for."""
    return [pytest.param(name, percent, marks=pytest.mark.full if name in SOLVED and percent < 90 else ())
            for name in names for percent in BUDGETS]


@pytest.fixture(autouse=True)
def short_searches(monkeypatch):
    monkeypatch.setattr(auto, "FIRST_WORK", 1e5)
    monkeypatch.setattr(auto, "WORK", 1e5)
    monkeypatch.setattr(AutoSwap, "least_bytes", 0)  # everything here is small


@pytest.mark.default(percent=[90])
@pytest.mark.parametrize(("policy", "percent"), cells(EVERY))
def test_no_bit_changes_and_the_budget_holds_or_the_policy_says_that_it_cannot(policy, percent, one_thread):
    found = run("cpu:virtual", policy, percent)
    if found is not None:
        assert found.state == unlimited().state
        assert found.stats.peak_bytes <= found.budget
        assert percent > 60 or found.stats.swapped_out_bytes + found.stats.recomputed_bytes > 0


@pytest.mark.default(policy=["vdnn-all", "random", "openai-memory", "dtr"])
@pytest.mark.parametrize("policy", EVERY)
def test_the_same_question_has_the_same_answer(policy):
    """Two runs on modelled time agree in every counter, and the same trace is planned alike twice."""
    one, other = (run("sim:p100", policy, 90) for _ in range(2))
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    assert one.stats == other.stats
    made = policies.create(policy)
    if made.plans:
        limits = Limits(one.budget, UNLIMITED)
        plans = [made.plan(one.trace, one.costs, limits).plan for made in (made, policies.create(policy))]
        assert plans[0] == plans[1]


PLANNING = [name for name in EVERY if policies.POLICIES[name].plans]


@pytest.mark.default(percent=[90])
@pytest.mark.parametrize(("policy", "percent"), cells(PLANNING))
def test_a_plan_evicts_what_is_wanted_again_and_triggers_inside_the_gaps(policy, percent):
    reference = unlimited("sim:p100")
    trace = reference.trace
    try:
        plan = policies.create(policy).plan(trace, reference.costs, Limits(budget_of(percent, "sim:p100"),
                                                                           UNLIMITED)).plan
    except Unsuitable:
        assert percent < FLOOR.get(policy, 0)
        return
    freed = {t: k for k, call in enumerate(trace.calls) for t in call.frees}
    away: dict[int, list[tuple[int, int]]] = {}  # tensor -> the gaps in which it is away, by calls
    for (tensor_id, count), action in plan.evictions.items():
        at = trace.uses[tensor_id]
        lasts = trace.tensors[tensor_id].persistent
        assert freed.get(tensor_id, len(trace.calls)) > at[count - 1]
        if count == len(at) and not lasts:  # a gradient, which the next iteration frees, and which never comes back
            assert tensor_id not in freed and action is Action.SWAP_OUT, "evicted after its last use"
            continue
        back = at[count] if count < len(at) else at[0] + len(trace.calls)
        away.setdefault(tensor_id, []).append((at[count - 1], back))
    for (trigger, count), ids in plan.prefetches.items():
        call = trace.uses[trigger][count - 1]
        for tensor_id in ids:
            # It starts before the next call: after the one that has evicted it, not after the one that wants it.
            inside = [left <= at < back for left, back in away[tensor_id] for at in (call, call + len(trace.calls))]
            assert any(inside), f"tensor {tensor_id} is brought back outside of its gaps"
    for tensor_id, count in plan.waits:
        assert 1 <= count <= len(trace.uses[tensor_id])


@pytest.mark.default(policy=["capuchin", "capuchin-listing", "auto", "g10", "chen-sqrt", "vdnn-all", "autoswap"])
@pytest.mark.parametrize("policy", PLANNING)
def test_a_plan_uses_no_gap_but_those_that_its_trace_allows(policy):
    reference = unlimited("sim:p100")
    made = [t for t, tensor in reference.trace.tensors.items() if not tensor.persistent]
    gaps = {t: max(pairwise(at), key=lambda gap: gap[1] - gap[0]) for n, t in enumerate(made) if n % 4
            if len(at := reference.trace.uses.get(t, [])) > 1}
    trace = replace(reference.trace, windows=gaps)
    try:
        plan = policies.create(policy).plan(trace, reference.costs, Limits(budget_of(60, "sim:p100"), UNLIMITED)).plan
    except Unsuitable:
        return
    for tensor_id, count in plan.evictions:
        assert tuple(trace.uses[tensor_id][count - 1:count + 1]) == gaps.get(tensor_id)
    if policy in ("capuchin", "auto"):
        assert plan.evictions


def test_a_plan_for_a_machine_without_addresses_has_none():
    reference = unlimited("sim:p100")
    for addresses in (True, False):
        limits = Limits(budget_of(60, "sim:p100"), UNLIMITED, addresses=addresses)
        plan = policies.create("auto").plan(reference.trace, reference.costs, limits).plan
        assert plan.evictions and bool(plan.offsets) == addresses and (addresses or not plan.moves)


@pytest.mark.parametrize("policy", ["auto", "random", "vdnn-all", "msps", "keep-all"])
def test_a_budget_below_the_largest_operation_is_refused(policy):
    largest = unlimited("sim:p100").demand.largest_op_bytes
    with pytest.raises(OutOfMemory, match="in use by it"):
        Outcome("sim:p100", policy, largest - ALIGNMENT, steps=2)


@pytest.mark.parametrize("policy", ["vdnn-all", "vdnn-conv", "vdnn-join", "vdnn-dyn", "vdnn++"])
def test_vdnn_says_that_it_cannot_run_a_network_without_convolutions(policy):
    trace = _products()
    with pytest.raises(Unsuitable, match="offloads the feature maps of convolutional networks; none of"):
        policies.create(policy).plan(trace, Costs(1e-9, 1e-9, 1e-5), Limits(1 << 30, 1 << 30))


def _products() -> Trace:
    with minidl.Runtime("sim:p100", policy="none") as runtime:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
        x = runtime.tensor(np.zeros((32, 64), np.float32))
        cross_entropy(model(x), runtime.tensor(np.zeros(32, np.int64))).backward()
        return runtime.trace()


def test_train_py_ends_with_one_line_where_a_policy_cannot_run_a_network(capsys):
    assert train.main(["--device", "sim:p100", "--model", "mlp", "--batch", "8", "--steps", "5", "--policy",
                       "vdnn-dyn"]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.startswith("train.py: error: policy 'vdnn-dyn' offloads the feature maps of convolutional networks")
