"""The names that a program finds in ``torch`` after ``import minidl.as_torch``. That import replaces ``torch`` in the
whole process, so each program runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BEGINNING = """
import minidl.as_torch as torch, numpy as np
from torch.utils.data import DataLoader
def refused(kind, text, make):
    try:
        make()
    except kind as error:
        assert text in str(error), error
    else:
        assert False, text
"""
LOADER = """
def batches(data, **options):
    return [b.tolist() if isinstance(b, torch.Tensor) else b for b in DataLoader(data, **options)]
data = [10, 11, 12, 13, 14]
assert batches(data, batch_size=2) == [[10, 11], [12, 13], [14]] and len(DataLoader(data, 2)) == 3
assert batches(data, batch_size=2, drop_last=True) == [[10, 11], [12, 13]]
assert len(DataLoader(data, 2, drop_last=True)) == 2
assert sorted(sum(batches(data, batch_size=2, shuffle=True), [])) == data
assert batches(data, sampler=[3, 0]) == [[13], [10]]
assert batches(data, batch_sampler=[[1], [0, 4]]) == [[11], [10, 14]]
assert len(DataLoader(data, batch_sampler=[[1], [0, 4]])) == 2
assert batches(data, batch_size=None) == data and len(DataLoader(data, None)) == 5
assert batches([(np.ones(2), "a")], batch_size=None)[0][0].shape == (2,)
assert batches(data, batch_size=5, pin_memory=True, num_workers=3, persistent_workers=True, timeout=1, generator=None,
               prefetch_factor=2, worker_init_fn=print, in_order=True) == [data]
refused(TypeError, "batchsize", lambda: DataLoader(data, batchsize=2))
refused(ValueError, "sampler and shuffle exclude", lambda: DataLoader(data, sampler=[1], shuffle=True))
refused(ValueError, "batch_sampler and batch_size exclude", lambda: DataLoader(data, 2, batch_sampler=[[1]]))
refused(ValueError, "batch_size=None and drop_last exclude", lambda: DataLoader(data, None, drop_last=True))
refused(ValueError, "must be at least 1 or None, not 0", lambda: DataLoader(data, batch_size=0))
"""
TENSOR = """
x = torch.Tensor([1, 2])
assert (x.tolist(), x.dtype) == ([1.0, 2.0], torch.float32) and torch.Tensor(2, 3).shape == (2, 3)
assert torch.Tensor().shape == (0,) and torch.Tensor(np.arange(3)).tolist() == [0.0, 1.0, 2.0]
assert isinstance(x, torch.Tensor) and isinstance(torch.nn.Linear(1, 1).weight, torch.Tensor)
assert not isinstance(np.ones(2), torch.Tensor) and issubclass(type(x), torch.Tensor) and type(x) == torch.Tensor
assert {torch.Tensor: 1}[type(x)] == 1 and torch.Tensor.add(x, 1).tolist() == [2.0, 3.0]
torch.Tensor.twice = lambda self: self * 2
assert x.twice().tolist() == [2.0, 4.0]
refused(torch.UserError, "may be values or sizes", lambda: torch.Tensor(x.shape))
refused(TypeError, "torch.Tensor has no subclasses", lambda: type("Mine", (torch.Tensor,), {}))
"""


@pytest.mark.parametrize("program", [LOADER, TENSOR], ids=["the loader of data", "the class of tensors"])
def test_what_is_under_pytorchs_name_works_as_there_or_is_refused(program):
    ended = subprocess.run([sys.executable, "-W", "error", "-c", BEGINNING + program], cwd=ROOT, capture_output=True,
                           text=True, timeout=300)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr[-2000:]
