"""Saves and restores the state that a training needs to continue bit for bit.

tensors       parameters, buffers (batch norm's statistics) and the optimizer's states
counters      of the runtime: random seeds used, steps done, Adam's t. All random numbers follow from the seed and
              the counters; so does the position in the data, whose order follows from seed and step.
fixed         the arguments that decide the results. They must be equal when the training continues; memory budget
              and policy may differ, because they change no bit.
measured      traces and plans, so that the training can follow its last plan again. They are valid only with the
              same device, policy, budget and host memory; otherwise the policy starts again.
"""

import json
from collections.abc import Mapping
from typing import Any

from minidl.checkpoint.safetensors import CorruptFile
from minidl.checkpoint.store import Checkpoint, listed_in_order
from minidl.errors import UserError
from minidl.nn import Module
from minidl.optim import Optimizer
from minidl.optim.on_host import HostArray, write
from minidl.outside.validation import is_real, is_whole, shown
from minidl.parts.slicing.cuts import is_divided
from minidl.plan.formats import SavedPlan, plan_from_json, plan_to_json
from minidl.plan.plan import Proposal, SavedProposal
from minidl.plan.policy import required_proposal, required_saved
from minidl.plan.trace import Trace
from minidl.plan.trace_format import trace_from_json, trace_to_json
from minidl.policies.saved import misfit
from minidl.runtime import Runtime
from minidl.tensor import Tensor
from minidl.training.trainer import STEPS

STATE = "state.json"
Fixed = Mapping[str, str | int | float | None]


def tensors_of(model: Module, optimizer: Optimizer) -> dict[str, Tensor | HostArray]:
    """Return all tensors that a training step changes, by their names in a checkpoint, for ``Store.save``."""
    named: dict[str, Tensor | HostArray] = {f"model.{name}": tensor for name, tensor in (*model.named_parameters(),
                                                                                         *model.named_buffers())}
    return named | {f"optimizer.{name}": tensor for name, tensor in optimizer.named_states().items()}


def send_rows(tensors: Mapping[str, Tensor | HostArray]) -> None:
    """Send this rank's rows of divided tensors to the rank that writes them by ``Store.save``, in the same order."""
    for name in listed_in_order(tensors):
        tensor = tensors[name]
        if isinstance(tensor, Tensor) and is_divided([tensor.storage]):
            tensor.numpy()


def documents_of(runtime: Runtime, fixed: Fixed) -> dict[str, str]:
    """Return the rest of the training's state as JSON documents, for ``Store.save``."""
    documents = {}
    plans = []
    for number, (trace, kept) in enumerate(_saved_plans(runtime)):
        plans.append(dict(kept.numbers))
        documents[f"trace-{number}.json"] = trace_to_json(trace)
        documents[f"plan-{number}.json"] = plan_to_json(SavedPlan.of(kept.plan, trace))
    state = {"seed": runtime.seed, "counters": runtime.counters, "fixed": fixed, "setting": _setting(runtime),
             "plans": plans}
    return {STATE: json.dumps(state, indent=1) + "\n"} | documents


def _saved_plans(runtime: Runtime) -> list[tuple[Trace, SavedProposal]]:
    """Return, for each known sequence of calls, its trace and the saved form of its plan."""
    guide, policy = runtime.guide, runtime.policy
    return [] if guide is None else [(entry.trace, required_saved(policy, policy.keep(entry.proposal)))
                                     for entry in guide.entries]


def _setting(runtime: Runtime) -> dict[str, str | int]:
    """Return the settings for which plans are made: device, policy, budget and host memory."""
    return {"device": runtime.device.name, "policy": runtime.policy.name, "budget_bytes": runtime.budget_bytes,
            "host_bytes": runtime.host_bytes}


def restore(checkpoint: Checkpoint, runtime: Runtime, model: Module, optimizer: Optimizer, fixed: Fixed) -> None:
    """Restore a training from a checkpoint: one iteration, with an upload for each tensor.

    Raises UserError, before anything is changed, if the checkpoint is not one of this training.
    """
    state = checkpoint.document(STATE)
    where = checkpoint.path / STATE
    counters, plans, was = state.get("counters"), state.get("plans"), state.get("fixed")
    if type(was) is not dict or type(plans) is not list or type(counters) is not dict or not _are_counts(counters):
        raise CorruptFile(where, 0, "expected counters, plans and fixed arguments")
    if counters.get(STEPS, checkpoint.step) != checkpoint.step:
        raise CorruptFile(where, 0, f"after {counters[STEPS]} steps, in the folder of step {checkpoint.step}")
    for name in sorted({*was, *fixed}):
        if was.get(name) != fixed.get(name):
            raise UserError(f"{checkpoint.path} was made with {_argument(name, was.get(name))}, not "
                            f"{_argument(name, fixed.get(name))}: to continue it, use the same value")
    targets = tensors_of(model, optimizer)
    _check_tensors(checkpoint, targets)
    for name in sorted(runtime.counters.keys() - counters.keys()):
        raise CorruptFile(where, 0, f"no counter {name}, which this training has")
    measured = [_plan(checkpoint, number, row) for number, row in enumerate(plans)]
    guide, policy = runtime.guide, runtime.policy
    recalled: list[tuple[Trace, Proposal]] = []
    if guide is not None and state.get("setting") == _setting(runtime):
        try:
            answers = [(trace, policy.recall(kept)) for trace, kept in measured]
        except UserError as error:
            raise CorruptFile(where, 0, f"plans: {error}") from None
        recalled = [(trace, required_proposal(policy, "recall", answer, trace, guide.planner.limits))
                    for trace, answer in answers]
    with runtime.iteration():
        for name, tensor in targets.items():
            write(tensor, checkpoint.array(name))
    runtime.counters.clear()
    runtime.counters.update(counters)
    if guide is not None and recalled:
        guide.recall(recalled)


def _are_counts(counters: dict[str, Any]) -> bool:
    return all(map(is_whole, counters.values()))


def _argument(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name} {shown(value)}"


def _check_tensors(checkpoint: Checkpoint, targets: Mapping[str, Tensor | HostArray]) -> None:
    other = sorted(checkpoint.tensors.keys() ^ targets.keys())
    if other:
        raise UserError(f"{checkpoint.path} is not of this model and optimizer: {len(other)} tensors are missing or "
                        f"unexpected, the first is {other[0]}")
    for name, tensor in targets.items():
        found = checkpoint.tensors[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype.name):
            raise UserError(f"{checkpoint.path} is not of this model: {name} is {found.dtype}{list(found.shape)} and "
                            f"must be {tensor.dtype.name}{list(tensor.shape)}")


def _plan(checkpoint: Checkpoint, number: int, row: Any) -> tuple[Trace, SavedProposal]:
    """Return the trace of a sequence of calls, and the saved form of its plan. Raises CorruptFile for damage."""
    documents = []
    for kind, read in (("trace", trace_from_json), ("plan", plan_from_json)):
        name = f"{kind}-{number}.json"
        checkpoint.document(name)  # raises if it is missing or not JSON
        try:
            documents.append(read(checkpoint.documents[name]))
        except UserError as error:
            raise CorruptFile(checkpoint.path / name, 0, str(error)) from None
    trace, saved = documents
    assert isinstance(trace, Trace) and isinstance(saved, SavedPlan)
    other = misfit(saved, trace)
    if other is not None:
        raise CorruptFile(checkpoint.path / f"plan-{number}.json", 0, f"not a plan for trace-{number}.json: {other}")
    if type(row) is not dict or not all(map(is_real, row.values())):
        raise CorruptFile(checkpoint.path / STATE, 0, f"plans[{number}]: expected numbers")
    return trace, SavedProposal(saved.plan, row)
