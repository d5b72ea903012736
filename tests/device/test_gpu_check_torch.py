"""The part of the GPU check that manages a PyTorch training fails where a wait, a bit or a budget is wrong."""

import contextlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from bench.gpu_check import inside  # noqa: E402
from bench.gpu_check.parts import PARTS, run  # noqa: E402
from bench.gpu_check.setting import Record, Setting, Stack  # noqa: E402
from bench.gpu_check.sizes import TINY  # noqa: E402
from bench.support import torch_waits  # noqa: E402
from minidl.torch.cuda import Cuda, Wait  # noqa: E402
from minidl.torch.items import Handle  # noqa: E402

SMALL = replace(TINY, stack=Stack(1, 32, 2, 2, 16), rounds=1)


@pytest.fixture
def failures(tmp_path, monkeypatch):
    """A function that runs the part, with one contender under a budget, and returns its failures."""
    monkeypatch.setattr(inside, "SHARES", {"managed, 50%": 0.5})

    def found():
        record = Record(tell=lambda line: None)
        run(PARTS["torch"], Setting("cpu", SMALL, tmp_path), record)
        assert not record.unfinished
        return record.failures
    return found


@pytest.mark.slow
def test_nothing_is_wrong_with_it_as_it_is(failures):
    assert failures() == []


def test_a_wait_that_is_not_made_fails(failures, monkeypatch):
    monkeypatch.setattr(inside, "_train_all", lambda setting, record, where: None)

    class Forgetful(Cuda):
        def _wait(self, why, stream, event):
            if why is not Wait.RETURNED:
                super()._wait(why, stream, event)
    monkeypatch.setattr(torch_waits, "Cuda", Forgetful)
    words, = (failure for failure in failures() if failure.startswith("wait RETURNED"))
    assert "wrong bytes" in words


@pytest.mark.slow
def test_other_bits_and_a_peak_above_the_budget_fail(failures, monkeypatch):
    monkeypatch.setattr(inside, "PROGRAMS", {})
    usual = Handle.tensor

    def spoiled(self):
        tensor = usual(self)
        return tensor + 1 if tensor.is_floating_point() else tensor

    @contextlib.contextmanager
    def much(where, before, lasting):
        yield [1 << 40]
    monkeypatch.setattr(Handle, "tensor", spoiled)
    monkeypatch.setattr(inside, "_peak", much)
    bits, peak = failures()
    assert "other bits" in bits and f"a peak of {1 << 40} bytes" in peak
