"""A policy of one's own, the least recently used tensor leaves first: python examples/own_policy.py

A policy sees facts and answers with data; the engine evicts, brings back and counts. So one file is all it takes, and
any policy can be compared with any other. A package that offers it as an entry point of "minidl.policies" makes it a
choice of train.py's --policy, too.
"""

from collections.abc import Sequence

import minidl
from minidl import models
from minidl.meta import int64
from minidl.ops import cross_entropy
from minidl.optim import SGD
from minidl.outside.units import format_bytes
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Policy, Pressure, Residency


class LeastRecentlyUsed(OnDemand):
    """When memory is short, swap out what has not been used for the most calls."""

    name = "own-lru"  # what reports call it, and the name of its entry point; "lru" is ours already

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        by_age = sorted(resident, key=lambda tensor: -tensor.idle_calls)
        return [Eviction(tensor.tensor_id, Action.SWAP_OUT) for tensor in by_age]


def measure(policy: str | Policy) -> minidl.runtime.stats.Stats:
    """What the third training step of ResNet-50 costs at batch 256 in 12 GiB of a simulated P100; it needs 20."""
    with minidl.Runtime(device="sim:p100", memory_budget="12GiB", policy=policy) as runtime:
        model = models.create("resnet50")
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            before = runtime.stats()
            with runtime.iteration():
                images = runtime.tensor(None, shape=(256, 3, 224, 224))
                labels = runtime.tensor(None, shape=(256,), dtype=int64)
                loss = cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return runtime.stats().since(before)


if __name__ == "__main__":  # an entry point imports this file, and trains nothing
    for policy in ("passive", LeastRecentlyUsed()):
        step = measure(policy)
        name = policy if isinstance(policy, str) else policy.name
        print(f"{name:10} {step.seconds:.2f} s a step, {step.stall_seconds:.2f} s of it waiting for copies, "
              f"{format_bytes(step.swapped_out_bytes)} swapped out")
