"""Arena ranges that hold one value each, for tests that issue work to a device without an engine."""

import time
from types import SimpleNamespace

from minidl.device import profiles
from minidl.device.cpu.device import ThreadedCpu
from minidl.meta import Algorithm, float32, meta

PLAIN = Algorithm("", 1e-6)
SIZE = 64  # elements of a cell
NBYTES = 4 * SIZE
PATIENCE_S = 60.0  # after which a test gives up on an event that must happen


def until(condition):
    """Poll until a condition holds; fail if it never does."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, "this never happened"
        time.sleep(1e-3)


def threaded(**options):
    return ThreadedCpu("cpu:threads", profiles.get("cpu"), **options)


def cell(index, dtype=float32, shape=(SIZE,)):
    """Return an operand in the index-th range of the arena."""
    operand = SimpleNamespace(meta=meta(shape, dtype), block=SimpleNamespace(offset=index * NBYTES))
    operand.base = operand
    return operand


def fill(device, index, value, algorithm=PLAIN):
    return device.launch("fill_", algorithm, (), (cell(index),), {"value": value}, 0)
