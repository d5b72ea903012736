"""G10: swap out tensors in the gaps that relieve memory most (Zhang et al., MICRO 2023).

It repeatedly takes the gap (inactive period) with the largest benefit: the bytes above a line (99% of memory) that it
removes, integrated from the middle of its copy out to the middle of its copy back. A gap must be longer than 1.5 times
both copies. The copy out runs as early as the link allows, the copy back as late.

The SSD is the disk behind host memory: a gap uses it if host memory is full. Without a disk, host memory stands for
both. Tensors that keep memory above the line leave on demand.
"""

from heapq import heapify, heappop, heappush

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.problem import Array
from minidl.policies.capuchin.hybrid import NANO
from minidl.policies.capuchin.link_time import LinkTime
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.swapping import Swap, of_gap, triggers
from minidl.policies.passive import Passive

LINE = 0.99    # of the device's memory
MARGIN = 1.5   # a gap must be this many times as long as both copies


class G10(Passive):
    """Swaps out in the gaps that remove the most bytes above a line of 99% of memory, integrated over time."""

    name = "g10"
    plans = True

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the plan of the chosen gaps. If they do not suffice, the rest is swapped out on demand."""
        network = IterationNetwork.of(trace, costs)
        chosen = Migration(network, int(LINE * limits.device_bytes)).chosen()
        if not chosen:
            return NO_PLAN
        evictions = {network.key(swap.tensor_id, swap.evict): Action.SWAP_OUT for _, swap in chosen}
        wanted = sorted((call, swap) for call, swap in chosen if call > swap.evict)
        return Proposal(Plan(evictions, triggers(network, wanted)))


class Migration:
    """The bytes in use over one iteration and the link's free time, updated as gaps are chosen.
    Times are whole nanoseconds."""

    def __init__(self, network: IterationNetwork, line_bytes: int) -> None:
        self.network = network
        self.starts = np.array([round(start * NANO) for start in network.starts], np.int64)
        self.over: Array = np.array(Lifetimes.of(network.trace).live_bytes, np.int64) - line_bytes
        self.on_host: Array = np.zeros(len(self.starts), np.int64)  # bytes in host memory, call by call
        self.link_out, self.link_in = LinkTime(self.starts), LinkTime(self.starts)

    def chosen(self) -> list[tuple[int, Swap]]:
        """Return the swaps in the order of their choice, each with the call after which its swap-in starts."""
        facts, taken = self.network.facts, []
        waiting = [(-benefit, gap) for gap in range(len(facts.gap_call)) if (benefit := self.benefit(gap)) > 0]
        heapify(waiting)
        while waiting and self.over.max() > 0:
            _, gap = heappop(waiting)
            benefit = self.benefit(gap)  # other choices since then can only have made it smaller
            if benefit <= 0:
                continue
            if waiting and -benefit > waiting[0][0]:
                heappush(waiting, (-benefit, gap))
                continue
            taken.append(self._take(gap))
        return taken

    def benefit(self, gap: int) -> int:
        """Return the byte-nanoseconds above the line that this gap removes; 0 if it cannot be taken."""
        first, last, out, back = self._times(gap)
        length = int(self.starts[last] - self.starts[first + 1])
        begin, end = int(self._out_end(gap)) - out // 2, int(self._in_start(gap)) + back // 2
        if length <= MARGIN * (out + back) or end <= begin:
            return 0
        low, high = int(np.searchsorted(self.starts, begin)), int(np.searchsorted(self.starts, end, side="right")) - 1
        relieved = np.clip(self.over[low:high], 0, self.network.facts.size[self.network.facts.gap_tensor[gap]])
        return int((relieved * np.diff(self.starts)[low:high]).sum())

    def _times(self, gap: int) -> tuple[int, int, int, int]:
        facts = self.network.facts
        n = facts.gap_tensor[gap]
        out, back = ((facts.disk_out_seconds, facts.disk_in_seconds) if self._spilled(gap) else
                     (facts.out_seconds, facts.in_seconds))
        return (int(facts.gap_call[gap]), int(facts.gap_next[gap]), round(float(out[n]) * NANO),
                round(float(back[n]) * NANO))

    def _spilled(self, gap: int) -> bool:
        """Return True if host memory has no room for this gap's tensor beside those already chosen."""
        facts = self.network.facts
        held = self.on_host[facts.gap_call[gap]:facts.gap_next[gap] + 1].max()
        return bool(held + facts.size[facts.gap_tensor[gap]] > facts.memory_bytes)

    def _out_end(self, gap: int) -> int:
        first, _, out, _ = self._times(gap)
        return int(self.link_out.out_end(np.array([first + 1]), np.array([out]))[0])

    def _in_start(self, gap: int) -> int:
        first, last, _, back = self._times(gap)
        return int(self.link_in.in_start(self.starts[[first + 1]], np.array([last]), np.array([back]))[0])

    def _take(self, gap: int) -> tuple[int, Swap]:
        first, last, _, _ = self._times(gap)
        landed, start = self._out_end(gap), self._in_start(gap)
        self.link_out.take_out(first + 1, landed)
        self.link_in.take_in(start, last)
        low, high = int(np.searchsorted(self.starts, landed)), int(np.searchsorted(self.starts, start, side="right"))
        nbytes, spilled = self.network.facts.size[self.network.facts.gap_tensor[gap]], self._spilled(gap)
        self.over[low:high - 1] -= nbytes
        if not spilled:
            self.on_host[first:last + 1] += nbytes
        return high - 2, of_gap(self.network, gap, spilled=spilled)
