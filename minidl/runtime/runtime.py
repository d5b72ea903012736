"""``Runtime``, the one object that a user makes: a device, a budget and a policy.

    with Runtime(device="sim:p100", memory_budget="8GiB", policy="auto") as runtime:
        model, optimizer = ...
        for images, labels in batches:
            with runtime.iteration():
                loss = ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike, fspath
from threading import get_ident
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by name from here on
import numpy as np

from minidl import device as devices
from minidl import placements, policies
from minidl.context import activate, current
from minidl.device.precision import DEFAULT, precision_of
from minidl.device.spill import Spill
from minidl.dispatch import apply
from minidl.errors import UserError
from minidl.executor import Executor
from minidl.memory.guided.execution import attach
from minidl.memory.guided.follower import PlanFollower
from minidl.memory.guided.sequence import Followed
from minidl.memory.hooks import ALONE
from minidl.memory.ledger import Demand
from minidl.memory.manager import Manager
from minidl.memory.switches import ALL_ON, Switches
from minidl.memory.tracker import Tracker
from minidl.meta import DType, Shape, float32, meta
from minidl.ops.arguments import sizes_at_least_0
from minidl.ops.update import UPLOAD
from minidl.outside.shown import Shown
from minidl.outside.units import format_bytes, parse_bytes
from minidl.parts.sharding.sharder import Sharder
from minidl.parts.slicing.slicer import Slicer
from minidl.placements import Placement
from minidl.plan.plan import Plan
from minidl.plan.policy import Policy
from minidl.plan.trace import Trace
from minidl.ranks import Ranks
from minidl.runtime import upload
from minidl.runtime.dryrun import dry_run
from minidl.runtime.ranked import consensus_of, host_update_of, slices_of
from minidl.runtime.stats import Stats
from minidl.tensor import Tensor


class Runtime(Shown):
    """A device, a memory budget and a policy, for all calls inside its ``with``.

    device         "cpu", "cpu:FILE.json", "cpu:virtual", "cuda[:NUMBER]", "sim:PROFILE", "sim:FILE.json" or a Device
    memory_budget  bytes of device memory, as a number or "16GiB"; the device's capacity by default
    host_memory    bytes of host memory for swapped tensors; the device profile's by default
    spill          a folder for a file of ``spill_bytes``, which holds what does not fit into host memory; or a Spill
    policy         a name of ``minidl.policies.names()`` or a Policy
    placement      the choice of addresses in device memory: a name of ``minidl.placements.names()``, or a Placement
                   that no other runtime uses
    precision      "fp32", "tf32" or "bf16": the precision in which layers compute, see ``device.precision``. A Device
                   that is passed in keeps its own settings; only the layers follow this one
    attention      "auto", "composed" or "fused", see ``Device.attention``; by default the device's own
    seed           a number that determines all random numbers
    poisoned       fill the CPU arena, and all freed bytes, with NaN
    deterministic  never mix algorithms that give different bits
    switches       features to turn off, to measure their effect
    slices         number of slices into which ``tensor`` cuts a batch along its first dimension, so that no operation
                   needs the whole batch at once; 1: none
    shard_bytes    parameters of more bytes, and of two dimensions or more, are cut into shards along the first, so that
                   few operations and no update need the whole parameter at once; by default none is
    host_update    True: optimizers keep their states in host memory and update parameters there (``optim.on_host``)
    ranks          this rank among those that train together (``minidl.ranks``), each of which makes a Runtime. Each
                   holds an equal number of the slices, by default one. All use the smallest budget and host memory

    Raises UserError for an unknown name, too small a size, or options that the device, ranks or others exclude."""

    def __init__(self, device: str | devices.Device = "cpu", *, memory_budget: int | str | None = None,
                 host_memory: int | str | None = None, spill: str | PathLike[str] | Spill | None = None,
                 spill_bytes: int | str | None = None, policy: str | Policy = "auto",
                 placement: str | Placement = placements.DEFAULT, precision: str = DEFAULT,
                 attention: str | None = None, seed: int = 0, poisoned: bool = False, deterministic: bool = True,
                 switches: Switches = ALL_ON, slices: int = 1, shard_bytes: int | str | None = None,
                 host_update: bool = False, ranks: Ranks | None = None) -> None:
        self.precision = precision_of(precision)
        self.device = device if not isinstance(device, str) else devices.create(
            device, poisoned=poisoned, precision=precision, local_rank=ranks.local if ranks is not None else 0)
        self.host_update = host_update_of(self.device, ranks, wanted=host_update)
        if attention is not None:
            self.device.attention = attention
        self.policy = policies.create(policy)
        budget = _bytes(memory_budget, self.device.profile.memory_bytes, "memory budget")
        host = _bytes(host_memory, self.device.profile.host_memory_bytes, "host memory", least=0)
        if not isinstance(spill, Spill):
            if (spill is None) != (spill_bytes is None):
                raise UserError("spill and spill_bytes go together: a folder, and the size of a file in it")
            spill = None if spill is None else Spill(fspath(spill), _bytes(spill_bytes, 0, "spill_bytes"))
        self.ranks = ranks = ranks if ranks is not None and ranks.count > 1 else None
        self.slices = slices = slices_of(ranks, self.device, slices)
        self._consensus = consensus_of(ranks, self.device)
        budget, host = self._consensus.least(budget, host)
        self.placement = placements.create(placement) if isinstance(placement, str) else placement
        if not self.placement.addresses and self.device.simulated_twin() is None:
            raise UserError(f"placement {self.placement.name!r} is for simulated devices: bytes of {self.device.name} "
                            "have addresses")
        self.tracker = Tracker()
        self.memory = Manager(self.device, self.policy, self.tracker, budget, host, switches, self.placement, spill)
        self._follower = attach(self.memory, self._consensus) if self.policy.plans else None
        self.executor = Executor(self.device, self.memory, self.tracker, deterministic=deterministic,
                                 fuses=switches.fused, keeps_outputs=self.policy.regime.keeps_outputs)
        if shard_bytes is not None:  # first: a call on shards and slices runs by shard, and each part by slice
            self.executor.part_keepers = (Sharder(_bytes(shard_bytes, 0, "shard_bytes")),)
        if slices > 1:
            self.executor.part_keepers += (Slicer(self.executor, slices, self._consensus),)
        self.keeps_trace = False  # True: ``iteration`` stores its trace in ``last_trace``
        self.last_trace: Trace | None = None
        self.seed = seed
        self.counters: dict[str, int] = {}  # numbers that a step advances; a dry run restores them
        self._contexts: list[Any] = []

    def facts(self) -> dict[str, str]:
        """Return the device, the policy and the bytes in use, for ``repr``."""
        memory = self.memory
        return {"device": self.device.name, "policy": self.policy.name, "iterations": str(memory.tracker.iteration),
                "budget": format_bytes(self.budget_bytes), "in use": format_bytes(memory.arena.used_bytes),
                "peak": format_bytes(memory.arena.peak_bytes), "host": format_bytes(self.host_bytes),
                "host in use": format_bytes(memory.allocator.host.used_bytes)}

    @property
    def budget_bytes(self) -> int:
        """Device bytes that tensors and workspaces may take: the memory budget less what the device itself uses."""
        return self.memory.arena.capacity

    @property
    def host_bytes(self) -> int:
        """Host bytes that swapped tensors may take."""
        return self.memory.allocator.host.capacity

    @property
    def guide(self) -> PlanFollower | None:
        """The follower of plans, which compares iterations with earlier ones; None if no plans are made."""
        return self._follower

    def stay_on_demand(self) -> None:
        """Make no plans from now on, whatever the policy: memory is managed on demand alone."""
        self._follower = None
        self.memory.attach(ALONE)

    @property
    def plan(self) -> Plan | None:
        """The plan that the current or latest iteration follows; None if its calls match no planned sequence."""
        active = self.guide.active if self.guide is not None else None
        return active.plan if active is not None else None

    def followed(self) -> tuple[Trace, Followed] | None:
        """Return (trace, how it went) of the latest complete iteration that followed a plan; None if there is none."""
        active = self.guide.active if self.guide is not None else None
        return (active.trace, active.last) if active is not None and active.last is not None else None

    def __enter__(self) -> Runtime:
        context = activate(self.executor)
        context.__enter__()
        self._contexts.append(context)
        _runtimes.set((*_runtimes.get(), self))
        return self

    def __exit__(self, error: object, *rest: object) -> None:
        try:
            if error is None and self.executor.thread == get_ident():
                self.executor.finish()
                if len(self._contexts) == 1:
                    self._consensus.end_run()
        finally:
            if self in (inside := list(_runtimes.get())):
                del inside[-1 - inside[::-1].index(self)]
            _runtimes.set(tuple(inside))
            self._contexts.pop().__exit__(None, None, None)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Run one training step. At its end evicted survivors are restored, lineage is cut, and access counts restart.

        Calls since the last iteration (initialization, a validation) become an iteration of their own, so that every
        step has the same calls. So a gradient cannot flow from inside to tensors that were computed before. Raises
        UserError inside the ``with`` of another runtime."""
        self._require_current("iteration()")
        executor = current()
        if executor.tracker.sequence >= executor.tracker.iteration_start:
            executor.end_iteration()
        executor.explicit_iterations = True
        executor.memory.state.hooks.begin_iteration()
        if self.keeps_trace:
            self.device.measure(True)
        try:
            yield
        except BaseException:
            executor.end_iteration(failed=True)
            raise
        else:
            if self.keeps_trace:
                self.last_trace = executor.trace()
            executor.end_iteration()
        finally:
            executor.explicit_iterations = False

    def _require_current(self, method: str) -> None:
        """Raise UserError if another runtime is current, which would receive the calls."""
        if current_runtime() is not self:
            raise UserError(f"{method} of a runtime on {self.device.name} under `with` of another one on "
                            f"{current_runtime().device.name}: enter the former first")

    def next_seed(self) -> int:
        """Return a fresh 63-bit seed, which follows from the runtime's seed and the number of earlier calls alone."""
        count = self.counters["seeds"] = self.counters.get("seeds", 0) + 1
        return int(np.random.SeedSequence([self.seed, count]).generate_state(1, np.uint64)[0] >> 1)

    def tensor(self, data: Any, *, shape: Shape | None = None, dtype: DType | None = None) -> Tensor:
        """Return a leaf with a copy of an array's values (one upload).

        The dtype is the array's unless ``dtype`` is given; lists of Python floats become float32. ``data`` None with a
        shape: the values do not matter. Arrays of other libraries are taken by DLPack or ``__cuda_array_interface__``,
        from a GPU by way of the host. Raises UserError for an unknown dtype and for values that the dtype cannot hold,
        ShapeError if data have another shape than ``shape``.
        """
        self._require_current("tensor()")
        values: np.ndarray | None = None
        if data is None:
            shape, dtype = sizes_at_least_0(shape or ()), dtype or float32
        else:
            array = upload.host_array(data, self.device)
            array, dtype = upload.checked(array, shape, dtype or upload.plain_dtype(data, array))
            shape = array.shape
            if self.device.has_values:  # a copy: the upload runs later, when the caller may have changed its array
                values = array.astype(dtype.name, copy=True)
        for keeper in current().part_keepers:
            if (made := keeper.upload(shape, dtype, values)) is not None:
                return Tensor(made)
        return apply(UPLOAD, shape=shape, dtype=dtype, data=values)

    def dry_run(self, step: Callable[[], Any]) -> Demand:
        """Run one step on shapes alone; return the memory that it needs unmanaged, and its largest operation.

        Nothing is computed, and gradients and counters are restored. The step must not keep tensors. If it leaves
        gradients where there were none, as the first step of a training does, it runs once more, since later steps
        begin with these. Every value that is read is NaN: if the step branches on a value, the result is for one path
        (``Demand.reads_values``).
        """
        return dry_run(self, step)

    def stats(self) -> Stats:
        """Return all counters and gauges."""
        return Stats.of(self.device, self.memory, self.executor.issued)

    def reset_peak(self) -> None:
        """Set the device's ``peak_bytes`` to the bytes in use now."""
        self.memory.arena.reset_peak()

    def trace(self) -> Trace:
        """Return the iteration so far, as plain data. Raises UserError after more than 100,000 calls without an end."""
        return self.executor.trace()

    def check(self) -> None:
        """Raise AssertionError unless the records of blocks, host memory and tensors agree on where bytes are."""
        self.memory.check()


_runtimes: ContextVar[tuple[Runtime, ...]] = ContextVar("runtimes", default=())


def current_runtime() -> Runtime:
    """Return the runtime whose ``with`` is active. Raises UserError if there is none."""
    inside = _runtimes.get()
    if not inside:
        raise UserError("no runtime is active in this thread: put the code under `with minidl.Runtime(...):`")
    return inside[-1]


def parameter(shape: Shape, *, dtype: DType = float32, requires_grad: bool = True, state: bool = False) -> Tensor:
    """Return an uninitialized persistent leaf: a parameter, a buffer or optimizer state; sharded if the runtime shards.
    state: it is an optimizer's state, which ranks may divide. Raises OutOfMemory, ShapeError for a negative size."""
    executor, described = current(), meta(sizes_at_least_0(shape), dtype)
    for keeper in executor.part_keepers:
        if (made := keeper.parameter(described, requires_grad=requires_grad, state=state)) is not None:
            return Tensor(made)
    leaf = Tensor(executor.leaf(described, persistent=True))
    leaf.storage.requires_grad = requires_grad
    return leaf


def _bytes(value: int | str | None, default: int, what: str, *, least: int = 1) -> int:
    nbytes = default if value is None else parse_bytes(value) if isinstance(value, str) else value
    if nbytes < least:
        raise UserError(f"{what} must be at least {least} byte, not {value}")
    return nbytes
