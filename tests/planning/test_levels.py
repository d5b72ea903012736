"""Bytes in use by step, and where swap-ins start among them: blocks of steps give what a walk step by step gives."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minidl.planning import levels, timing
from minidl.planning.levels import BLOCK
from minidl.planning.schedule import NO_NOTES
from minidl.planning.timing import Room
from minidl.planning.walk import StepArrays, SwapIns

STEPS = 3 * BLOCK + 5  # stretches within a block, over whole ones, and to the end of one that is not full


@dataclass
class Sizes:
    """What ``place`` reads of a problem."""

    size: np.ndarray
    in_seconds: np.ndarray
    disk_in_seconds: np.ndarray


@given(st.integers(0, 10_000))
def test_reach_and_lift_are_those_of_single_steps(seed):
    rng = np.random.default_rng(seed)
    plain, most = rng.integers(0, 40, STEPS), rng.integers(30, 80)
    level = plain.copy()
    top, added = levels.tops(level), np.zeros(STEPS // BLOCK + 1, np.int64)
    for _ in range(12):
        begin, end = sorted(rng.integers(0, STEPS + 1, 2))
        by = rng.integers(0, 10)
        above = [s for s in range(begin, end) if plain[s] > most]
        assert levels.reach(level, top, added, begin, end, most) == (above[-1] + 1 if above else begin)
        levels.lift(level, top, added, begin, end, by)
        plain[begin:end] += by
    levels.settle(level, added)
    assert (level == plain).all()


def step_by_step(room, steps, starts, back, sizes):
    """``timing.place`` as its docstring has it: from the use on back, a step at a time."""
    free, wanted, found = starts[-1], [], []
    for t, use in zip(back.tensor[::-1], back.use[::-1], strict=True):
        free = min(starts[use], free) - sizes.in_seconds[t] * (1.0 + room.slack)
        wanted.insert(0, free)
    for t, use, left, begin in zip(back.tensor, back.use, back.left, wanted, strict=True):
        best = s = use
        while s - 1 > left and steps.during[s - 1] + sizes.size[t] <= room.device_bytes:
            s -= 1
            if s == 0 or steps.group[s] != steps.group[s - 1]:
                best = s
                if starts[s] <= begin:
                    break
        steps.during[best:use] += sizes.size[t]
        found.append(best)
    return found


@given(st.data())
def test_swap_ins_start_where_a_walk_from_their_uses_back_ends(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    count, tensors = data.draw(st.integers(1, STEPS)), data.draw(st.integers(1, 40))
    group = np.cumsum(rng.random(count) < 0.8)
    steps = StepArrays(group, group, rng.integers(0, 20, count))
    starts = np.concatenate([[0.0], np.cumsum(rng.integers(0, 3, count).astype(float))])
    use = np.sort(rng.integers(0, count, tensors))
    left = np.array([rng.integers(-1, max(u, 1)) for u in use]).clip(max=use - 1)
    sizes = Sizes(rng.integers(0, 6, tensors), rng.integers(0, 8, tensors).astype(float), np.zeros(tensors))
    back = SwapIns(np.arange(tensors), use, left, np.arange(tensors), np.arange(tensors), np.zeros(tensors, int),
                   np.zeros(tensors, bool))
    room = Room(int(rng.integers(10, 40)), 0, 0.0)
    alike, begins = StepArrays(group, group, steps.during.copy()), np.full(tensors, -1)
    expected = step_by_step(room, alike, starts, back, sizes)
    timing.place(sizes, room, steps, starts, back, begins, NO_NOTES)
    assert back.start.tolist() == expected and (steps.during == alike.during).all()
    assert begins.tolist() == [group[s] if s < u else -1 for s, u in zip(expected, use, strict=True)]
