"""Translates a schedule of stages into a plan: evictions, releases, prefetches and replays, each after an access."""

from minidl.plan.plan import AccessKey, Action, Eviction, Plan
from minidl.plan.trace import TensorId
from minidl.policies.literature.ilp.graph import Graph
from minidl.policies.literature.ilp.schedule import StageSchedule, Verdict


def to_plan(graph: Graph, schedule: StageSchedule, verdict: Verdict) -> Plan:
    """Return the plan of a schedule. It names the calls' algorithms if the schedule has chosen them."""
    return _Orders(graph, schedule).plan(verdict)


def named(verdict: Verdict) -> dict[int, str]:
    """Map each call that has a choice of algorithms to its algorithm."""
    return {call: name for (stage, k), way in verdict.ways.items() if stage == k for call, name in way.names}


class _Orders:
    """Follows each value through the stages of a schedule and collects the plan's actions."""

    def __init__(self, graph: Graph, schedule: StageSchedule) -> None:
        self.graph, self.schedule = graph, schedule
        self.evictions: dict[AccessKey, Action] = {}
        self.releases: dict[AccessKey, tuple[Eviction, ...]] = {}
        self.spent: dict[AccessKey, tuple[Eviction, ...]] = {}
        self.prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
        self.replays: dict[AccessKey, tuple[TensorId, ...]] = {}
        self.key_of: dict[tuple[int, TensorId], AccessKey] = {}  # (node, tensor) -> the tensor's last access there
        self.after: dict[int, AccessKey] = {}  # node -> an access of its last call
        node_of = {k: n for n, node in enumerate(graph.nodes) for k in range(node.span.first, node.span.last + 1)}
        for access in graph.trace.accesses:
            key, n = (access.tensor_id, access.access_count), node_of[access.call]
            self.key_of[n, access.tensor_id] = key
            self.after[n] = key
        self.lands = {(fetch.lands, fetch.value) for fetch in schedule.fetches}

    def plan(self, verdict: Verdict) -> Plan:
        for x, value in enumerate(self.graph.values):
            if value.decided:
                self._departures(x)
        for fetch in self.schedule.fetches:
            self._add(self.prefetches, fetch.starts - 1, fetch.value)
        for stage in range(1, len(self.graph.nodes)):
            for x in self._made_again(stage):
                self._add(self.replays, stage - 1, x)
        return Plan(self.evictions, self.prefetches, releases=self.releases, replays=self.replays, spent=self.spent,
                    algorithms=named(verdict) if self.schedule.ways else {}, predicted_seconds=verdict.seconds)

    def _add(self, orders: dict[AccessKey, tuple[TensorId, ...]], node: int, x: int) -> None:
        """Add a value's tensor to the actions ``orders``, at the last access of a node's last call."""
        key = self.after[node]
        orders[key] = (*orders.get(key, ()), self.graph.values[x].tensor_id)

    def _departures(self, x: int) -> None:
        """Add the evictions of one value to the plan: after which access it leaves, and whether by swap-out or drop."""
        value, schedule = self.graph.values[x], self.schedule
        copy = schedule.copies.get(x)
        if copy is not None:
            self.evictions[self.key_of[copy.after, value.tensor_id]] = Action.SWAP_OUT
        there = True  # on the device after the node before the stage
        for stage in range(value.made + 1, min(value.last, len(self.graph.nodes) - 1) + 1):
            used = stage - 1 in value.uses
            there = there or used
            stays = x in schedule.resident[stage]
            if there and not stays and not (copy is not None and copy.ended == stage):
                if used:
                    self.evictions[self.key_of[stage - 1, value.tensor_id]] = self._how(x, stage)
                else:
                    read = any(x in self.graph.nodes[k].sources for k in schedule.repeats[stage - 1])
                    orders, key = (self.spent, self.after[stage - 2]) if read else (self.releases,
                                                                                    self.after[stage - 1])
                    orders[key] = (*orders.get(key, ()), Eviction(value.tensor_id, self._how(x, stage)))
            there = stays

    def _how(self, x: int, stage: int) -> Action:
        """Return SWAP_OUT if the host has a copy by then and the value's next return is from that copy, else DROP."""
        copy = self.schedule.copies.get(x)
        if copy is not None and copy.after < stage:
            for later in range(stage, len(self.graph.nodes)):
                if (later, x) in self.lands:
                    return Action.SWAP_OUT
                if x in self._made_again(later):
                    break
        return Action.DROP

    def _made_again(self, stage: int) -> list[int]:
        """Return the values that are replayed in a stage, for the stage's own node or to be kept."""
        graph, here = self.graph, self.schedule.resident[stage]
        after = self.schedule.resident[stage + 1] if stage + 1 < len(graph.nodes) else frozenset()
        return [x for k in self.schedule.repeats[stage] for x in graph.nodes[k].outputs
                if graph.values[x].wanted(stage) and x not in here and (x in after or x in graph.nodes[stage].inputs)]
