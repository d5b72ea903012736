"""The speed of whole batches as a fraction of the unmanaged speed, and the straight line on which their demand lies."""

from dataclasses import replace
from math import inf

from minidl.cli.app.fit import Setup

FEW, MORE = 64, 128  # examples: what they need says how demand grows; a network may refuse fewer (batch norm, one)
BETWEEN = (0.33, 0.67)  # of the way from the largest batch for which nothing moves to the largest, by factors


def on_line(few: int, more: int, bytes_there: int) -> int:
    """Return the batch that needs ``bytes_there`` bytes, by a straight line through two known points:
    batch FEW needs ``few`` bytes, batch MORE needs ``more``."""
    return int(FEW + (bytes_there - few) * (MORE - FEW) / max(more - few, 1))


def speeds(setup: Setup, largest: int, budget_bytes: int) -> list[tuple[int, float]]:
    """Return (batch, speed as a fraction of the unmanaged speed) for some whole batches:
    the largest that runs unmanaged (estimated, so its speed is 1), ``largest``, and a few between, as many as the limit
    of work allows. Empty if the first is below 1 or not below the second, or on other devices than simulated ones."""
    few, more = setup.demand(FEW), setup.demand(MORE)
    free = on_line(few.unmanaged_peak_bytes, more.unmanaged_peak_bytes, budget_bytes - setup.device.reserved_bytes)
    whole = replace(setup, slices=1)
    if not 1 <= free < largest or setup.device.simulated_twin() is None:
        return []
    between = [round(free * (largest / free) ** part) for part in BETWEEN]
    told = []
    for batch in sorted({free, *between, largest}, key=lambda n: (n != largest, n)):
        if batch == free:
            told.append((batch, 1.0))
        elif not setup.work.over and (unmanaged := whole.unmanaged_seconds(batch)) and (
                seconds := whole.managed_seconds(batch, budget_bytes)) and seconds < inf:
            told.append((batch, unmanaged / seconds))
    return sorted(told)
