"""A custom policy that evicts the least recently used tensor first: python examples/own_policy.py

A policy receives facts and returns decisions as data; the engine evicts, swaps in and measures. So a policy is one
file, and policies can be compared. An entry point of "minidl.policies" in a package adds the policy to the choices of
train.py --policy.
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
    """A policy that swaps out the tensors unused for the most calls when memory is short."""
    name = "own-lru"  # its name in reports and of its entry point; minidl already has "lru"

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        by_age = sorted(resident, key=lambda tensor: -tensor.idle_calls)
        return [Eviction(tensor.tensor_id, Action.SWAP_OUT) for tensor in by_age]


def measure(policy: str | Policy) -> minidl.runtime.stats.Stats:
    """Return the costs of ResNet-50's third training step at batch 256, which needs 20 GiB, in 12 GiB of a P100."""
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


if __name__ == "__main__":  # an entry point imports this file without running the comparison
    for policy in ("passive", LeastRecentlyUsed()):
        step = measure(policy)
        name = policy if isinstance(policy, str) else policy.name
        print(f"{name:10} {step.seconds:.2f} s a step, {step.stall_seconds:.2f} s of it waiting for copies, "
              f"{format_bytes(step.swapped_out_bytes)} swapped out")
