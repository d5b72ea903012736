"""Pieces of an arena that hold one value each, for work that is given to a device without an engine."""

import time
from types import SimpleNamespace

from minidl.device import profiles
from minidl.device.cpu.threaded import ThreadedCpu
from minidl.meta import Algorithm, float32, meta

PLAIN = Algorithm("", 1e-6)
SIZE = 64  # elements of a cell
NBYTES = 4 * SIZE
PATIENCE_S = 60.0  # until a test gives up on something that must happen; never waited for if it does


def until(condition):
    """Poll until something holds that must come to hold."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, "this never happened"
        time.sleep(1e-3)


def threaded(**options):
    return ThreadedCpu("cpu:threads", profiles.get("cpu"), **options)


def cell(index, dtype=float32, shape=(SIZE,)):
    """An operand in the index-th piece of the arena."""
    operand = SimpleNamespace(meta=meta(shape, dtype), block=SimpleNamespace(offset=index * NBYTES))
    operand.base = operand
    return operand


def fill(device, index, value, algorithm=PLAIN):
    return device.launch("fill_", algorithm, (), (cell(index),), {"value": value}, 0)
