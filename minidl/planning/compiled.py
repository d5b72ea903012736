"""Compiles the simulation of a planned iteration (``schedule.weighed``) with Numba. Imported when a plan is searched.
"""

from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.extending import register_jitable

from minidl.outside.numba_cache import njit
from minidl.planning import expansion, levels, lineages, problem, schedule, timing, walk

Function = Callable[..., Any]
Weighed = Callable[[problem.Problem, timing.Room, problem.Array, problem.Array, problem.Array, schedule.Prices, float],
                   schedule.Outcome]
MODULES = (problem, walk, lineages, expansion, levels, timing, schedule)  # the modules of the compiled function
PARTS: tuple[Function, ...] = (expansion.expand, timing.beginnings, timing.over, levels.tops,
                               timing._openings, timing._by_start, timing.place, timing._pass, timing.run)
# The loops over the steps of the simulation, and the functions that run at every step. Reference counting is off for
# them: each receives groups of forty arrays, and counting their references takes fifty times as long as the rest.
# They allocate nothing.
PIECES: tuple[Function, ...] = (
    expansion._start, expansion._arrive, lineages.end_note, lineages.can_replay,
    lineages.find_due, lineages.free_sources, lineages.drop_leftovers, lineages.find_replays, expansion._bring_back,
    expansion._find_endings, expansion._take_step, expansion._after_replay, expansion._copy, expansion._forget_copy,
    expansion._after_call, expansion._evict, levels.reach, levels.lift,
    levels.settle, timing._lost, expansion._in_program_order, expansion._take_all, timing._take_steps)


def forget_older(compiled: Any, modules: tuple[ModuleType, ...]) -> None:
    """Delete ``compiled``'s machine code from Numba's cache if it is older than one of these modules' sources.
    Numba itself checks only the file of the function, not the files of the functions that it calls."""
    newest = max(Path(module.__file__ or "").stat().st_mtime for module in modules)
    code = compiled.py_func.__code__
    for index in Path(compiled.stats.cache_path).glob(f"{Path(code.co_filename).stem}.{code.co_name}-*.nbi"):
        with suppress(OSError):  # another process was first, or the folder is read-only
            if index.stat().st_mtime < newest:
                index.unlink()


for part in PARTS:
    register_jitable(part)  # compiled code may call it; Python code calls it as a plain function
for part in PIECES:
    register_jitable(_nrt=False)(part)

weighed: Weighed = njit(cache=True, nogil=True)(schedule.weighed)
forget_older(weighed, MODULES)


def simulate(facts: problem.Problem, room: timing.Room, mode: problem.Array, prefetch_at: problem.Array,
             notes: problem.Array) -> schedule.Outcome:
    """Simulate one iteration, compiled; arguments and result are those of ``schedule.simulate``."""
    return weighed(facts, room, mode, prefetch_at, notes, schedule.FREE, inf)
