"""Managed and unmanaged training give the same bits: every parameter, buffer, optimizer state, gradient and loss.

Deterministic mode, with NaN where each launch is to write. The unmanaged run is done twice: this tells a
device that does not repeat its results from a manager that changes them.
"""

from collections.abc import Callable
from typing import Any

from bench.gpu_check.setting import RESERVE_BYTES, Record, Setting, Training, kept_bytes
from bench.gpu_check.steps import Network, program
from minidl import policies
from minidl.plan.policy import Policy
from minidl.policies.auto.policy import Auto
from minidl.runtime.stats import Stats

ROUNDS = 1  # plans that ``auto`` tries
POLICIES: dict[str, Callable[[], Policy]] = {
    "auto": lambda: Auto(rounds=ROUNDS), "passive": lambda: policies.create("passive"),
    "capuchin": lambda: policies.create("capuchin"), "recompute": lambda: policies.create("recompute")}
STEPS = {"auto": 5 + 2 * ROUNDS, "passive": 3, "capuchin": 5 + 2 * ROUNDS, "recompute": 3}
SHARE = 0.6  # of what the step needs unmanaged


def measure(setting: Setting, record: Record) -> None:
    """Record for each network and policy which pieces of state differ, and how many bytes were moved meanwhile."""
    for training in setting.sizes.identity:
        for precision in setting.sizes.precisions:
            where = f"{training.name} in {precision}"
            if all(record.known(f"{where}, {name}") for name in POLICIES):
                continue
            with record.one(where):
                _compare(setting, record, training, precision)


def _compare(setting: Setting, record: Record, training: Training, precision: str) -> None:
    where = f"{training.name} in {precision}"
    demand = setting.demand(program(training), precision=precision)
    with setting.open(precision) as device:
        kept = kept_bytes(device)
    ample = int(1.05 * demand.unmanaged_peak_bytes) + RESERVE_BYTES
    unmanaged: dict[int, dict[str, bytes]] = {}

    def reference(steps: int) -> tuple[dict[str, bytes], Stats]:
        state, stats, _ = _train(setting, training, precision, steps, memory_budget=ample)
        return state, stats
    steps = min(STEPS.values())
    unmanaged[steps], stats = reference(steps)
    different = differing(reference(steps)[0], unmanaged[steps])
    if different:
        record.fail(f"{where}: two unmanaged runs differ in {len(different)} pieces of state, as {different[0]}")
        return
    for name, policy in POLICIES.items():
        if record.known(f"{where}, {name}"):
            continue
        if not setting.in_time(record, f"{where}, {name}"):
            continue
        if STEPS[name] not in unmanaged:
            unmanaged[STEPS[name]], _ = reference(STEPS[name])
        state, managed, room = _train(
            setting, training, precision, STEPS[name], policy=policy(), host_memory=stats.peak_bytes,
            memory_budget=max(int(SHARE * stats.peak_bytes), demand.largest_op_bytes) + kept)
        different = differing(state, unmanaged[STEPS[name]])
        record.put(f"{where}, {name}", {"different": different, "pieces": len(state), "budget": room,
                                        "unmanaged peak": stats.peak_bytes, "out": managed.swapped_out_bytes,
                                        "recomputed": managed.recomputed_bytes},
                   f"{where}, {name}: {len(state) - len(different)} of {len(state)} pieces of state are the same; "
                   f"{managed.swapped_out_bytes / 1e6:.0f} MB out, {managed.recomputed_bytes / 1e6:.0f} MB recomputed")
        if different:
            record.fail(f"{where}, {name}: {len(different)} pieces of state differ, as {different[0]}")
        if not managed.swapped_out_bytes + managed.recomputed_bytes:
            record.fail(f"{where}, {name}: nothing was moved, so nothing was shown")


def _train(setting: Setting, training: Training, precision: str, steps: int,
           **options: Any) -> tuple[dict[str, bytes], Stats, int]:
    """Train some steps; return the state, the counters, and the budget in bytes."""
    with setting.runtime(precision=precision, poisoned=True, **options) as runtime:
        network, losses = Network(runtime, training), []
        for _ in range(steps):
            with runtime.iteration():
                losses.append(network.step_and_loss())
        stats = runtime.stats()  # before the state is read, which moves bytes too
        return network.state(losses), stats, runtime.budget_bytes


def differing(state: dict[str, bytes], reference: dict[str, bytes]) -> list[str]:
    """Return the names of the pieces of state that are not the same byte for byte."""
    return sorted(state.keys() ^ reference.keys()) or [n for n, value in reference.items() if state[n] != value]
