"""SwapAdvisor: a genetic search over memory pools, each with a planner of swaps (Huang et al., ASPLOS 2020).

    genes     for each tensor size: whether a pool ends with it, and its share of memory. A pool serves all sizes since
              the pool before; its blocks have the largest of them.
    planner   goes through the calls. A tensor takes a block of its pool. If no block is free, a tensor of the pool that
              is no operand of the call is swapped out after its last use: the one with the furthest next use (Belady).
    fitness   seconds of the modelled iteration with these swaps; a choice that does not fit is worse than any that fits
    search    the best choices survive; children take their genes up to a size from one parent and the rest from
              another, and mutate

The other half of SwapAdvisor's genes, the order of operations, is left out, because a program has its own order.
Parameters and very small tensors stay. A swap-in starts as late as it can be hidden. If the pools do not suffice,
tensors leave on demand.
"""

from random import Random
from typing import NamedTuple

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import NEVER, SWAP, Array
from minidl.planning.schedule import NO_NOTES, Outcome
from minidl.planning.timing import Room
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.passive import Passive

POPULATION, ELITE, GENERATIONS = 16, 4, 10
MUTATION = 0.1  # probability per gene
SEED = 1


class Gene(NamedTuple):
    """One tensor size's gene: whether a pool ends with this size, and its share of memory."""

    ends: bool
    share: float


Chromosome = tuple[Gene, ...]


class SwapAdvisor(Passive):
    """Swaps out the tensors that do not fit into memory pools, whose sizes a genetic search chooses."""

    name = "swapadvisor"
    plans = True

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the best plan found; no plan if all fits, or if the best pools cannot hold one call's operands."""
        search = GeneticSearch(IterationNetwork.of(trace, costs), limits)
        if not search.sizes or search.outcome(np.zeros(len(search.facts.gap_call), np.int64)).excess <= 0:
            return NO_PLAN
        best = min(search.best(Random(SEED)), key=search.fitness)
        mode = search.planned(best)
        if mode is None:
            return NO_PLAN
        prefetch_at = np.full(len(mode), -1, np.int64)
        search.outcome(mode, prefetch_at)
        return Proposal(to_plan(trace, search.facts, mode, prefetch_at))


class GeneticSearch:
    """The genetic search for one network. ``sizes`` are the sizes of tensors that may leave, ascending."""

    def __init__(self, network: IterationNetwork, limits: Limits) -> None:
        self.facts = facts = network.facts
        self.limits = limits
        self._room = Room(limits.device_bytes, limits.host_bytes, 0.0)
        self._gap_at = {(n, call): gap for gap, (n, call) in enumerate(zip(facts.gap_tensor.tolist(),
                                                                           facts.gap_call.tolist(), strict=True))}
        worth = min((int(facts.size[n]) for n in facts.gap_tensor), default=NEVER)
        pooled = {n for n, (size, made) in enumerate(zip(facts.size.tolist(), facts.produced.tolist(), strict=True))
                  if made >= 0 and size >= worth}
        self._pool_bytes = limits.device_bytes - sum(s for n, s in enumerate(facts.size.tolist()) if n not in pooled
                                                     and facts.produced[n] < 0)
        number = {int(tensor_id): n for n, tensor_id in enumerate(facts.ids)}
        self._uses: dict[int, list[int]] = {n: network.trace.uses[int(facts.ids[n])] for n in pooled}
        self._operands = [[n for t in dict.fromkeys((*call.inputs, *call.outputs)) if (n := number[t]) in pooled]
                          for call in network.trace.calls]
        self._freed = [[n for t in call.frees if (n := number[t]) in pooled] for call in network.trace.calls]
        self.sizes = sorted({int(facts.size[n]) for n in pooled})
        self._fitness: dict[Chromosome, tuple[bool, float]] = {}

    def best(self, draw: Random) -> list[Chromosome]:
        """Run the search with the random numbers of ``draw`` and return its last generation."""
        first = self.as_demanded()
        population = [first] + [self._mutated(first, draw) for _ in range(POPULATION - 1)]
        for _ in range(GENERATIONS):
            population.sort(key=self.fitness)
            parents = population[:ELITE]
            population = parents + [self._child(parents, draw) for _ in range(POPULATION - ELITE)]
        return population

    def as_demanded(self) -> Chromosome:
        """Return a chromosome to start from:
        one pool for each tensor size, as large as the most bytes of that size in use at once."""
        live, most = dict.fromkeys(self.sizes, 0), dict.fromkeys(self.sizes, 0)
        there: set[int] = set()
        for operands, freed in zip(self._operands, self._freed, strict=True):
            for n in operands:
                if n not in there:
                    there.add(n)
                    live[int(self.facts.size[n])] += int(self.facts.size[n])
            most = {size: max(most[size], nbytes) for size, nbytes in live.items()}
            for n in freed:
                there.discard(n)
                live[int(self.facts.size[n])] -= int(self.facts.size[n])
        return tuple(Gene(True, float(most[size])) for size in self.sizes)

    def _mutated(self, of: Chromosome, draw: Random) -> Chromosome:
        return tuple(Gene(gene.ends ^ (draw.random() < MUTATION), gene.share * (
            draw.uniform(0.3, 3.0) if draw.random() < MUTATION else 1.0)) for gene in of)

    def _child(self, parents: list[Chromosome], draw: Random) -> Chromosome:
        one, other = draw.choice(parents), draw.choice(parents)
        cut = draw.randrange(len(one) + 1)
        return self._mutated(one[:cut] + other[cut:], draw)

    def pools(self, of: Chromosome) -> dict[int, tuple[int, int]]:
        """Map each tensor size to its pool's block size and number of blocks."""
        total = sum(gene.share for gene in of)
        pools: dict[int, tuple[int, int]] = {}
        sizes, share = [], 0.0
        for size, gene in zip(self.sizes, of, strict=True):
            sizes.append(size)
            share += gene.share
            if gene.ends or size == self.sizes[-1]:
                pools.update(dict.fromkeys(sizes, (size, int(share / total * self._pool_bytes / size))))
                sizes, share = [], 0.0
        return pools

    def planned(self, of: Chromosome) -> Array | None:
        """Return the mode of each gap under a chromosome; None if a pool cannot hold a call's own operands."""
        pools = self.pools(of)
        mode = np.zeros(len(self.facts.gap_call), np.int64)
        there: dict[int, dict[int, int]] = {block: {} for block, _ in pools.values()}  # tensor -> its last use
        for k, operands in enumerate(self._operands):
            for n in operands:
                block, count = pools[int(self.facts.size[n])]
                pool = there[block]
                if n not in pool and len(pool) >= count:
                    leaving = [(self._next_use(m, k), m) for m in pool if m not in operands
                               and (m, pool[m]) in self._gap_at]
                    if not leaving:
                        return None
                    _, victim = max(leaving)
                    mode[self._gap_at[victim, pool.pop(victim)]] = SWAP
                pool[n] = k
            for n in self._freed[k]:
                there[pools[int(self.facts.size[n])][0]].pop(n, None)
        return mode

    def _next_use(self, n: int, call: int) -> int:
        return next((use for use in self._uses[n] if use > call), NEVER)

    def outcome(self, mode: Array, prefetch_at: Array | None = None) -> Outcome:
        """Return the modelled result of an iteration with these modes.
        prefetch_at: gets, for each gap, the call before which its swap-in starts, or -1."""
        from minidl.planning.compiled import simulate  # Numba: loaded when the first plan is made

        at = np.full(len(mode), -1, np.int64) if prefetch_at is None else prefetch_at
        return simulate(self.facts, self._room, mode, at, NO_NOTES)

    def fitness(self, of: Chromosome) -> tuple[bool, float]:
        """Return (does not fit, seconds or excess bytes); the smaller the better."""
        if of not in self._fitness:
            mode = self.planned(of)
            found = self.outcome(mode) if mode is not None else None
            self._fitness[of] = (True, float(NEVER) ** 2) if found is None else (
                found.excess > 0, float(found.excess) if found.excess > 0 else found.seconds)
        return self._fitness[of]
