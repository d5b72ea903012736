"""Runs a training step on shapes alone, to count the memory that it needs unmanaged. Computes and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from minidl.context import activate
from minidl.executor import Executor
from minidl.memory.ledger import Demand, Ledger
from minidl.memory.storage import Storage
from minidl.memory.tracker import Tracker
from minidl.meta import block_bytes
from minidl.parts.slicing.logical import Logical
from minidl.parts.slicing.slicer import Slicer
from minidl.runtime.ranked import silent
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from minidl.runtime import Runtime


def dry_run(runtime: Runtime, step: Callable[[], Any]) -> Demand:
    """Run a step once or twice on shapes alone, and return its demand; ``Runtime.dry_run`` has the conditions."""
    live = runtime.memory.live()
    kept = [(s, s.grad, s.access_count, s.first_access, s.last_access) for s in live]
    counters = dict(runtime.counters)
    tracker = Tracker()
    ledger = Ledger(tracker, sum(block_bytes(s.nbytes) for s in live))
    for storage in live:
        if storage.grad is not None:
            storage.grad = Tensor(_stand_in(ledger, storage.grad.storage))
    executor = Executor(runtime.device.dry_twin(), ledger, tracker, deterministic=runtime.executor.deterministic,
                        fuses=runtime.executor.fuses, keeps_outputs=runtime.executor.keeps_outputs,
                        stands_for=(runtime.memory,))
    executor.part_keepers = runtime.executor.part_keepers
    executor.issued = runtime.executor.issued  # earlier writes in place are earlier than its calls
    try:
        with ExitStack() as lent, activate(executor):
            for keeper in executor.part_keepers:
                if isinstance(keeper, Slicer):
                    lent.enter_context(keeper.lent_to(executor, silent(keeper.ranks)))
            step()
            _flush(executor)
            reads_values = executor.first_read < executor.issued
            if any(storage.grad is not None and grad is None for storage, grad, *_ in kept):
                ledger.calls = 0  # those of one step
                step()
                _flush(executor)
    finally:
        runtime.counters = counters
        for storage, grad, count, first, last in kept:
            storage.grad = grad
            storage.access_count, storage.first_access, storage.last_access = count, first, last
    return ledger.demand(reads_values=reads_values)


def _stand_in(ledger: Ledger, gradient: Storage) -> Storage:
    """Return a leaf that stands for a gradient in the dry run; of a divided gradient, for its parts."""
    if not isinstance(gradient, Logical):
        return ledger.stand_in(gradient)
    made = gradient.like()
    for at in range(len(gradient.parts)):
        made.put_part(at, ledger.stand_in(gradient.part(at)))
    return made


def _flush(executor: Executor) -> None:
    for keeper in executor.part_keepers:
        keeper.flush()
