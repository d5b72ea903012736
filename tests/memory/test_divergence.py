"""Programs that do not repeat themselves exactly: several lengths in turn, random branches, a link that changes."""

from dataclasses import replace

import numpy as np
import pytest

from minidl import Runtime, models, nn, optim
from minidl.lab.training_step import training_step
from minidl.models import bert
from minidl.models.text import Text
from minidl.policies.auto.policy import Auto

LENGTHS = (96, 128, 64)


def test_three_lengths_in_turn_are_guided_from_the_third_time_that_each_is_seen():
    with Runtime(device="sim:p100", policy=Auto(rounds=0), memory_budget="2GiB") as runtime:
        model = models.create("bert-small")
        optimizer = optim.AdamW(model.parameters(), lr=1e-4)
        guide = runtime.guide
        for turn in range(5):
            for length in LENGTHS:
                with runtime.iteration():
                    loss = bert.loss(model, bert.synthetic_batch(runtime, 256, Text(length=length)))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    followed, calls = guide.active, runtime.executor.issued
                    if turn < 2:
                        continue
                    assert followed is not None and followed.plan.evictions, "every length needs more than there is"
                    assert len(guide._steps) == len(followed.steps)
                assert calls
        assert len(guide.entries) == len(LENGTHS)
        assert runtime.stats().swapped_out_bytes > 0
        runtime.check()
        assert guide.diverged <= 2 * len(LENGTHS)  # none since the second turn


def step_seconds(runtime, step, count):
    times = []
    for _ in range(count):
        before = runtime.stats()
        with runtime.iteration():
            step()
        times.append(runtime.stats().since(before).seconds)
    return times


@pytest.mark.slow
def test_when_the_link_slows_down_to_half_plans_are_made_for_the_slow_link():
    def slowed(device):
        profile = device.profile
        device.profile = replace(profile, link_out_bandwidth=profile.link_out_bandwidth / 2,
                                 link_in_bandwidth=profile.link_in_bandwidth / 2)

    def runtime():
        return Runtime(device="sim:p100", policy=Auto(rounds=5))

    with runtime() as changing:
        step = training_step("resnet18", 2000)
        fast = step_seconds(changing, step, 16)
        slowed(changing.device)
        after = step_seconds(changing, step, 20)
        changing.check()
    with runtime() as slow:
        slowed(slow.device)
        planner = slow.guide.planner
        planner.costs = replace(planner.costs, out_seconds_per_byte=2 / 12.4e9, in_seconds_per_byte=2 / 12.4e9)
        planned_for = step_seconds(slow, training_step("resnet18", 2000), 20)
    assert after[0] > 1.03 * fast[-1]
    assert after[-1] < 1.01 * planned_for[-1]
    assert after[-1] < 0.97 * after[0]


def test_a_link_that_is_as_planned_or_disturbed_for_a_moment_changes_no_plan():
    with Runtime(device="sim:p100", policy="capuchin") as runtime:
        step = training_step("resnet18", 2000)
        step_seconds(runtime, step, 5)
        guide, profile = runtime.guide, runtime.device.profile
        costs = guide.costs
        runtime.device.profile = replace(profile, link_out_bandwidth=profile.link_out_bandwidth / 3)
        step_seconds(runtime, step, 2)
        runtime.device.profile = profile
        step_seconds(runtime, step, 4)
        assert guide.costs == costs


@pytest.mark.slow
def test_a_network_with_a_random_branch_trains_as_without_management():
    class Branching(nn.Module):
        def __init__(self):
            self.first, self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 64)
            self.last = nn.Linear(64, 10)

        def forward(self, x, wide):
            y = self.first(x).relu()
            y = (self.wide(y).relu() * self.wide(y)) if wide else self.narrow(y).tanh()
            return self.last(y)

    def state(policy, budget):
        rng = np.random.default_rng(0)
        with Runtime(device="cpu:virtual", policy=policy, memory_budget=budget, host_memory="8MiB",
                     poisoned=True) as runtime:
            model = Branching()
            optimizer = optim.Adam(model.parameters(), lr=0.01)
            for _ in range(24):
                values, labels = rng.standard_normal((256, 32)).astype(np.float32), rng.integers(0, 10, 256)
                wide = bool(rng.random() < 0.5)
                with runtime.iteration():
                    optimizer.zero_grad()
                    loss = nn.CrossEntropyLoss()(model(runtime.tensor(values), wide), runtime.tensor(labels))
                    loss.backward()
                    optimizer.step()
                runtime.check()
            moved = runtime.stats().swapped_out_bytes + runtime.stats().recomputed_bytes
            entries = len(runtime.guide.entries) if runtime.guide else 0
            return {n: v.tobytes() for n, v in model.state_dict().items()}, moved, entries

    reference, _, _ = state("none", "4MiB")
    for policy in ("auto", "capuchin"):
        values, moved, entries = state(policy, "420KiB")
        assert moved > 0 and entries == 2
        assert values == reference
