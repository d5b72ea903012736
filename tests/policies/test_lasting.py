"""Parameters and optimizer state in plans: they may be away between iterations, and nothing of it changes a bit."""

from dataclasses import replace

import numpy as np
import pytest

from minidl import Runtime, nn
from minidl.memory.guided.sequence import SETTLING, KnownSequence
from minidl.meta import Algorithm
from minidl.ops import cross_entropy, relu
from minidl.optim import SGD, Adam
from minidl.plan.costs import Costs
from minidl.plan.plan import Action, Plan, Proposal
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.planning.bound import bound
from minidl.planning.modes import to_plan
from minidl.planning.problem import KEEP, SWAP, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto.addresses import successors
from minidl.policies.auto.choices import movable

LAYERS, WIDTH, BATCH, STEPS = 8, 96, 64, 16
BYTES = 1000  # a second each way, and no latency
STATE, A, B = -1, 0, 1


def _call(op, inputs, outputs, seconds, frees=(), writes=()):
    return TraceCall(op, inputs, outputs, seconds, (Algorithm("only", seconds, 0),), frees, writes=writes)


def _state_and_two_temporaries():
    """Five calls of a second; a state of 512 bytes is read by the fourth and written by it; a temporary spans each."""
    calls = (_call("make", (), (A,), 1.0), _call("use", (A,), (), 1.0, frees=(A,)), _call("make", (), (B,), 1.0),
             _call("update", (STATE, B), (), 1.0, frees=(B,), writes=(STATE,)), _call("rest", (), (), 1.0))
    tensors = {STATE: TraceTensor(STATE, 512, True), A: TraceTensor(A, 512, False), B: TraceTensor(B, 256, False)}
    return Trace(calls, tensors), Costs(1 / BYTES, 1 / BYTES, 0.0)


def test_a_state_that_is_used_once_an_iteration_has_one_gap_round_its_end():
    trace, costs = _state_and_two_temporaries()
    facts = problem(trace, costs)
    gap = int(np.nonzero(facts.gap_head >= 0)[0][0])
    assert (facts.gap_call[gap], facts.gap_next[gap], facts.gap_head[gap]) == (3, 5, 3)
    assert facts.ids[facts.gap_tensor[gap]] == STATE
    assert not facts.can_drop[gap]
    assert facts.gap_round[gap] == gap
    assert not len(problem(trace, costs, lasting=False).gap_call)


def test_a_state_that_is_away_between_iterations_leaves_room_for_a_temporary_and_costs_no_time():
    trace, costs = _state_and_two_temporaries()
    facts = problem(trace, costs)

    def within(budget, mode):
        at = np.array([mode])
        return simulate(facts, Room(budget, 1 << 20, 0.0), np.array([mode]), at, NO_NOTES), at[0]

    assert within(1024, KEEP)[0].excess == 0
    assert within(768, KEEP)[0].excess > 0
    away, prefetched_at = within(768, SWAP)
    assert away.excess == 0
    assert away.seconds == 5.0  # in during call 2, when A is gone; out during call 4
    assert away.moved == 1024
    assert prefetched_at == 2
    plan = to_plan(trace, facts, np.array([SWAP]), np.array([prefetched_at]))
    assert plan.evictions.keys() == {(STATE, 1)}
    assert plan.prefetches == {(A, 2): (STATE,)}


def test_a_copy_out_that_the_iteration_leaves_behind_takes_memory_and_link_of_the_next_one():
    trace, costs = _state_and_two_temporaries()
    slow = Costs(4 / BYTES, 1 / BYTES, 0.0)  # 2.048 s out, of which one second is left when the update is over
    facts = problem(trace, slow)

    def seconds(budget):
        return simulate(facts, Room(budget, 1 << 20, 0.0), np.array([SWAP]), np.array([-1]), NO_NOTES).seconds

    assert seconds(1024) == 5.0
    assert seconds(768) == pytest.approx(6.048)  # A waits until the state has landed


def test_a_copy_out_that_the_iteration_leaves_behind_is_noted_until_it_has_landed_in_the_next_one():
    trace, _ = _state_and_two_temporaries()
    facts = problem(trace, Costs(4 / BYTES, 1 / BYTES, 0.0))
    notes = np.zeros((9, 4), np.int64)
    noted = simulate(facts, Room(1024, 1 << 20, 0.0), np.array([SWAP]), np.array([-1]), notes).noted
    until = {facts.ids[tensor]: last for tensor, _, last, _ in notes[:noted].tolist()}
    assert until == {STATE: -2 - 1, A: 1, B: 3}  # the state lands during call 1


def test_the_bound_lets_a_state_be_away_and_counts_the_copy_of_what_was_written():
    trace, costs = _state_and_two_temporaries()
    assert bound(trace, costs, 768, instants=5).seconds == pytest.approx(5.0)
    assert bound(trace, costs, 511, instants=5).seconds == np.inf
    slow = Costs(12 / BYTES, 1 / BYTES, 0.0)
    assert bound(trace, slow, 768, instants=5).seconds == pytest.approx(6.144, rel=0.02)


def _gradients_of_two_parameters(made_first):
    """An iteration that finds two gradients, frees them after its first call, and leaves two of the same sizes."""
    old, new = (1 << 61, 600), (2 << 61, 200)
    calls = (_call("free", (), (), 1.0, frees=(old[0], new[0])), _call("first", (), (A,), 1.0),
             _call("second", (), (B,), 1.0))
    sizes = {old[0]: old[1], new[0]: new[1], A: 200, B: 600}
    return problem(Trace(calls[::-1] if made_first else calls,
                         {t: TraceTensor(t, nbytes, False) for t, nbytes in sizes.items()}), Costs(0.0, 0.0, 0.0))


def test_gradients_have_successors_if_the_old_ones_are_gone_when_new_ones_are_made():
    facts = _gradients_of_two_parameters(made_first=False)
    ids = facts.ids.tolist()
    after = {ids[old]: ids[new] for old, new in enumerate(successors(facts)) if new >= 0}
    assert after == {1 << 61: B, 2 << 61: A}  # of as many bytes
    assert (successors(_gradients_of_two_parameters(made_first=True)) < 0).all()


GRADIENT, CARRIED, NEW = 0, -2, 2


def _a_gradient_that_is_never_read_again(carries=False):
    """Five calls of a second: the second reads a gradient of 512 bytes for the last time, and a temporary of 512 bytes
    spans the last two. carries: the third reads 512 bytes from the iteration before, and the fourth makes as many."""
    calls = [_call("make", (), (GRADIENT,), 1.0), _call("update", (STATE, GRADIENT), (), 1.0, writes=(STATE,)),
             _call("rest", (CARRIED,) * carries, (), 1.0, frees=(CARRIED,) * carries),
             _call("make", (), (B, *(NEW,) * carries), 1.0), _call("use", (B,), (), 1.0, frees=(B,))]
    sizes = {STATE: 256, GRADIENT: 512, B: 512, **({CARRIED: 512, NEW: 512} if carries else {})}
    return Trace(tuple(calls), {t: TraceTensor(t, nbytes, t == STATE) for t, nbytes in sizes.items()})


def _gap_of(trace, tensor_id, budget):
    """The gap of a tensor, as the calls between which it lies, or None; and the problem."""
    facts = problem(trace, Costs(1 / BYTES, 1 / BYTES, 0.0), budget=budget)
    gaps = [g for g, n in enumerate(facts.gap_tensor.tolist()) if facts.ids[n] == tensor_id]
    assert len(gaps) <= 1
    return (gaps[0], int(facts.gap_call[gaps[0]]), int(facts.gap_next[gaps[0]])) if gaps else None, facts


def test_a_gradient_may_leave_after_its_last_use_if_what_stays_later_exceeds_the_budget():
    gap, facts = _gap_of(_a_gradient_that_is_never_read_again(), GRADIENT, 1023)
    assert gap is not None and gap[1:] == (1, 5)
    assert facts.gap_head[gap[0]] == facts.gap_round[gap[0]] == -1
    assert not facts.may_drop[gap[0]]  # nothing would replay it
    assert _gap_of(_a_gradient_that_is_never_read_again(), GRADIENT, 1024)[0] is None  # the state may leave


def test_what_the_next_iteration_reads_does_not_leave_for_good():
    trace = _a_gradient_that_is_never_read_again(carries=True)
    assert all(_gap_of(trace, t, 0)[0] is None for t in (GRADIENT, NEW))


def test_a_search_considers_gaps_without_a_swap_in_however_short():
    trace, activation = _a_gradient_that_is_never_read_again(), 3
    peak = [_call("make", (), (activation,), 1.0), _call("rest", (), (), 1.0),
            _call("use", (activation,), (), 1.0, frees=(activation,))]
    quick = [replace(call, seconds=1e-3, algorithms=(Algorithm("only", 1e-3, 0),)) for call in trace.calls]
    tensors = {**trace.tensors, activation: TraceTensor(activation, 1 << 16, False)}
    gap, facts = _gap_of(Trace((*peak, *quick), tensors), GRADIENT, 1023)
    often, rare = movable(facts, 1 << 20)
    assert gap is not None and gap[0] in rare and gap[0] not in often


def test_a_gradient_that_leaves_for_good_is_copied_out_and_never_in():
    trace = _a_gradient_that_is_never_read_again()
    (gap, _, _), facts = _gap_of(trace, GRADIENT, 1023)
    kept, away = (np.zeros(len(facts.gap_call), np.int64) for _ in range(2))
    away[gap] = SWAP
    at = np.zeros_like(away)
    room = Room(1024, 1 << 20, 0.0)
    assert simulate(facts, room, kept, at, NO_NOTES).excess > 0
    found = simulate(facts, room, away, at, NO_NOTES)
    assert (found.excess, found.seconds, found.moved) == (0, 5.0, 512)  # the copy ends during the third call
    assert to_plan(trace, facts, away, at) == Plan({(GRADIENT, 2): Action.SWAP_OUT})
    assert simulate(facts, Room(1024, 511, 0.0), away, at, NO_NOTES).excess > 0
    slow = Costs(8 / BYTES, 1.0, 0.0)  # 384 bytes must leave in 3.072 s, of which two calls hide two
    assert bound(trace, slow, 896, instants=5).seconds == pytest.approx(6.072)


@pytest.mark.parametrize("late", [False, True], ids=["zero_grad first", "zero_grad before backward"])
def test_updates_in_less_memory_than_all_gradients_need_have_a_plan_and_change_no_bit(late):
    def trained(policy, budget):
        with Runtime("cpu:virtual", memory_budget=budget, policy=policy, host_memory=1 << 26) as runtime:
            parameters = [p for _ in range(24) for p in nn.Linear(WIDTH, WIDTH).parameters()]
            optimizer = SGD(parameters, lr=0.1, momentum=0.9)
            rng = np.random.default_rng(0)
            for _ in range(STEPS):
                with runtime.iteration():
                    if not late:
                        optimizer.zero_grad()
                    x = runtime.tensor(rng.standard_normal((4, WIDTH)).astype(np.float32))
                    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
                        x = relu(x @ weight.T + bias)
                    loss = x.sum()
                    if late:
                        optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    del x, loss
                runtime.memory.check()
            followed, peak = runtime.followed(), runtime.stats().peak_bytes
            state = [*(p.numpy() for p in parameters), *optimizer.state_dict().values()]
            return [values.tobytes() for values in state], followed, peak

    expected, _, peak = trained("none", 1 << 26)
    state, followed, _ = trained("auto", int(0.3 * peak))
    assert state == expected
    assert followed is not None and followed[1].plan.evictions
    trace, plan = followed[0], followed[1].plan
    gradients = {t for call in trace.calls if call.op.startswith("sgd") for t in call.inputs if t >= 0}
    assert any(t in gradients and count == len(trace.uses[t]) for t, count in plan.evictions)


def test_an_iteration_on_the_way_from_one_plan_to_another_shows_neithers_time():
    trace, _ = _state_and_two_temporaries()
    entry = KnownSequence([], trace)
    entry.adopt(Proposal(Plan({(A, 1): Action.SWAP_OUT})))
    assert entry.settling == 0  # all is where it was when the next iteration starts
    entry.adopt(Proposal(Plan({(STATE, 1): Action.SWAP_OUT})))
    assert entry.settling == SETTLING
    entry.settling = 0
    entry.adopt(Proposal(Plan()))
    assert entry.settling == SETTLING  # and on the way back


def _train(device, policy, budget):
    """All state after some steps of Adam, the runtime's last plan, and the unmanaged peak in bytes."""
    with Runtime(device, memory_budget=budget, policy=policy, host_memory=1 << 26) as runtime:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        parameters = [p for layer in layers for p in layer.parameters()]
        optimizers = [Adam(layer.parameters()) for layer in layers]  # so that an update needs one layer's states
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            with runtime.iteration():
                x = runtime.tensor(rng.standard_normal((BATCH, WIDTH)).astype(np.float32))
                labels = runtime.tensor(rng.integers(0, WIDTH, BATCH))
                for layer in layers:
                    x = relu(layer(x))
                loss = cross_entropy(x, labels)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
            runtime.memory.check()
        followed = runtime.followed()
        moved = runtime.stats()
        state = [p.numpy() for p in parameters]
        for optimizer in optimizers:
            state += optimizer.state_dict().values()
        return state, followed, moved


@pytest.mark.default(share=[0.75])
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_training_with_states_away_between_iterations_changes_no_bit(share):
    expected, _, unmanaged = _train("cpu:virtual", "none", 1 << 26)
    state, followed, _ = _train("cpu:virtual", "auto", int(share * unmanaged.peak_bytes))
    for mine, its in zip(state, expected, strict=True):
        assert mine.tobytes() == its.tobytes()
    assert followed is not None
    trace, how = followed
    uses = {t: sum(a.tensor_id == t for a in trace.accesses) for t in trace.tensors if t < 0}
    assert any(count == uses.get(tensor_id) for tensor_id, count in how.plan.evictions)
    assert any(tensor_id < 0 and count == 0 for tensor_id, count in how.returns.late)  # one was prefetched


def planned_bytes(runtime):
    """The bytes that the plan moves within the arena in one iteration."""
    (entry,) = runtime.guide.entries
    moves = [move for each in runtime.plan.moves.values() for move in each]
    return sum(entry.trace.tensors[move.tensor_id].nbytes for move in moves)


def test_gradients_from_the_step_before_wait_for_no_copy_and_nothing_is_moved_for_long():
    """They are in the way of parameters that come back, while copies out of others are still under way. The last eight
    steps are judged together, when no trial of another plan is left: no step that happens to go well stands for all."""
    with Runtime("sim:p100", memory_budget="800MiB", policy="auto") as runtime:
        layers = [nn.Linear(2048, 2048) for _ in range(12)]
        optimizer = Adam([p for layer in layers for p in layer.parameters()])
        for step in range(44):
            if step == 36:
                before = runtime.stats()
            with runtime.iteration():
                x = runtime.tensor(None, shape=(2048, 2048))
                for layer in layers:
                    x = relu(layer(x))
                loss = x.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        after = runtime.stats().since(before)
        assert after.swapped_out_bytes > 0
        assert after.seconds < 1.02 * 8 * runtime.plan.predicted_seconds
        assert after.moved_bytes - 8 * planned_bytes(runtime) < 0.03 * runtime.stats().budget_bytes


@pytest.mark.slow
def test_nothing_waits_for_a_copy_out_of_the_step_before_that_has_its_address():
    def trained(policy, budget, steps):
        with Runtime("sim:p100", memory_budget=budget, policy=policy) as runtime:
            layers = [nn.Linear(2048, 2048) for _ in range(10)]
            optimizer = SGD([p for layer in layers for p in layer.parameters()], lr=0.1, momentum=0.9)
            for _ in range(steps):
                before = runtime.stats()
                with runtime.iteration():
                    optimizer.zero_grad()
                    x = runtime.tensor(None, shape=(4096, 2048))
                    for layer in layers:
                        x = relu(layer(x))
                    x = x.sum()
                    x.backward()
                    optimizer.step()
            return runtime.stats().since(before), runtime

    peak = trained("none", 1 << 40, 2)[1].stats().peak_bytes
    last, runtime = trained("auto", int(0.6 * peak), 20)
    assert last.seconds < 1.01 * runtime.plan.predicted_seconds
    assert last.moved_bytes - planned_bytes(runtime) < 1 << 20


def test_gradients_that_go_before_the_first_call_of_the_next_step_are_not_moved():
    with Runtime("sim:p100", memory_budget="800MiB", policy="auto") as runtime:
        layers = [nn.Linear(2048, 2048) for _ in range(12)]
        optimizer = Adam([p for layer in layers for p in layer.parameters()])
        for _ in range(12):
            before = runtime.stats()
            with runtime.iteration():
                optimizer.zero_grad()
                x = runtime.tensor(None, shape=(2048, 2048))
                for layer in layers:
                    x = relu(layer(x))
                x = x.sum()
                x.backward()
                optimizer.step()
        after = runtime.stats().since(before)
        assert after.swapped_out_bytes > 0
        assert after.moved_bytes == 0  # 201 MB of them, were they packed like all that survives
        assert after.seconds == pytest.approx(runtime.plan.predicted_seconds, rel=0.001)
