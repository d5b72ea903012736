"""A fixture forgets the code that a test has compiled: such code changes how later programs are managed."""

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
