"""What a test has compiled by ``torch.compile`` is forgotten after it: it changes how later programs are managed."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    """Forget compiled code after the test."""
    yield
    recorder = sys.modules.get("minidl.torch.recorder")
    if recorder is not None and recorder.compiled():
        sys.modules["torch._dynamo"].reset()
