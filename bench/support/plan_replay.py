"""The plans of every network, as a record that a later run is compared with (``bench/plan_replay.py``).

Each network of ``train.py --list-models`` trains a few iterations on sim:p100 in three budgets under ``auto`` and
``capuchin``. The record of such a run is a SHA-256 of all plans that the policy gave, in their order, the seconds that
the last of them predicts, and the simulated seconds of the last iteration. The plans follow from the engine, too: it
measures the iteration that is planned, and tells the policy how the plan did. On a simulated device all planning is
limited by counted work and never by a clock, so the record is the same on a busy machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from minidl.lab.training_step import BATCHES, training_step
from minidl.outside.units import UNLIMITED
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan, Proposal
from minidl.plan.policy import Observation
from minidl.plan.trace import Trace
from minidl.policies import create
from minidl.policies.auto.progress import Progress
from minidl.runtime import Runtime

POLICIES = ("auto", "capuchin")
USUAL = (70, 50, 30)  # percent of the unmanaged peak
BUDGETS = {  # of networks whose largest operation needs more than 30%
    "mlp": (95, 85, 75), "lenet": (95, 90, 85), "vgg11": (70, 50, 40), "vgg11_bn": (70, 50, 40),
    "resnet18": (70, 50, 35), "bert-tiny": (70, 60, 50),
}
ITERATIONS = 5  # the second is planned, and the fifth is the first after which `auto` searches again


@dataclass(frozen=True)
class Replay:
    """The record of one run.

    plans     SHA-256 of the plans' JSON, as hexadecimal digits; count: how many there were.
    predicted_seconds   by the last plan; None if it predicts nothing.
    seconds   of the last iteration, simulated.
    """

    budget_bytes: int
    plans: str
    count: int
    predicted_seconds: float | None
    seconds: float


class Noting:
    """A policy that keeps a list of all different plans that it has given."""

    def __init__(self, name: str) -> None:
        self._policy = create(name)
        self.given: list[Plan] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the policy's plan, and add it to the list."""
        return self._noted(self._policy.plan(trace, costs, limits))

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """Return the policy's improved plan, and add it to the list."""
        return self._noted(self._policy.feedback(proposal, observed))

    def _noted(self, proposal: Proposal) -> Proposal:
        notes = proposal.notes
        waiting = [notes.waiting.plan] if isinstance(notes, Progress) and notes.waiting is not None else []
        for plan in (proposal.plan, *waiting):
            if not any(plan is other for other in self.given):
                self.given.append(plan)
        return proposal


def canonical(plan: Plan) -> str:
    """Return a plan as JSON with the names of its fields, the same text for equal plans.

    Mappings become lists of pairs in their own order, which the engine follows; sets are sorted. Empty fields are left
    out, so that a new field changes no record.
    """
    return json.dumps({field.name: _plain(value) for field in fields(plan)
                       if (value := getattr(plan, field.name)) not in ({}, frozenset(), None)}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def digest(plans: list[Plan]) -> str:
    """Return the SHA-256 of the plans' JSON, one line each."""
    return hashlib.sha256("\n".join(map(canonical, plans)).encode()).hexdigest()


def unmanaged_peak(network: str) -> int:
    """Return the most bytes that a training step has on the device with unlimited memory."""
    with Runtime("sim:p100", policy="none", memory_budget=UNLIMITED) as runtime:
        step = training_step(network, BATCHES[network])
        for _ in range(2):
            with runtime.iteration():
                step()
        return runtime.stats().peak_bytes


def replay(network: str, policy: str, budget_bytes: int) -> Replay:
    """Train a network under a policy and budget; return the record of its plans. Raises OutOfMemory."""
    noting = Noting(policy)
    with Runtime("sim:p100", policy=noting, memory_budget=budget_bytes) as runtime:
        step = training_step(network, BATCHES[network])
        for _ in range(ITERATIONS):
            before = runtime.stats()
            with runtime.iteration():
                step()
        seconds = runtime.stats().since(before).seconds
    return Replay(budget_bytes, digest(noting.given), len(noting.given), noting.given[-1].predicted_seconds, seconds)


def replays(network: str) -> Iterator[tuple[str, Replay]]:
    """Yield the records of a network's runs by name: network/batch/percent of the peak/policy."""
    peak = unmanaged_peak(network)
    for percent in BUDGETS.get(network, USUAL):
        for policy in POLICIES:
            yield f"{network}/{BATCHES[network]}/{percent}%/{policy}", replay(network, policy, peak * percent // 100)


def read_record(path: Path) -> dict[str, Replay]:
    """Return the records in a file, by the run's name; none if there is no file."""
    if not path.exists():
        return {}
    return {name: Replay(**values) for name, values in json.loads(path.read_text(encoding="utf-8")).items()}


def write_record(path: Path, found: Mapping[str, Replay]) -> None:
    """Write the records to a file, a line for each run in the order of the networks.

    Runs of networks that no longer exist are left out.
    """
    order = {network: n for n, network in enumerate(BATCHES)}
    known = [name for name in found if network_of(name) in order]
    rows = [f"{json.dumps(name)}: {json.dumps(asdict(found[name]))}"
            for name in sorted(known, key=lambda name: order[network_of(name)])]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def network_of(name: str) -> str:
    """Return the network that the name of a run contains."""
    return name.partition("/")[0]
