"""The import of numba-cuda, with a stand-in for it: NumPy has what it wants then, and is afterwards as it was."""

import importlib
import importlib.util
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FILE = Path(__file__).resolve().parents[2] / "minidl/kernels/cuda/numba_cuda.py"
MESSAGE = ("The 'generic' unit for NumPy timedelta is deprecated, and will raise an error in the future. This includes "
           "implicit conversion")


def load(monkeypatch, imported):
    """The module anew; ``imported`` stands in for the import of each of numba-cuda's."""
    monkeypatch.setattr(importlib, "import_module", imported)
    spec = importlib.util.spec_from_file_location("anew", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("removed", [True, False])
def test_numpy_has_row_stack_while_numba_cuda_is_imported_and_is_afterwards_as_it_was(monkeypatch, removed):
    monkeypatch.setattr(np, "row_stack", np.concatenate, raising=False)
    if removed:
        monkeypatch.delattr(np, "row_stack")
    seen = {}

    def imported(name):
        seen[name] = np.row_stack
        warnings.warn(MESSAGE, DeprecationWarning, stacklevel=1)  # the suite makes an error of each
        return SimpleNamespace(intrinsic=name)
    module = load(monkeypatch, imported)
    assert set(seen.values()) == {np.vstack if removed else np.concatenate} and "numba.cuda.np.arrayobj" in seen
    assert hasattr(np, "row_stack") is not removed
    assert module.intrinsic == "numba.cuda.extending"


def test_another_warning_of_the_import_is_not_hidden(monkeypatch):
    had = hasattr(np, "row_stack")

    def imported(name):
        warnings.warn("something else", DeprecationWarning, stacklevel=1)
    with pytest.raises(DeprecationWarning, match="something else"):
        load(monkeypatch, imported)
    assert hasattr(np, "row_stack") is had
