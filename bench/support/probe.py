"""Time that passes inside some methods of an object, and the cost of measuring it."""

import time
from collections.abc import Callable
from typing import Any


class Probe:
    """Adds up the seconds that pass inside some methods, given as pairs (object, name of a method)."""

    def __init__(self, *methods: tuple[Any, str]) -> None:
        self.seconds = 0.0
        self.calls = 0
        for target, name in methods:
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
    """Return the seconds that a probe measures for a method that does nothing."""
    class Nothing:
        def nothing(self) -> None:
            pass

    target: Any = Nothing()
    probe = Probe((target, "nothing"))
    for _ in range(100_000):
        target.nothing()
    return probe.seconds / probe.calls


def tracking(runtime: Any) -> Probe:
    """Return a probe of all methods by which a runtime records accesses, donations and frees."""
    notes = [(runtime.tracker, name) for name in ("donated", "freed", "temporary_id")]
    return Probe((runtime.executor, "record_tensor_access"), *notes)
