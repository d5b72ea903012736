"""Planned addresses: no two residencies share a byte at the same step, and the engine keeps to them."""

from functools import partial

import numpy as np
import pytest

from bench.support.steps import unmanaged_step
from bench.support.strips import GRID, cut
from minidl import Runtime
from minidl.lab.training_step import training_step
from minidl.plan.costs import Costs, Limits
from minidl.planning.expansion import expand
from minidl.planning.packing import NO_ADDRESS, SMALL, addresses, residencies
from minidl.planning.packing.strip import Strip, check, most_live, strip
from minidl.planning.problem import DROP, ENDLESS, SWAP, problem
from minidl.planning.schedule import NO_NOTES
from minidl.planning.timing import Room
from minidl.policies.auto.addresses import NOTES, Openings
from minidl.policies.auto.addresses import addresses as plan_addresses
from minidl.policies.auto.policy import SLACK, Auto

COSTS = Costs(1 / 12.4e9, 1 / 12.4e9, 1e-5)


def pack(notes, size, room, *, born_before=(), outlives=(), successor=None):
    notes, size = np.array(notes, np.int64), np.array(size, np.int64)
    flags = np.zeros((2, len(size)), np.bool_)
    flags[0, list(born_before)] = True
    flags[1, list(outlives)] = True
    steps = int(notes[:, 1:3].max()) + 1
    offsets, left_out, *_ = addresses(notes, steps, size, born_before=flags[0], outlives=flags[1], room=room,
                                  successor=np.array(successor or [-1] * len(size)))
    return offsets.tolist(), left_out


def test_residencies_that_never_meet_share_an_address():
    # steps 0-1, 2-3 and 1-2: the third meets both others
    assert pack([(0, 0, 1, -1), (1, 2, 3, -1), (2, 1, 2, -1)], [100, 100, 50], 150) == ([0, 0, 100], 0)


def test_what_finds_no_room_gets_no_address():
    offsets, left_out = pack([(0, 0, 3, -1), (1, 1, 2, -1)], [100, 60], 150)
    assert sorted(offsets) == [NO_ADDRESS, 0] and left_out > 0


def test_what_is_written_over_something_lies_where_that_lay():
    # tensor 1 takes over the bytes of tensor 0 at step 2; tensor 2 meets both
    offsets, _ = pack([(0, 0, 1, -1), (1, 2, 4, 0), (2, 1, 3, -1)], [80, 80, 90], 170)
    assert offsets[0] == offsets[1]


def test_what_is_copied_out_past_the_end_lies_where_it_lay_until_it_has_landed():
    # 0 and 1 are made at steps 2 and 3 and copied out until steps 0 and 1 of the next iteration, 2 and 4 meet them
    # there, 3 and 4 when they are made.
    notes = [(0, 2, -2, -1), (1, 3, -3, -1), (2, 0, 1, -1), (3, 2, 3, -1), (4, 1, 2, -1)]
    size = [30, 20, 50, 40, 35]
    offsets, left_out = pack(notes, size, 140, born_before=(2,))
    assert left_out == 0
    steps = [{2, 3, 0}, {3, 0, 1}, {0, 1}, {2, 3}, {1, 2}]
    for n in range(5):
        for m in range(n):
            if steps[n] & steps[m]:
                assert offsets[n] + size[n] <= offsets[m] or offsets[m] + size[m] <= offsets[n], (n, m)


@pytest.mark.parametrize(("notes", "size", "room", "successor"), [
    # 0 and 1 are copied out until steps 1 and 0 of the next iteration. Were 1, made first, below 0, then 0 would divide
    # what 2 and 3 need at step 1.
    ([(0, 4, -3, -1), (1, 3, -2, -1), (2, 1, 1, -1), (3, 1, 2, -1)], [2, 3, 4, 4], 10, []),
    # 1 replaces 0; 2 and 3 are copied out: the longest-lived lowest, at the top, and the latest copied at the top.
    ([(0, 0, 1, -1), (1, 3, -1, -1), (2, 5, -4, -1), (3, 3, -3, -1), (4, 0, 3, -1), (5, 2, 2, -1)],
     [1, 1, 2, 1, 2, 2], 6, [1, -1, -1, -1, -1, -1]),
    ([(0, 0, 0, -1), (1, 4, -1, -1), (2, 4, -4, -1), (3, 2, -3, -1), (4, 3, 3, -1)],
     [1, 1, 1, 1, 4], 5, [1, -1, -1, -1, -1]),
    ([(0, 0, 0, -1), (1, 4, -1, -1), (2, 5, -4, -1), (3, 4, -2, -1), (4, 4, 5, -1), (5, 2, 3, -1), (6, 2, 2, -1)],
     [2, 2, 3, 5, 1, 4, 4], 11, [1, -1, -1, -1, -1, -1, -1]),
], ids=["until low", "life low", "life high", "until high"])
def test_what_is_copied_out_past_the_end_is_stacked_where_it_divides_no_needed_memory(notes, size, room, successor):
    offsets, left_out = pack(notes, [256 * each for each in size], 256 * room, born_before=(0,) if successor else (),
                             successor=successor)
    assert left_out == 0 and min(offsets) >= 0


def test_what_is_made_in_the_stead_of_something_lies_where_that_lay_and_others_in_between():
    # 0 and 1 are gone after step 0 and made again as 2 and 3; 4 comes in between, 5 stays on the device all the time
    notes = [(0, 0, 0, -1), (1, 0, 0, -1), (5, 0, -1, -1), (4, 1, 2, -1), (2, 3, -1, -1), (3, 4, -1, -1)]
    offsets, left_out = pack(notes, [20, 30, 20, 30, 50, 99], 50, born_before=(0, 1, 5), outlives=(5,),
                             successor=[2, 3, -1, -1, -1, -1])
    assert left_out == 0
    assert offsets == [0, 20, NO_ADDRESS, 0, 0, 20]


def test_what_outlives_the_iteration_lies_elsewhere_and_what_came_with_it_lies_lowest():
    notes = [(0, 0, -1, -1), (1, 0, 3, -1), (2, 1, 2, -1)]
    offsets, _ = pack(notes, [10, 20, 90], 120, born_before=(0, 1), outlives=(0,))
    assert offsets == [NO_ADDRESS, 0, 20]


@pytest.mark.parametrize(("effort", "least", "most"), [(0, 0, 20), (1, 39, 40)])
def test_another_packing_is_looked_for_when_the_first_one_does_not_fit(effort, least, most):
    found = 0
    for seed in range(40):
        that = cut(seed, 40, fill=0.96)
        notes = np.stack([np.arange(len(that.size)), that.first, that.last, np.full(len(that.size), -1)], axis=1)
        nothing = np.zeros(len(that.size), np.bool_)
        _, left_out, *_ = addresses(notes, GRID, that.size, born_before=nothing, outlives=nothing,
                                successor=np.full(len(that.size), -1), room=that.room,
                                effort=effort)
        found += not left_out
    assert least <= found <= most


@pytest.fixture(scope="module")
def trace():
    with Runtime(device="sim:p100", policy="none", memory_budget=1 << 50) as runtime:
        step = training_step("resnet18", 64)
        for _ in range(3):
            with runtime.iteration():
                step()
                measured = runtime.trace()
    return measured


@pytest.mark.parametrize("seed", range(6))
def test_no_two_residencies_share_a_byte_at_the_same_step(trace, seed):
    from minidl.planning.compiled import simulate

    facts = problem(trace, COSTS)
    rng = np.random.default_rng(seed)
    mode = rng.integers(0, 3, len(facts.gap_call))
    mode[(mode == DROP) & ~facts.can_drop] = SWAP
    notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
    notes = notes[:simulate(facts, Room(1 << 34, 1 << 60, SLACK), mode, mode.copy(), notes).noted]
    assert (notes[:, 0] >= len(facts.ids)).any() and notes[notes[:, 0] >= len(facts.ids), 3].max() == -1
    before = facts.produced < 0
    outlives = before.copy()
    outlives[facts.free_idx] = False
    steps = int(notes[:, 1:3].max()) + 1
    room = int(facts.size.sum())
    sizes = np.append(facts.size, facts.algorithm_bytes)
    offsets, left_out, *_ = addresses(notes, steps, sizes, born_before=before, outlives=outlives, room=room,
                                  successor=np.full(len(before), -1))
    assert left_out == 0
    workspaces = notes[:, 0] >= len(facts.ids)
    assert (offsets[workspaces] == NO_ADDRESS).all()
    notes, offsets = notes[~workspaces], offsets[~workspaces]
    tensor = np.where(notes[:, 0] < 0, -1 - notes[:, 0], notes[:, 0])
    last = np.where(notes[:, 2] < 0, steps - 1, notes[:, 2])
    size = facts.size[tensor]
    placed = np.nonzero(offsets != NO_ADDRESS)[0]
    assert len(placed) > 50
    for n in placed:
        meets = placed[(notes[placed, 1] <= last[n]) & (notes[n, 1] <= last[placed]) & (placed != n)]
        apart = (offsets[meets] + size[meets] <= offsets[n]) | (offsets[n] + size[n] <= offsets[meets])
        assert apart.all()
        assert offsets[n] >= 0 and offsets[n] + size[n] <= room
    unplaced = (offsets == NO_ADDRESS) & ~before[tensor]
    assert (size[unplaced] < SMALL * room).all()


def test_what_is_moved_is_here_and_goes_where_nothing_is():
    """In slices, with gaps by lot, no more memory than all need at once, and little work: some find no place for all of
    their time."""
    from minidl.planning.compiled import simulate

    trace = unmanaged_step(partial(training_step, "resnet18", 64), slices=5).trace
    facts, moved = problem(trace, COSTS), 0
    of_call: dict[int, set[int]] = {}
    for access in trace.accesses:
        of_call.setdefault(access.call, set()).add(access.tensor_id)
    for seed in range(3):
        mode = np.random.default_rng(seed).choice([0] * 9 + [DROP, SWAP], len(facts.gap_call))
        mode[(mode == DROP) & ~facts.can_drop] = SWAP
        notes = np.zeros((NOTES * len(trace.calls) + len(facts.ids), 4), np.int64)
        notes = notes[:simulate(facts, Room(1 << 34, 1 << 60, SLACK), mode, mode.copy(), notes).noted]
        notes = notes[notes[:, 0] < len(facts.ids)]
        steps = expand(facts, mode, mode.copy(), NO_NOTES)[0]
        tensor = np.where(notes[:, 0] < 0, -1 - notes[:, 0], notes[:, 0])
        last = np.where(notes[:, 2] < 0, len(steps.call) - 1, notes[:, 2])
        room = most_live(strip(notes[:, 1], last, facts.size[tensor], 0))
        openings = Openings(facts, notes, len(steps.call))
        _, found = plan_addresses(facts, mode, notes, Limits(room, 1 << 60), 0.01, openings)
        begins = dict(enumerate(found.offsets.tolist()))
        parts = {n: [(int(notes[n, 1]), offset)] for n, offset in begins.items() if offset >= 0}
        for n, step, offset in found.moves:
            opening = openings.call_before(step)
            assert steps.group[step - 1] == opening < steps.group[step]
            accessed = [s for s in range(notes[n, 1], last[n] + 1) if steps.call[s] == steps.group[s]
                        and int(facts.ids[tensor[n]]) in of_call[int(steps.call[s])]]
            assert accessed[0] < step <= accessed[-1]
            parts[n].append((step, offset))
        below = int(facts.size[np.setdiff1d(np.nonzero(facts.produced < 0)[0], facts.free_idx)].sum())
        below -= int(facts.size[np.unique(facts.gap_tensor[(facts.gap_head >= 0) & (mode == SWAP)])].sum())
        rows = []
        for n, its in parts.items():
            ends = [*(step - 1 for step, _ in its[1:]), int(last[n])]
            rows += [(step, end, int(facts.size[tensor[n]]), offset - (below if step > notes[n, 1] else 0))
                     for (step, offset), end in zip(its, ends, strict=True)]
        first, end, size, offset = np.array(rows).T
        check(Strip(first, end, size, room - below, offset), offset)
        moved += len(found.moves)
    assert moved


def test_what_outlives_the_iteration_may_be_moved_and_what_is_there_at_its_start_may_not(monkeypatch):
    """Only what has no room is moved: the three tensors need 30 bytes at once, and there are 20."""
    asked = []
    monkeypatch.setattr(residencies, "routes", lambda strip, offset, cuts, effort: asked.extend(
        cuts(n).tolist() for n in range(len(strip.size))) or {})
    notes = np.array([(0, 0, 3, -1), (1, 0, 3, -1), (2, 1, -1, -1)])
    born_before, outlives = np.array([True, False, False]), np.array([False, False, True])
    addresses(notes, 4, np.array([10, 10, 10]), born_before=born_before, outlives=outlives, successor=np.full(3, -1),
              room=20, movable=lambda note: np.array([1 + note]))
    assert asked == [[], [2], [3]]


def test_a_tensor_may_be_moved_until_the_call_that_writes_with_it_and_makes_nothing(trace):
    from minidl.planning.compiled import simulate

    facts, notes = problem(trace, COSTS), np.zeros((NOTES * len(trace.calls), 4), np.int64)
    mode = np.zeros(len(facts.gap_call), np.int64)
    mode[np.nonzero(facts.can_drop)[0][::4]] = DROP
    done = simulate(facts, Room(1 << 34, 1 << 60, SLACK), mode, mode.copy(), notes)
    steps = expand(facts, mode, mode.copy(), NO_NOTES)[0]
    assert done.steps == len(steps.call) > len(trace.calls)
    openings = Openings(facts, notes[:done.noted], done.steps)
    position = {call: s for s, call in enumerate(steps.call.tolist()) if steps.group[s] == call}
    gradients = {tensor: call for call, each in enumerate(trace.calls) if each.writes and not each.outputs
                 for tensor in each.inputs if not trace.tensors[tensor].persistent and trace.uses[tensor][-1] == call}
    rows = {int(facts.ids[t]): row for row, t in enumerate(notes[:done.noted, 0].tolist()) if 0 <= t < len(facts.ids)}
    assert len(gradients) > 50
    for tensor, call in gradients.items():
        assert openings.of(rows[tensor])[-1] == position[call]


@pytest.mark.slow
def test_a_settled_plan_with_addresses_moves_nothing():
    with Runtime(device="sim:p100", policy=Auto(rounds=4)) as runtime:
        step = training_step("resnet18", 2000)
        for _ in range(16):
            before = runtime.stats()
            with runtime.iteration():
                step()
            runtime.check()
        last = runtime.stats().since(before)
        (entry,) = runtime.guide.entries
    assert entry.plan.offsets and last.swapped_out_bytes + last.recomputed_bytes > 5e9
    assert last.moved_bytes < 0.01 * (last.swapped_out_bytes + last.recomputed_bytes)


def test_tensors_leave_a_hole_for_a_workspace_where_there_can_be_one():
    # Alone, the largest tensor lies lowest and the second above it, while a smaller one is below neither: without the
    # workspace of step 1 nothing keeps the 30 bytes together that tensor 2 splits.
    notes = np.array([(0, 0, 2, -1), (1, 0, 0, -1), (2, 0, 2, -1), (3, 1, 1, -1)])
    size = np.array([40, 30, 20, 60])
    nothing = np.zeros(3, np.bool_)
    offsets, left_out, *_ = addresses(notes, 3, size, born_before=nothing, outlives=nothing, room=120,
                                  successor=np.full(len(nothing), -1))
    assert left_out == 0 and offsets[3] == NO_ADDRESS
    free = np.ones(120, np.bool_)
    for tensor in (0, 2):  # those that are there at step 1
        free[offsets[tensor]:offsets[tensor] + size[tensor]] = False
    edges = np.flatnonzero(np.diff(np.concatenate([[0], free, [0]])))
    assert (edges[1::2] - edges[::2]).max() >= 60
    # Where it is too much, the tensors have their addresses all the same, and the hole that is left is told.
    offsets, left_out, _, holes = addresses(notes, 3, np.array([40, 30, 20, 70]), born_before=nothing, outlives=nothing,
                                            room=120, successor=np.full(len(nothing), -1))
    assert left_out == 0 and (offsets[:3] >= 0).all()
    assert 30 <= holes[3] <= 60 and (holes[:3] == ENDLESS).all()
