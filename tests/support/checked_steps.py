"""The loop of tests that train a network of their own."""

from collections.abc import Callable

from minidl import Runtime
from minidl.memory.ledger import Demand
from minidl.optim import Optimizer
from minidl.tensor import Tensor


def checked_steps(runtime: Runtime, optimizer: Optimizer, loss_of: Callable[[], Tensor],
                  steps: int) -> tuple[list[float], Demand]:
    """Train, and check the runtime's invariants after each step; return the losses and the demand of a step."""
    losses: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    needs = runtime.dry_run(step)
    losses.clear()
    for _ in range(steps):
        with runtime.iteration():
            step()
        runtime.check()
    return losses, needs
