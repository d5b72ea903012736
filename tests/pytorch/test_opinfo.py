"""PyTorch's own samples of its functions and modules: each passes, is refused by name, or is listed as different.

By default the first sample of each; ``slow``: up to 25, of five dtypes. ``python -m bench.peers`` prints the counts.
The samples are tried with numbers at the edges, too: zeros, ties, NaN, infinity, denormals, saturated ones.
"""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

from bench.support import edges, modinfo, opinfo  # noqa: E402

FAULTS = ("unclear", "wrong")


def faults(outcomes):
    """The cases that are wrong, or that end in an error that does not say what is refused; how many cases there
    were."""
    ended = list(outcomes)
    return [case for case in ended if case.kind in FAULTS], len(ended)


def names():
    return sorted({op.name for op in opinfo.names().values()})


def test_the_first_sample_of_each_function_passes_or_is_refused_by_name():
    found, cases = faults(opinfo.cases(1, ("float32", "int64")))
    assert found == [] and cases > 500


@pytest.mark.parametrize(("name", "dtype"), [
    ("nn.functional.scaled_dot_product_attention", "bfloat16"), ("nn.functional.linear_cross_entropy", "bfloat16"),
    ("nn.functional.interpolate", "float64"), ("nn.functional.max_pool2d", "int64"), ("div", "float32")])
def test_each_sample_of_functions_that_differed_in_a_dtype_passes_or_is_refused_by_name(name, dtype):
    found, cases = faults(opinfo.cases(25, (dtype,), name))
    assert found == [] and cases > 5


def test_the_first_sample_of_each_function_with_numbers_at_the_edges_is_pytorchs_or_as_in_float64():
    found, cases = faults(case for _, case in edges.cases(1, ("float32",)))
    assert found == [] and cases > 2000


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_three_samples_of_each_function_with_numbers_at_the_edges_are_pytorchs_or_as_in_float64(dtype):
    found, cases = faults(case for _, case in edges.cases(3, (dtype,)))
    assert found == [] and cases > 6000


def test_a_result_that_is_neither_pytorchs_nor_right_in_float64_is_found():
    def run(values):
        return None, [torch.tensor(values)], []
    theirs, truth = run([1.0, float("inf"), 2.0]), run([1.0, 3.0, 1e39])
    assert opinfo.amiss(run([1.0, 3.0, 2.0]), theirs, truth, "float32") == ""
    assert opinfo.amiss(run([1.0, float("inf"), float("nan")]), theirs, truth, "float32") == ""
    assert "nan for 1, in float64 1" in opinfo.amiss(run([float("nan"), 3.0, 2.0]), theirs, truth, "float32")
    assert "4 for inf, in float64 3" in opinfo.amiss(run([1.0, 4.0, 2.0]), theirs, truth, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", opinfo.DTYPES_TRIED)
def test_each_sample_of_each_function_passes_or_is_refused_by_name(dtype):
    found, cases = faults(opinfo.cases(25, (dtype,)))
    assert found == [] and cases > 1000


@pytest.mark.default(name=["BatchNorm2d", "LayerNorm", "LSTM", "Linear", "CrossEntropyLoss", "MaxPool2d"])
@pytest.mark.parametrize("name", sorted(modinfo.modules()))
def test_each_sample_of_a_module_passes_or_is_refused_by_name(name):
    found, cases = faults(modinfo.cases(("float32",), name))
    assert found == [] and cases > 0


def test_an_error_that_names_no_argument_is_unclear_and_a_users_error_is_a_refusal():
    def error(make):
        with pytest.raises(Exception) as caught:
            make()
        return opinfo.refusal(caught.value)
    assert error(lambda: (lambda x: x)(1, 2)) == "unclear"
    assert error(lambda: (lambda x: x)(1, y=2)) == "refused"
    assert error(lambda: (_ for _ in ()).throw(opinfo.UserError("no"))) == "refused"
    assert error(lambda: {}["x"]) == "unclear"
    assert error(lambda: (_ for _ in ()).throw(opinfo.UserError("this tensor is gone"))) == "unclear"
