"""What an operation needs at once: inputs and outputs, less what may be written over. The exceptions are those of the
documents."""

import re
from pathlib import Path

import pytest

from bench.support.kernel_cases import CASES, OPS
from minidl import Runtime, device
from minidl.meta import DTYPES, meta
from minidl.ops.shape import between

PAGE = Path(__file__).parents[2] / "docs" / "slices.md"


def calls():
    """(operation, inputs, outputs, attributes) of every case of a kernel that makes something."""
    for case in CASES:
        op = OPS[case.name]
        if op.view or op.mutates is not None:
            continue
        inputs = tuple([meta(a.shape, DTYPES[a.dtype.name]) for a in case.inputs("float32")])
        made = op.infer(*inputs, **case.attrs)
        yield op, inputs, made if isinstance(made, tuple) else (made,), case.attrs


def test_what_has_the_shape_of_an_input_may_be_written_over_it_or_is_listed():
    found = {op.name for op, inputs, outputs, _ in calls() for i, y in enumerate(outputs)
             if y.nbytes >= 64 and i not in {output for output, _ in op.donates}
             and any(x.shape == y.shape and x.nbytes >= y.nbytes for x in inputs)}
    assert found == set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["sim:p100", "sim:h200"])
def test_every_operation_has_an_algorithm_without_a_workspace(name):
    twin = device.create(name).dry_twin()
    for op, inputs, outputs, attrs in calls():
        algorithms = twin.algorithms(op.name, inputs, outputs, attrs, op.cost(inputs, outputs, attrs))
        assert min(a.workspace for a in algorithms) == 0, op.name


def test_a_part_of_a_tensor_counts_whole():  # 4 MiB and 4 MiB, of which 1 each are added to 1
    with Runtime("sim:p100", policy="none") as runtime:
        def step():
            first, second = (runtime.tensor(None, shape=(1024, 1024)) for _ in range(2))
            between(first, 0, 0, 256) + between(second, 0, 0, 256)
        demand = runtime.dry_run(step)
        assert (demand.largest_op, demand.largest_op_bytes) == ("add", 9 << 20)
