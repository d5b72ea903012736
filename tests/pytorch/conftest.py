"""Fixtures: what a test has compiled or set for its process does not change how later programs run."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    """Forget compiled code after the test."""
    yield
    beneath = sys.modules.get("minidl.torch.beneath")
    if beneath is not None and beneath.compiled():
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Let PyTorch compute with one thread, as the results did that tests keep: another number rounds sums otherwise.
    A test elsewhere may have changed it, as numba.set_num_threads does where Numba uses OpenMP, too."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
