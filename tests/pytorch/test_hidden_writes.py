"""PyTorch's own samples of its functions show what the table of hidden writes must have: each call writes only what
``schemas`` says, draws random numbers only if ``schemas`` says so, and gives the same bits when it is run again."""

import warnings
import zlib
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from bench.support import opinfo  # noqa: E402
from minidl.torch import schemas  # noqa: E402
from minidl.torch.schemas import schema_of, tensors_in, written_by  # noqa: E402

PARTS = 24  # of all functions; one of them is a default test
# The functions of which all samples are tried by default: they write statistics, or draw.
SURE = ("nn.functional.batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
        "nn.functional.dropout", "nn.functional.rrelu", "bernoulli", "nn.functional.instance_norm")
# Their results are any bytes; those of _ctc_loss in places that no target reaches, which its gradient does not read.
UNFILLED = ("empty", "resize", "new_empty", "_ctc_loss")


def bits(tensor):
    """The bytes of a tensor, or None if it has none to look at."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized or (
            tensor.device.type != "cpu" or tensor._is_zerotensor()):
        return None
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return storage.clone()


def elements(tensor):
    """The bytes of a tensor's elements."""
    return tensor.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)


class Looking(TorchDispatchMode):
    """Compares each call's operands before and after it, and its results with those of the same call again."""

    def __init__(self):
        super().__init__()
        self.found, self.calls = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = schema_of(func)
        told = {id(t) for t in written_by(schema, args, kwargs)}
        storages = {t.untyped_storage()._cdata for t in tensors_in(args, kwargs)
                    if id(t) in told and bits(t) is not None}
        before = [(t, bits(t)) for t in tensors_in(args, kwargs)]
        drawn = torch.get_rng_state()
        result = func(*args, **kwargs)
        self.calls += 1
        for tensor, old in before:
            if old is not None and tensor.untyped_storage()._cdata not in storages and not old.equal(bits(tensor)):
                self.found.add(f"{schema.name} writes without saying so")
        if not schema.seeded and not drawn.equal(torch.get_rng_state()):
            self.found.add(f"{schema.name} draws without saying so")
        if schema.again and not schema.view and not told and not any(word in schema.name for word in UNFILLED):
            after = torch.get_rng_state()
            torch.set_rng_state(drawn)
            again = func(*args, **kwargs)
            torch.set_rng_state(after)
            for one, other in zip(*(tensors_in(r if isinstance(r, (tuple, list)) else (r,)) for r in (result, again)),
                                  strict=True):
                # The elements alone: the storage of a mean may have room for more, with any bytes.
                if bits(one) is not None and not elements(one).equal(elements(other)):
                    self.found.add(f"{schema.name} gives other bits again")
        return result


def looked_at(chosen, most):
    """Run at most ``most`` samples of each chosen function; return what was found, and the number of calls."""
    looking = Looking()
    for op in chosen:
        try:
            samples = list(zip(op.sample_inputs("cpu", torch.float32, requires_grad=False), range(most), strict=False))
        except Exception:  # no samples of this type
            continue
        for sample, _ in samples:
            torch.manual_seed(0)
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                try:
                    with looking:
                        op(sample.input, *sample.args, **sample.kwargs)
                except (RuntimeError, NotImplementedError, TypeError, ValueError):
                    continue  # a function that runs under no mode is never recorded
    return looking.found, looking.calls


def test_what_writes_statistics_or_draws_is_in_the_tables():
    found, calls = looked_at([op for op in opinfo.op_db if op.name in SURE], 8)
    assert not found and calls > 40
    with mock.patch.dict(schemas.STATISTICS, clear=True):
        found, _ = looked_at([op for op in opinfo.op_db if op.name == "nn.functional.batch_norm"], 8)
    assert found == {"aten::native_batch_norm writes without saying so"}


@pytest.mark.default(part=[0])
@pytest.mark.parametrize("part", range(PARTS))
def test_no_sample_of_a_function_writes_or_draws_without_saying_so(part):
    found, calls = looked_at([op for op in opinfo.op_db if zlib.crc32(op.name.encode()) % PARTS == part
                               and "jiterator" not in op.name], 2)  # those compile for GPUs
    assert not found and calls > 20
