"""A lower bound of an iteration's time: the optimum of a linear program that any plan for the same trace satisfies.

Tensors are divisible: in each gap between two accesses a fraction of the tensor is kept, a fraction is swapped out and
in, and a fraction is dropped and replayed once. A call is replayed at most to the fraction of its inputs that is on the
device; inputs that the program has freed are replayed for it, too. Memory is checked during a few calls, the instants:
the operands and the workspace of the instant's call, the tensors from before the iteration, and the fractions on the
device must fit the budget. A fraction of that call may use a slower algorithm with a smaller workspace. Between two
instants each direction of the link is busy no longer than computation, replays and stalls there last. So the iteration
takes at least

    unmanaged seconds + replays + stalls + what slower algorithms lose,   minimal over all fractions

and at least the time in which the host launches its calls and replays, one after the other; with tiny calls this is
longer than the computation. More instants make the bound tighter and the program larger. Leaving out the following
only lowers the bound: latencies, the smallest workspaces, addresses, memory between the instants, tensors too small to
be worth moving, and missing host copies of persistent tensors (parameters, optimizer state): only a tensor that its
last call writes must be copied out to be away between iterations. Knows no storages and no device.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from minidl.plan.costs import Costs
from minidl.plan.trace import Trace
from minidl.planning.linear_program import LinearProgram, Term
from minidl.planning.problem import Problem, freed_by, problem

INSTANTS = 40


@dataclass(frozen=True)
class Bound:
    """The lower bound, and the best fractional plan's costs.

    seconds         no plan takes less; infinite if no plan fits the budget.
    replay_seconds  the part of ``seconds`` that replays take.
    stall_seconds   the part of ``seconds`` in which computation waits for the link or the host.
    moved_bytes     bytes that the plan copies out.
    """

    seconds: float
    unmanaged_seconds: float
    replay_seconds: float
    stall_seconds: float
    moved_bytes: float

    @property
    def speed(self) -> float:
        """The upper bound of the speed, as a fraction of the unmanaged speed."""
        return self.unmanaged_seconds / self.seconds if self.seconds else 1.0


def bound(trace: Trace, costs: Costs, budget: int, *, instants: int = INSTANTS, launch_seconds: float = 0.0,
          launches: int = 0) -> Bound:
    """Return the bound for a trace and a budget in bytes of device memory, which is checked during ``instants`` calls.
    launch_seconds: host time per launched call; launches: number of the trace's calls that the host launches."""
    return _Relaxation(problem(trace, costs, budget=budget), costs, budget, instants).solve(launch_seconds, launches)


class _Relaxation:
    """The linear program.
    Memory is checked during some calls, the instants; interval i is the time before instant i, and the last interval
    the time after all of them."""

    def __init__(self, facts: Problem, costs: Costs, budget: int, instants: int) -> None:
        self.facts, self.costs, self.budget = facts, costs, budget
        self.calls = len(facts.in_ptr) - 1
        self.fixed = np.zeros(len(facts.size), np.bool_)  # tensors from before the iteration that stay until freed
        self.fixed[facts.in_idx] = facts.produced[facts.in_idx] < 0
        self.fixed[facts.gap_tensor] = False
        self.freed = freed_by(facts)
        self.call_seconds = facts.algorithm_seconds[facts.algorithm_ptr[:-1]]
        self.starts = np.concatenate([[0.0], np.cumsum(self.call_seconds)])
        self.instants = self._instants(instants)
        count = len(self.instants)
        self.program = LinearProgram()
        self.memory: list[list[Term]] = [[] for _ in range(count)]
        self.out: list[list[Term]] = [[] for _ in range(count + 1)]  # seconds of the link, per interval
        self.into: list[list[Term]] = [[] for _ in range(count + 1)]
        self.replays: list[list[Term]] = [[] for _ in range(count + 1)]
        self.slower: list[Term] = []  # fractions of the instants' calls in slower algorithms, and what that costs
        self.repeated: dict[tuple[int, int], int] = {}  # (call, interval) -> fraction of the call that is replayed
        self.present: dict[tuple[int, int], list[Term]] = {}  # (tensor, interval) -> fractions on the device
        self.copies: dict[int, list[Term]] = {}  # tensor -> fractions copied out in its gaps so far
        self.copied: list[Term] = []  # fractions copied out, and their tensors' bytes
        self.gone: dict[tuple[int, int], list[Term]] = {}  # (tensor, call) -> fractions that leave after the call
        for gap in range(len(facts.gap_call)):
            self._gap(gap)
        self._inputs_of_replays()
        for i, call in enumerate(self.instants):
            self._working_set(i, call)
        bounds = [0.0, *self.starts[self.instants], self.starts[-1]]
        self.stalls = [self.program.variable(cost=1.0) for _ in range(count + 1)]
        for i, stall in enumerate(self.stalls):
            for link in (self.out[i], self.into[i]):
                longer = [(stall, -1.0), *((v, -c) for v, c in self.replays[i])]
                self.program.row([*link, *longer], high=bounds[i + 1] - bounds[i])

    def _instants(self, count: int) -> list[int]:
        """Return at most ``count`` calls to check:
        the call of highest memory demand in each of ``count`` equal parts of the time, if a call begins in it."""
        facts = self.facts
        held = np.zeros(self.calls + 1)
        np.add.at(held, facts.gap_call + 1, facts.size[facts.gap_tensor])
        np.add.at(held, facts.gap_next, -facts.size[facts.gap_tensor])
        heads = np.nonzero(facts.gap_head >= 0)[0]
        held[0] += facts.size[facts.gap_tensor[heads]].sum()
        np.add.at(held, facts.gap_head[heads], -facts.size[facts.gap_tensor[heads]])
        wanted = np.cumsum(held)[:-1] + [self._operands(k) for k in range(self.calls)]
        when = self.starts if self.starts[-1] else np.arange(self.calls + 1)  # calls that all take no time count alike
        part = np.minimum((when[:-1] / when[-1] * count).astype(int), count - 1)
        return [int(calls[np.argmax(wanted[calls])]) for p in range(count) if len(calls := np.nonzero(part == p)[0])]

    def _operands(self, call: int) -> float:
        """Return the bytes of a call's inputs and outputs, without outputs that may reuse a donated input's bytes."""
        facts = self.facts
        inputs = facts.in_idx[facts.in_ptr[call]:facts.in_ptr[call + 1]]
        outputs = facts.out_idx[facts.out_ptr[call]:facts.out_ptr[call + 1]]
        over = self._donatable(call)
        made = inputs[~self.fixed[inputs]]  # fixed tensors are counted once
        return float(facts.size[made].sum() + facts.size[outputs].sum() - sum(facts.size[o] for o in over))

    def _donatable(self, call: int) -> set[int]:
        """Return the outputs of a call that may be written over an input that the call frees."""
        facts = self.facts
        freed = set(facts.free_idx[facts.free_ptr[call]:facts.free_ptr[call + 1]].tolist())
        return {int(facts.may_out[j]) for j in range(facts.may_ptr[call], facts.may_ptr[call + 1])
                if int(facts.may_in[j]) in freed}

    def _gap(self, gap: int) -> None:
        """Add variables and rows for one gap:
        the fraction of the tensor on the device in each interval between instants."""
        facts, program = self.facts, self.program
        tensor = int(facts.gap_tensor[gap])
        first = bisect_right(self.instants, int(facts.gap_call[gap]))
        last = bisect_left(self.instants, int(facts.gap_next[gap]))  # instants first .. last - 1 are inside
        intervals = list(range(first, last + 1))  # before, between and after these
        head = bisect_left(self.instants, int(facts.gap_head[gap]))
        if facts.gap_head[gap] >= 0:
            intervals += range(head + 1)
        returns = facts.gap_next[gap] < self.calls or facts.gap_head[gap] >= 0
        if len(intervals) < 2:
            return
        size = float(facts.size[tensor])
        out_seconds, in_seconds = size * self.costs.out_seconds_per_byte, size * self.costs.in_seconds_per_byte
        link = 1.0 if np.isfinite(out_seconds + in_seconds) else 0.0
        maker = int(facts.produced[tensor])
        dropped = program.variable(high=float(facts.may_drop[gap]))
        again = program.variable(high=1.0)  # evicted without a copy, since an earlier gap left one on the host
        earlier = self.copies.setdefault(tensor, [])
        if facts.gap_round[gap] < 0:
            program.row([(again, 1.0), *((v, -c) for v, c in earlier)], high=0.0)
        elif facts.gap_head[gap] >= 0 and self._writes(int(facts.gap_call[gap]), tensor):
            program.row([(again, 1.0)], high=0.0)
        leaving: list[Term] = [(dropped, 1.0), (again, 1.0)]
        remade: list[Term] = [(dropped, -1.0)]
        here, here_constant = [(dropped, -1.0), (again, -1.0)], 1.0  # the fraction on the device before an interval
        away: list[Term] = [(again, 1.0)]  # the fraction on the host only
        for n, i in enumerate(intervals):
            flow = list(here)
            if n:
                back, replayed = program.variable(high=link), program.variable(high=float(facts.may_drop[gap]))
                self.into[i].append((back, in_seconds if link else 0.0))
                remade.append((replayed, 1.0))
                flow += [(back, 1.0), (replayed, 1.0)]
                self.present[tensor, i] = list(flow)
                away = [*away, (back, -1.0)]
                if maker >= 0:
                    program.row([(self._repeat(maker, i), 1.0), (replayed, -1.0)], low=0.0)
            if n < len(intervals) - 1:
                out = program.variable(high=link)
                self.out[i].append((out, out_seconds if link else 0.0))
                self.copied.append((out, size))
                earlier.append((out, 1.0))
                leaving.append((out, 1.0))
                flow.append((out, -1.0))
                away = [*away, (out, 1.0)]
            else:
                if returns:  # all of it is back
                    program.row(flow, low=1.0 - here_constant, high=1.0 - here_constant)
                    program.row(away, low=0.0, high=0.0)
                continue
            now, host = program.variable(high=1.0), program.variable(high=1.0)
            program.row([*flow, (now, -1.0)], low=-here_constant, high=-here_constant)
            program.row([*away, (host, -1.0)], low=0.0, high=0.0)
            if i < len(self.instants):  # the last interval of an iteration ends without an instant
                self.memory[i].append((now, size))
            here, here_constant, away = [(now, 1.0)], 0.0, [(host, 1.0)]
        program.row(remade, low=0.0, high=0.0)
        self.gone[tensor, int(facts.gap_call[gap])] = leaving

    def _writes(self, call: int, tensor: int) -> bool:
        """True if a call writes a tensor in place."""
        facts = self.facts
        return tensor in facts.write_idx[facts.write_ptr[call]:facts.write_ptr[call + 1]]

    def _repeat(self, call: int, interval: int) -> int:
        """Return the variable for the fraction of a call that is replayed in an interval, the same for all outputs."""
        key = (call, interval)
        if key not in self.repeated:
            seconds = float(self.call_seconds[call])
            self.repeated[key] = self.program.variable(high=1.0, cost=seconds)
            self.replays[interval].append((self.repeated[key], seconds))
        return self.repeated[key]

    def _inputs_of_replays(self) -> None:
        """Add rows by which the inputs of a replayed call are on the device in its interval, or replayed in it."""
        facts = self.facts
        wanted = list(self.repeated)
        while wanted:
            call, i = wanted.pop()
            part = self.repeated[call, i]
            for tensor in facts.in_idx[facts.in_ptr[call]:facts.in_ptr[call + 1]].tolist():
                maker = int(facts.produced[tensor])
                if (tensor, i) in self.present:
                    self.program.row([(part, 1.0), *((v, -c) for v, c in self.present[tensor, i])], high=0.0)
                elif self.freed[tensor] < self.instants[i - 1] and maker >= 0:
                    if (maker, i) not in self.repeated:
                        wanted.append((maker, i))
                    self.program.row([(part, 1.0), (self._repeat(maker, i), -1.0)], high=0.0)

    def _working_set(self, i: int, call: int) -> None:
        """Add the row by which the bytes in use during instant i stay within the budget."""
        facts = self.facts
        before = float(facts.size[self.fixed & (self.freed >= call)].sum())
        terms = list(self.memory[i])
        over = self._donatable(call)
        for j in range(facts.may_ptr[call], facts.may_ptr[call + 1]):
            output, source = int(facts.may_out[j]), int(facts.may_in[j])
            if output not in over:  # a tensor evicted right after the call may be overwritten by its output
                over.add(output)
                written = self.program.variable(high=1.0)
                if (source, call) in self.gone:
                    self.program.row([(written, 1.0), *((v, -c) for v, c in self.gone[source, call])], high=0.0)
                terms.append((written, -float(facts.size[output])))
        workspace = self._workspace(i, call, terms)
        self.program.row([(v, c / self.budget) for v, c in terms],
                         high=1.0 - (before + workspace + self._operands(call)) / self.budget)

    def _workspace(self, i: int, call: int, terms: list[Term]) -> float:
        """Add to ``terms`` what fractions of instant i's call in slower algorithms save of the fastest's workspace.
        Return the bytes of the latter."""
        facts = self.facts
        first, last = (int(facts.algorithm_ptr[call + n]) for n in (0, 1))
        if last - first < 2:
            return 0.0
        fastest = float(facts.algorithm_bytes[first])
        shares = []
        for a in range(first + 1, last):
            seconds = float(facts.algorithm_seconds[a] - facts.algorithm_seconds[first])
            share = self.program.variable(high=1.0, cost=seconds)
            shares.append((share, 1.0))
            self.slower.append((share, seconds))
            self.replays[i + 1].append((share, seconds))  # the link has as much more time
            terms.append((share, (float(facts.algorithm_bytes[a]) if a < last - 1 else 0.0) - fastest))
        self.program.row(shares, high=1.0)
        return fastest

    def _launched(self, seconds: float, count: int) -> float:
        """Return the seconds by which the host takes longer to launch the calls than the device to compute them, or 0.
        seconds: computation; count: number of launches. If positive, a row makes the iteration last as long as all
        launches, those of replays included."""
        idle = seconds * count - float(self.starts[-1])
        if idle <= 0.0:
            return 0.0
        replays = [(v, float(self.call_seconds[call]) - seconds) for (call, _), v in self.repeated.items()]
        self.program.row([*((stall, 1.0) for stall in self.stalls), *replays, *self.slower], low=idle)
        return idle

    def solve(self, launch_seconds: float, launches: int) -> Bound:
        """Solve the program for the least time over all fractions."""
        idle = self._launched(launch_seconds, launches)
        computed = float(self.starts[-1])
        solution = self.program.solve()
        if solution.values is None:
            return Bound(np.inf, computed + idle, np.inf, np.inf, 0.0)
        stalls = float(solution.values[self.stalls].sum())
        slower = float(sum(seconds * solution.values[share] for share, seconds in self.slower))
        copied = float(sum(nbytes * solution.values[v] for v, nbytes in self.copied))
        return Bound(computed + solution.objective, computed + idle, solution.objective - stalls - slower,
                     stalls, copied)
