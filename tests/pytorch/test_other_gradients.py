"""PyTorch's own samples of its functions show of which calls a gradient has other bits under a dispatch mode."""

import warnings
from contextlib import nullcontext
from itertools import islice, product
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_samples import PARTS, bits, copied, in_part, with_gradients  # noqa: E402

from bench.support import opinfo  # noqa: E402
from minidl.torch import schemas  # noqa: E402
from minidl.torch.schemas import schema_of  # noqa: E402


class Passing(TorchDispatchMode):
    """Passes every call on; ``unfit`` if one of them is said to have another gradient."""

    unfit = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.unfit = self.unfit or schema_of(func).other_gradient(args)
        return func(*args, **kwargs or {})


def gradients(op, sample, sign, *, watched):
    """The bits of a sample's gradients; None if the mode knows of a call with another gradient.
    sign: of the results' gradients, 1 or -1."""
    torch.manual_seed(0)
    leaves = []
    first, args = copied(sample.input, leaves), copied(tuple(sample.args), leaves)
    kwargs = {name: copied(each, leaves) for name, each in sample.kwargs.items()}
    around = Passing() if watched else nullcontext()
    with around:
        asked = with_gradients(op(first, *args, **kwargs))
    if watched and around.unfit:
        return None
    if not asked or not leaves:
        return []
    given = [sign * torch.randn(t.shape, dtype=torch.float64).to(t.dtype) for t in asked]
    with around:
        found = torch.autograd.grad(asked, leaves, given, allow_unused=True)
    return list(map(bits, found))


def others(chosen, most):
    """The names of the chosen functions with another gradient, and the number of gradients that were compared."""
    found, compared = set(), 0
    for op in chosen:
        for dtype, sign in product((torch.float32, torch.complex64), (1, -1)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=True), most))
                except Exception:  # no samples of this type
                    continue
                for sample in samples:
                    try:
                        plain, again = (gradients(op, sample, sign, watched=False) for _ in range(2))
                        if plain != again or not plain:
                            continue  # uninitialized, or without a gradient
                        watched = gradients(op, sample, sign, watched=True)
                    except Exception:
                        continue  # a function that runs under no mode is never recorded
                    compared += 1
                    if watched is not None and watched != plain:
                        found.add(op.name)
    return found, compared


def test_what_has_another_gradient_under_a_mode_is_in_the_table():
    names = {"prod", "masked_fill", "max", "min", "median", "nanmedian", "cumprod", "linalg.lstsq"}
    chosen = [op for op in opinfo.op_db if op.name in names]
    assert others(chosen, 24)[0] == set()
    with mock.patch.dict(schemas.OTHER_GRADIENTS, clear=True):
        found, compared = others(chosen, 24)
    assert found == names and compared > 50


@pytest.mark.default(part=[0])
@pytest.mark.parametrize("part", range(PARTS))
def test_no_other_sample_of_a_function_has_another_gradient_under_a_mode(part):
    found, compared = others([op for op in opinfo.op_db if in_part(op.name, part)
                              and op.supports_autograd and "jiterator" not in op.name], 12)
    assert not found and compared > 20
