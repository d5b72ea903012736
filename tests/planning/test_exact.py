"""The exact solver: its optimum against hand-worked cases, all choices of modes, and the engine; and `auto` against it.

The programs are those of ``random_programs``: at most 12 tensors, on a device without overheads.
"""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from made_traces import NO_LINK, UNIT, call, chain, trace_of
from random_programs import UNLIMITED, programs

from minidl.errors import UserError
from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Proposal
from minidl.plan.policy import Observation
from minidl.plan.trace import Trace
from minidl.planning.modes import modes_of
from minidl.planning.problem import DROP, KEEP, SWAP, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto import policy as auto
from minidl.policies.auto.policy import Auto
from minidl.policies.literature.exact.execution_order import ExecutionOrder
from minidl.policies.literature.exact.formulation import best
from minidl.policies.literature.exact.policy import Exact

FREE_OUT = Costs(1e-18, 1e-9, 0.0)  # copies out take no time, copies in 1 ms a unit (and 5%)


def optimum(trace, units, costs):
    """The best choice for a budget in units."""
    return best(ExecutionOrder.of(problem(trace, costs)), round(units * UNIT), seconds=60.0)


def there_and_back(middle_seconds, *, size=4):
    """Tensor 0 is made, rests during a call that needs 8 units, and is read again."""
    return trace_of([call((), (0,), 1.0), call((), (1,), 1.0), call((1,), (2,), middle_seconds, (1, 2)),
                     call((0,), (3,), 1.0, (0, 3))], [size, 4, 4, 1])


def test_the_cheaper_of_making_again_and_copying_is_chosen():
    # Within 12 units everything stays: 1 + 1 + 10 + 1 s. Within 8 the 10 s call needs them all. Tensor 0 made again
    # costs 1 s more; swapped, it would be out from 1 to 5 s, the call would end at 15, and 4 s in make it 20.
    costs = Costs(1 / UNIT, 1 / UNIT, 0.0)
    roomy = optimum(there_and_back(10.0), 12, costs)
    assert (roomy.seconds, roomy.mode.tolist()) == (pytest.approx(13.0), [KEEP])
    short = optimum(there_and_back(10.0), 8, costs)
    assert (short.seconds, short.mode.tolist()) == (pytest.approx(14.0), [DROP])


@pytest.mark.parametrize(("budget", "seconds"), [(12, 13.0), (11.9, 20.0), (8, 20.0)])
def test_a_swap_that_does_not_fit_behind_computation_costs_its_waits(budget, seconds):
    # As above, but tensor 0 cannot be made again.
    trace = there_and_back(10.0)
    trace = Trace((replace(trace.calls[0], replayable=False), *trace.calls[1:]), trace.tensors)
    found = optimum(trace, budget, Costs(1 / UNIT, 1 / UNIT, 0.0))
    assert found.proven and found.seconds == pytest.approx(seconds)


def test_copies_queue_on_each_link_and_transfers_in_overlap_what_needs_no_room():
    # Tensors 0 and 1 (4 units, made at 1 and 2) leave for call 2 (8 of 9 units): copied out from 1 to 5, from 5 to 9.
    # Call 2 runs from 9 to 10 and leaves 1 unit; 0 comes from 10 to 14, 1 from 14 to 18, behind call 3 but for 1 s.
    calls = [call((), (0,), 1.0, replayable=False), call((), (1,), 1.0, replayable=False), call((), (2,), 1.0, (2,)),
             call((0,), (3,), 3.0, (0, 3)), call((1,), (4,), 1.0, (1, 4))]
    found = optimum(trace_of(calls, [4, 4, 8, 1, 1]), 9, Costs(1 / UNIT, 1 / UNIT, 0.0))
    assert found.mode.tolist() == [SWAP, SWAP]
    assert found.seconds == pytest.approx(19.0)


def test_what_a_replay_needs_and_nobody_else_is_made_on_the_way_and_counts_while_it_is_there():
    # 2 is made from 1, which is made from 0; 1 is freed. Call 3 (4.5 units beside 0) leaves no room for 2. To replay 2
    # before call 4 makes 1 again (3 units) beside 0 and 2: 2 + 3 + 2 = 7, which is the most: 6.9 units do not suffice.
    calls = [call((), (0,), 1.0, replayable=False), call((0,), (1,), 1.0), call((1,), (2,), 1.0, (1,)),
             call((), (3,), 1.0, (3,)), call((2, 0), (4,), 1.0, (2, 0, 4))]
    trace = trace_of(calls, [2, 3, 2, 4.5, 1])
    enough, short = optimum(trace, 7, NO_LINK), optimum(trace, 6.9, NO_LINK)
    assert enough.seconds == pytest.approx(7.0) and DROP in enough.mode
    assert short.mode is None and short.proven


def test_the_fastest_algorithm_is_given_up_where_its_workspace_costs_more_than_it_saves():
    ways = (Algorithm("fast", 1.0, 4 * UNIT), Algorithm("slow", 1.5, 0))
    def trace(replay_seconds):
        return trace_of([call((), (0,), replay_seconds), call((), (1,), 1.0, (1,), algorithms=ways),
                         call((0,), (2,), 1.0, (0, 2))], [4, 4, 1])
    slow, fast = optimum(trace(2.0), 8, NO_LINK), optimum(trace(0.25), 8, NO_LINK)
    assert (slow.seconds, slow.mode.tolist()) == (pytest.approx(4.5), [KEEP])
    assert (fast.seconds, fast.mode.tolist()) == (pytest.approx(2.5), [DROP])


CHAINS = [(3, 1), (4, 2), (5, 2), (6, 2), (8, 3), (10, 3)]


@pytest.mark.parametrize(("layers", "slots"), CHAINS)
def test_a_chain_is_planned_at_its_known_optimum(layers, slots):
    """Griewank and Walther, "Algorithm 799: Revolve" (ACM TOMS 2000): to reverse l steps with s checkpoints takes
    l - s - 1 forward steps more where s + 1 <= l <= (s + 1)(s + 2) / 2; beyond that, steps are repeated twice. The
    state at hand and two gradients come on top of the checkpoints.
    """
    seconds = layers * 3 + 0.5 + layers - slots - 1
    budget = (slots + 3.2) * UNIT
    found = best(ExecutionOrder.of(problem(chain(layers), NO_LINK)), round(budget), seconds=60.0)
    assert found.proven and found.seconds == pytest.approx(seconds)
    plan = Exact().plan(chain(layers), NO_LINK, Limits(round(budget), UNLIMITED)).plan
    assert set(plan.evictions.values()) == {Action.DROP} and len(plan.evictions) == layers - slots - 1


def test_a_chain_with_a_checkpoint_too_few_has_no_plan_that_replays_each_step_once():
    for layers, slots in ((3, 1), (6, 2), (10, 3)):  # (s + 1)(s + 2) / 2 layers
        found = best(ExecutionOrder.of(problem(chain(layers), NO_LINK)), round((slots + 2.9) * UNIT), seconds=60.0)
        assert found.mode is None and found.proven


def all_modes(facts):
    ways = [(KEEP, SWAP, DROP) if droppable else (KEEP, SWAP) for droppable in facts.can_drop]
    return [np.array(modes, np.int64) for modes in product(*ways)]


def price(facts, budget, mode):
    """(bytes over the budget, seconds) of one choice."""
    found = simulate(facts, Room(budget, UNLIMITED, 0.0), mode, np.zeros_like(mode), NO_NOTES)
    return found.excess, found.seconds


@pytest.mark.parametrize("costs", [NO_LINK, FREE_OUT], ids=["drops only", "with swap-ins"])
def test_no_choice_of_modes_simulates_to_less_than_the_optimum(costs):
    compared = 0
    for program, trace, _ in programs(30):
        facts = problem(trace, costs)
        if len(facts.gap_call) > 5:
            continue
        prices = [price(facts, program.budget, mode) for mode in all_modes(facts)]
        least = min((seconds for excess, seconds in prices if excess == 0), default=None)
        found = best(ExecutionOrder.of(facts), program.budget, seconds=60.0)
        assert found.proven
        if least in (None, inf):  # no choice fits, or none without swapping over no link
            assert found.mode is None
            continue
        compared += 1
        assert found.seconds <= least * (1 + 1e-4)
        if costs is NO_LINK:  # there is nothing to place but replays: both are the same model
            assert found.seconds == pytest.approx(least, rel=1e-4)
            assert price(facts, program.budget, found.mode) == (0, pytest.approx(found.seconds, rel=1e-4))
    assert compared >= 8


def test_the_engine_takes_as_long_as_the_optimum_says():
    """But for what the model leaves out: addresses (a block that is being copied is not moved), and bytes that an
    operation writes over though somebody will ask for them again."""
    ratios = []
    for program, trace, costs in programs(30):
        plan = Exact().plan(trace, costs, Limits(program.budget, UNLIMITED)).plan
        ratios.append(program.seconds(Fixed(plan), iterations=5) / plan.predicted_seconds)
    assert np.mean(np.isclose(ratios, 1.0, rtol=1e-3)) >= 0.8, ratios
    assert min(ratios) > 0.7 and np.quantile(ratios, 0.95) < 1.15, ratios


class Fixed(Exact):
    """One plan, made from the unmanaged trace."""

    def __init__(self, plan):
        super().__init__()
        self._plan = plan

    def plan(self, trace, costs, limits):
        return Proposal(self._plan)


def test_the_policy_says_why_a_trace_is_too_large():
    with pytest.raises(UserError, match=r"policy 'exact' is for small traces: 122 tensors .* use 'auto'"):
        Exact().plan(chain(60), NO_LINK, Limits(20 * UNIT, UNLIMITED))


def test_the_policy_says_how_far_it_got_when_time_is_up():
    with pytest.raises(UserError, match=r"has not proven an optimum within 0\.001 s: .* none takes less than"):
        Exact(seconds=0.001).plan(chain(10), Costs(1e-7, 1e-7, 0.0), Limits(round(6.2 * UNIT), UNLIMITED))


def test_what_fits_is_left_alone():
    assert Exact().plan(chain(6), NO_LINK, Limits(100 * UNIT, UNLIMITED)) is NO_PLAN


ROUNDS = 12        # plans that `auto` tries
CHOICES = 3e4      # calls simulated for one plan: a dozen tensors have few choices
FEW, MANY = 8, 200


def simulated(trace: Trace, costs: Costs, limits: Limits) -> float:
    """Seconds of the best plan that `auto` makes, if each takes what the simulation of its choice says."""
    facts, policy = problem(trace, costs), Auto(rounds=ROUNDS)
    proposal, least = policy.plan(trace, costs, limits), inf
    for _ in range(2 * ROUNDS + 2):
        excess, seconds = price(facts, limits.device_bytes, modes_of(proposal.plan, facts))
        took = 1e9 if excess else seconds  # a plan that does not fit is no good at all
        least = min(least, took)
        proposal = policy.feedback(proposal, Observation(trace, costs, limits, took, 0.0, {}, 0))
    return least


def compare(count: int) -> np.ndarray:
    """Per program, in multiples of the optimum: `auto` as simulated, and on the engine `auto` and passive mode."""
    rows = []
    for program, trace, costs in programs(max(count, 30))[:count]:
        limits = Limits(program.budget, UNLIMITED)
        optimum = Exact().plan(trace, costs, limits).plan.predicted_seconds
        rows.append((simulated(trace, costs, limits) / optimum,
                     program.seconds(Auto(rounds=ROUNDS), iterations=2 * ROUNDS + 6) / optimum,
                     program.seconds("passive", iterations=4) / optimum))
    return np.array(rows)


@pytest.mark.parametrize(("count", "share"), [
    pytest.param(FEW, 0.85, id="few", marks=pytest.mark.slow),
    pytest.param(MANY, 0.95, id="many", marks=pytest.mark.full)])
def test_auto_is_near_the_optimum(count, share, monkeypatch):
    monkeypatch.setattr(auto, "FIRST_WORK", CHOICES)
    simulated, engine, passive = compare(count).T
    assert np.mean(simulated <= 1.05) >= share, simulated[simulated > 1.05]
    assert np.mean(engine <= 1.05) >= share - 0.05, engine[engine > 1.05]
    if count == MANY:
        assert np.all(engine <= passive * (1 + 1e-3)), (engine / passive).max()
