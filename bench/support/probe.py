"""Time that passes inside some methods of an object, and what measuring it costs."""

import time
from collections.abc import Callable
from typing import Any

HOOKS = ("begin", "record_tensor_access", "donated", "freed", "temporary_id")  # of a tracker


class Probe:
    """Times the calls of some methods of one object."""

    def __init__(self, target: Any, names: tuple[str, ...]) -> None:
        self.seconds = 0.0
        self.calls = 0
        for name in names:
            setattr(target, name, self._timed(getattr(target, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = method(*arguments)
            self.seconds += time.perf_counter() - start
            self.calls += 1
            return result
        return timed


def own_seconds() -> float:
    """Seconds that a probe measures of a method that does nothing."""
    class Nothing:
        def nothing(self) -> None:
            pass

    target: Any = Nothing()
    probe = Probe(target, ("nothing",))
    for _ in range(100_000):
        target.nothing()
    return probe.seconds / probe.calls
