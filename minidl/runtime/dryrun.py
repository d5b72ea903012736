"""Runs a training step on shapes alone, to count the memory that it needs unmanaged. Computes and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minidl.context import activate
from minidl.executor import Executor
from minidl.memory.ledger import Demand, Ledger
from minidl.memory.tracker import Tracker
from minidl.meta import block_bytes
from minidl.parts.slicing.slicer import Slicer
from minidl.runtime.ranked import silent
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.runtime import Runtime


def dry_run(runtime: Runtime, step: Callable[[], Any]) -> Demand:
    """Run a step on shapes alone and return its demand, as ``Runtime.dry_run`` says."""
    live = runtime.memory.live()
    kept = [(s, s.grad, s.last_access) for s in live]
    counters = dict(runtime.counters)
    tracker = Tracker()
    ledger = Ledger(tracker, sum(block_bytes(s.nbytes) for s in live))
    for storage in live:
        if storage.grad is not None:
            storage.grad = Tensor(ledger.stand_in(storage.grad.storage))
    executor = Executor(runtime.device.dry_twin(), ledger, tracker, deterministic=runtime.executor.deterministic,
                        fuses=runtime.executor.fuses, keeps_outputs=runtime.executor.keeps_outputs,
                        stands_for=(runtime.memory,))
    # The dry run shares the runtime's sharder, which holds no calls. A slicer holds calls, so it gets its own.
    executor.part_keepers = tuple([
        Slicer(executor, keeper.count, silent(keeper.ranks)) if isinstance(keeper, Slicer) else keeper
        for keeper in runtime.executor.part_keepers])
    executor.issued = runtime.executor.issued  # earlier writes in place are earlier than its calls
    try:
        with activate(executor):
            step()
            _flush(executor)
            reads_values = executor.first_read < executor.issued
            if any(storage.grad is not None and grad is None for storage, grad, *_ in kept):
                ledger.calls = 0  # those of one step
                step()
                _flush(executor)
    finally:
        runtime.counters = counters
        for storage, grad, last in kept:
            storage.grad, storage.last_access = grad, last
    return ledger.demand(reads_values=reads_values)


def _flush(executor: Executor) -> None:
    for keeper in executor.part_keepers:
        keeper.flush()
