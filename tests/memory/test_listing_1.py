"""A Tensor shows the six fields of the paper's Listing 1: id, access count, timestamp, status, inputs, operation."""

import numpy as np
import pytest

from minidl import Runtime, no_grad, parameter
from minidl.memory.storage import Status
from minidl.ops import relu
from minidl.tensor import Tensor


@pytest.fixture
def runtime():
    with Runtime(device="sim:p100", memory_budget="1MiB", policy="passive") as made, made.iteration():
        yield made


def uploaded(runtime: Runtime, *shape: int) -> Tensor:
    return runtime.tensor(np.ones(shape, "float32"))


def test_each_field_of_listing_1_has_its_value(runtime):
    x, y = uploaded(runtime, 4, 4), uploaded(runtime, 4, 4)
    total = x + y
    before = runtime.trace().seconds  # when the product starts on the stall-free timeline
    product = total * x
    assert [x.tensor_id, y.tensor_id, total.tensor_id, product.tensor_id] == [0, 1, 2, 3]  # by position
    # Made is access 1. x was added and multiplied, y was added, the sum was multiplied.
    assert [t.access_count for t in (x, y, total, product)] == [3, 2, 2, 1]
    assert product.timestamp == pytest.approx(before) and product.timestamp > 0
    assert product.status is Status.IN
    assert product.inputs == (total.tensor_id, x.tensor_id) and total.inputs == (x.tensor_id, y.tensor_id)
    assert (total.operation_name, product.operation_name) == ("add", "mul")


def test_inputs_come_in_the_order_of_the_operation_and_as_often_as_it_names_them(runtime):
    x, y = uploaded(runtime, 4), uploaded(runtime, 4)
    assert (y - x).inputs == (y.tensor_id, x.tensor_id)
    assert (x * x).inputs == (x.tensor_id, x.tensor_id)


def test_what_no_call_made_has_no_inputs(runtime):
    weights = parameter((4,))
    assert weights.inputs == () and weights.operation_name == ""


def test_what_is_read_through_a_view_is_named_by_its_base(runtime):
    x = uploaded(runtime, 4, 2)
    view = x.reshape((8,))
    assert view.tensor_id == x.tensor_id  # one record, one id
    assert view.inputs == (x.tensor_id,) and relu(view).inputs == (x.tensor_id,)


def test_inputs_end_with_the_iteration_that_computed_them():
    with Runtime(device="sim:p100", memory_budget="1MiB", policy="passive") as made:
        with made.iteration(), no_grad():
            kept = relu(uploaded(made, 4))
            assert len(kept.inputs) == 1
        assert kept.inputs == ()  # its lineage was cut: it is a leaf from now on
