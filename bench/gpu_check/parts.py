"""The parts of the check by name, in the order in which they are run: the most important ones first.

A part is imported when it runs, so that only this part needs its requirements (PyTorch, a driver).
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from bench.gpu_check.setting import Record, Setting


@dataclass(frozen=True)
class Part:
    """A part of the check by its name. seconds: its share of the time; work not done by then is recorded as left out.
    """

    name: str
    seconds: int

    @property
    def measure(self) -> Callable[[Setting, Record], None]:
        """The function of the part, found in the module of its name."""
        found: Callable[[Setting, Record], None] = import_module(f"bench.gpu_check.{self.name}").measure
        return found


PARTS = {part.name: part for part in (
    Part("warm", 240), Part("properties", 20), Part("order", 10), Part("ops", 60), Part("identity", 40),
    Part("link", 10), Part("bandwidth", 15), Part("speed", 80), Part("host", 20), Part("managed", 110),
    Part("prediction", 40), Part("large", 15), Part("models", 30), Part("convolutions", 10), Part("sanitizer", 20),
    Part("torch", 60))}


def run(part: Part, setting: Setting, record: Record) -> None:
    """Run one part; an exception in it becomes a recorded failure, with the traceback."""
    with record.one(part.name):
        part.measure(setting, record)
