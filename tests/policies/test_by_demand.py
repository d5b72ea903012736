"""The compiled dry runs of policies on demand choose what the same rules choose in plain Python, written with sets."""

from math import inf

import numpy as np
import pytest

from bench.support.steps import unmanaged_trace
from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.planning.problem import DROP, SWAP, live_bytes, problem
from minidl.policies.auto import by_demand as compiled

UNIT = 1 << 20
RULES = {  # per rule: what is compared; the least leaves first
    compiled.DTR: lambda v: (v["seconds"] / (v["nbytes"] * (v["idle"] + 1)),),
    compiled.MSPS: lambda v: (v["seconds"] / v["nbytes"],),
    compiled.FIRST_MADE: lambda v: (v["seconds"] >= v["copies"], v["made"]),
    compiled.LAST_USED: lambda v: (-v["next_use"],),
}


class Plain:
    """The dry run of one rule with dictionaries and sets: ``here`` has the last use of each tensor on the device."""

    def __init__(self, facts, limits, rule, looks):
        self.rule, self.limits, self.looks = RULES[rule], limits, looks
        self.mode = [0] * len(facts.gap_call)
        calls = len(facts.in_ptr) - 1

        def lists(pointers, values):
            return [values[pointers[k]:pointers[k + 1]].tolist() for k in range(calls)]

        self.reads, self.makes = lists(facts.in_ptr, facts.in_idx), lists(facts.out_ptr, facts.out_idx)
        self.frees, self.takes = lists(facts.free_ptr, facts.free_idx), lists(facts.may_ptr, facts.may_in)
        self.size, self.made = facts.size.tolist(), facts.produced.tolist()
        self.seconds = facts.algorithm_seconds[facts.algorithm_ptr[:-1]].tolist()
        self.workspace = facts.algorithm_bytes[facts.algorithm_ptr[1:] - 1].tolist()
        self.copies = (facts.out_seconds + facts.in_seconds).tolist()
        self.may_drop, self.next_use = facts.may_drop.tolist(), facts.gap_next.tolist()
        self.gaps = {(t, k): g for g, (t, k, head) in enumerate(zip(
            facts.gap_tensor.tolist(), facts.gap_call.tolist(), facts.gap_head.tolist(), strict=True)) if head < 0}
        self.here = {t: -1 for t, made in enumerate(self.made) if made < 0}
        self.away = set()
        self.used = self.bytes_of(self.here)
        self.replays = 0

    def bytes_of(self, tensors):
        return sum(self.size[t] for t in tensors)

    def done(self):
        for k, reads in enumerate(self.reads):
            pinned = {*reads, *self.makes[k]}
            self.bring_back(k, reads, pinned)
            need = self.bytes_of(self.makes[k])
            given = self.bytes_of(t for t in self.takes[k] if t in self.frees[k])
            self.make_room(k, need - given + self.workspace[k], pinned)
            self.used += need
            self.here.update(dict.fromkeys(pinned, k))
            for t in self.frees[k]:
                if self.here.pop(t, None) is not None:
                    self.used -= self.size[t]
                self.away.discard(t)
            if self.looks < 0:
                return False
        return True

    def missing(self, tensor):
        found, wanted = set(), [tensor]
        while wanted:
            call = self.made[wanted.pop()]
            self.looks -= 1
            if call < 0:
                return None
            if call not in found:
                found.add(call)
                wanted += [t for t in self.reads[call] if t not in self.here and t not in self.away]
        return sorted(found)

    def bring_back(self, k, reads, pinned):
        for t in reads:
            if t in self.here:
                continue
            calls = [] if t in self.away else self.missing(t) or []
            last = {i: c for c in calls for i in self.reads[c]}
            wanted, temporary = set(last) - set(self.here), set()
            self.replays += len(calls) > 1
            for c in calls:
                swapped = {i for i in self.reads[c] if i in wanted & self.away} - temporary
                made = [i for i in self.makes[c] if i not in self.here and i not in temporary]
                self.make_room(k, self.bytes_of([*swapped, *made]) + self.workspace[c], pinned | set(last) | {t})
                temporary |= {*made, *swapped}
                self.used += self.bytes_of([*swapped, *made])
                over = {i for i in temporary if last.get(i, -1) <= c and i != t}
                self.used -= self.bytes_of(over)
                temporary -= over
            if t not in temporary:
                self.make_room(k, self.size[t], pinned)
                self.used += self.size[t]
            self.here[t] = k
            self.away.discard(t)

    def make_room(self, k, need, pinned):
        if self.used + need <= self.limits.device_bytes:
            return
        ranked = []
        for t, last in self.here.items():
            gap = self.gaps.get((t, last))
            if gap is not None and t not in pinned and self.next_use[gap] >= k and self.looks >= 0:
                fits = self.bytes_of(self.away) + self.size[t] <= self.limits.host_bytes
                copies, again = self.copies[t] if fits else inf, inf
                calls = self.missing(t) if self.may_drop[gap] else None
                if calls is not None:
                    again = 0.0
                    for c in calls:  # ``sum`` adds in another way from Python 3.12 on
                        again += self.seconds[c]
                if min(again, copies) < inf:
                    victim = {"seconds": min(again, copies), "copies": copies, "nbytes": self.size[t],
                              "idle": k - last, "made": self.made[t], "next_use": self.next_use[gap]}
                    ranked.append((self.rule(victim), t, gap, again <= copies))
        for _, t, gap, drops in sorted(ranked):
            if self.used + need <= self.limits.device_bytes:
                return
            if drops or self.bytes_of(self.away) + self.size[t] <= self.limits.host_bytes:
                del self.here[t]
                self.used -= self.size[t]
                self.mode[gap] = DROP if drops else SWAP
                if not drops:
                    self.away.add(t)


def compare(facts, limits, looks):
    """Compare all rules; returns how many were walked to the end, how many evict, and how many replay a chain."""
    ended = evicting = replaying = 0
    compiled.MOST_LOOKS, given = looks, compiled.MOST_LOOKS
    try:
        for rule in RULES:
            plain, state = Plain(facts, limits, rule, looks), compiled.beginning(facts, rule, limits)
            done = plain.done()
            assert compiled.dry_run(facts, state) == done
            if done:  # by_demand drops the modes of a dry run that stops early; they depend on the order of looks
                assert state.mode.tolist() == plain.mode
                assert state.counts[[compiled.USED, compiled.LOOKS]].tolist() == [plain.used, plain.looks]
            ended, evicting, replaying = ended + done, evicting + any(plain.mode), replaying + (plain.replays > 0)
    finally:
        compiled.MOST_LOOKS = given
    return np.array([ended, evicting, replaying])


def made(seed):
    """A step of a few dozen calls; what they make is read at once, late or both; durations and sizes are often equal.
    Some calls cannot run again, write in place, make two tensors, may donate an input or need a workspace."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(10, 50))
    tensors = {t: TraceTensor(t, int(draw.integers(1, 4)) * UNIT, True) for t in range(4)}
    operands = []
    for _ in range(count):
        there = [t for t in tensors if t < 4 or t > len(tensors) - 8 or draw.random() < 0.2]
        reads = tuple(int(t) for t in draw.choice(there, min(len(there), int(draw.integers(1, 4))), replace=False))
        makes = tuple(len(tensors) + n for n in range(1 if draw.random() < 0.8 else 2))
        tensors |= {t: TraceTensor(t, int(draw.integers(1, 5)) * UNIT, False) for t in makes}
        operands.append((reads, makes))
    last = {t: k for k, pair in enumerate(operands) for each in pair for t in each}
    calls = []
    for k, (reads, makes) in enumerate(operands):
        seconds = float(draw.choice([1e-3, 2e-3, 0.1, 1 / 3]))
        frees = tuple(t for t in (*reads, *makes) if t > 3 and last[t] == k)
        writes = tuple(t for t in reads if t < 4) if draw.random() < 0.1 else ()
        calls.append(TraceCall(
            "work", reads, makes, seconds, (Algorithm("", seconds, int(draw.integers(0, 3)) * UNIT),), frees,
            may_donate=((makes[0], reads[0]),) if draw.random() < 0.3 else (), writes=writes,
            replayable=not writes and draw.random() < 0.9))
    costs = Costs(*draw.choice([1e-9, 1e-8, 1e-7], 2), float(draw.choice([0.0, 1e-3])))
    return problem(Trace(tuple(calls), tensors), costs), draw


def test_each_rule_chooses_the_same_in_random_steps_in_little_memory():
    total, runs = np.zeros(3, np.int64), 0
    for seed in range(60):
        facts, draw = made(seed)
        peak = int(live_bytes(facts).max())
        for share in (0.9, 0.6, 0.35):
            host = int(draw.choice([0, 3 * UNIT, peak // 4, 1 << 40]))
            total += compare(facts, Limits(int(share * peak), host), int(draw.choice([30, 300, 400_000])))
            runs += len(RULES)
    assert runs > total[0] > runs / 2 and total[1] > runs / 2 and total[2] > runs / 10, (runs, total)


@pytest.mark.parametrize(("network", "batch"), [("resnet18", 64), ("bert-tiny", 32), ("unet-small", 8)])
def test_each_rule_chooses_the_same_in_a_network(network, batch):
    trace, costs, _ = unmanaged_trace(network, batch)
    facts = problem(trace, costs)
    peak = int(live_bytes(facts).max())
    for share in (0.7, 0.4):
        for host in (0, peak // 8, 1 << 50):
            assert compare(facts, Limits(int(share * peak), host), compiled.MOST_LOOKS)[1] == len(RULES)
