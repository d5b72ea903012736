"""The CUDA device over a fake vendor that judges every call (``fake_cuda``): order, memory, layouts, alternatives.

No GPU is needed. What only a GPU can say, that the vendor's libraries do what the seam's words say, is for ``-m gpu``.
"""

import ast
import ctypes
import inspect
import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import KERNEL_S, PLANS, FakeCuda, JudgedCuda, WatchedCuda, stand_ins
from networks import Training
from races import Violation

import minidl
from minidl import device as devices
from minidl import models
from minidl.device import profiles
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.cuda import convolution, memory_format, missing, opening
from minidl.device.cuda.device import CudaDevice
from minidl.device.cuda.seam import Convolution, PlanInfo, Vendor
from minidl.device.cuda.staging import PIECE_BYTES, Staging
from minidl.device.cuda.streams import EventStreams
from minidl.device.cuda.timed_plans import MOST_TIMED, PlanTable, TimedPlan, key
from minidl.device.precision import PRECISIONS
from minidl.errors import DeviceError, UserError
from minidl.kernels.cuda import KERNELS
from minidl.memory.runner import may_donate
from minidl.meta import Cost, aligned, bfloat16, float32, int64, meta
from minidl.op import Signature
from minidl.optim import Adam

PROFILE = replace(profiles.get("cpu"), name="fake")
COST = Cost(0.0, 0.0, "elementwise")
SIZE = 64  # elements of a cell
NBYTES = 4 * SIZE
RESERVE = 1 << 12
HOST = ((3 * NBYTES, NBYTES // 2), (0, NBYTES // 2))  # a host copy in two pieces


def cuda(*, cells=16, numerics=True):
    """A device with an arena of some cells."""
    device = CudaDevice("cuda", PROFILE, FakeCuda(numerics=numerics), stand_ins(), reserve_bytes=RESERVE)
    device.attach(cells * NBYTES, 8 * NBYTES)
    return device


class Operand:
    """A tensor that lies at an offset of the arena."""

    def __init__(self, offset, described):
        self.meta = described
        self.block = SimpleNamespace(offset=offset, size=aligned(described.nbytes))
        self.base = self


def operand(offset, described):
    return Operand(offset, described)


def run(device, op, outputs, inputs, workspace=0, choice=0, **attrs):
    """Launch an operation by one of its alternatives."""
    algorithms = device.algorithms(op, [i.meta for i in inputs], [o.meta for o in outputs], attrs, COST)
    return device.launch(op, algorithms[choice], outputs, inputs, attrs, workspace)


def cell(index):
    return operand(index * NBYTES, meta((SIZE,), float32))


def upload(device, target, values, workspace=8 * NBYTES):
    run(device, "upload_", (), (target,), workspace=workspace, data=np.asarray(values))


# Streams and events -----------------------------------------------------------------------------------------------
def round_trip(forget=None):
    """5 in cell 0, out to the host, written over, and back into cell 1, which is doubled into cell 2.

    forget: a wait that is left out, (who, for whom). Returns the result and the vendor.
    """
    device = WatchedCuda(PROFILE, numerics=True, reserve_bytes=RESERVE)
    device.attach(16 * NBYTES, 8 * NBYTES)
    if forget is not None:
        wait = device.wait
        device.wait = lambda stream, of, position: None if (stream, of) == forget else wait(stream, of, position)
    cells = [cell(i) for i in range(3)]
    upload(device, cells[0], np.full(SIZE, 5.0))
    device.wait(COPY_OUT, COMPUTE, device.positions[COMPUTE])
    device.copy_out(HOST, 0, NBYTES)
    device.wait(COMPUTE, COPY_OUT, device.positions[COPY_OUT])
    device.poison(0, NBYTES, tuple(device.positions))  # freed
    upload(device, cells[0], np.full(SIZE, -1.0))
    device.wait(COPY_IN, COPY_OUT, device.positions[COPY_OUT])
    device.copy_in(NBYTES, HOST, NBYTES)
    device._expected[cells[1]] = 1  # what the judge calls the value that came from cell 0
    device.wait(COMPUTE, COPY_IN, device.positions[COPY_IN])
    run(device, "add", (cells[2],), (cells[1], cells[1]))
    return device.read(cells[2]), device.fake


WAITS = [(COPY_OUT, COMPUTE), (COPY_IN, COPY_OUT), (COMPUTE, COPY_IN)]


def test_a_stream_that_waits_for_another_sees_its_work():
    assert round_trip()[0].tolist() == [10.0] * SIZE


@pytest.mark.parametrize(("who", "on"), WAITS)
def test_without_any_one_of_its_waits_a_round_trip_is_refused(who, on):
    with pytest.raises(Violation):
        round_trip((who, on))


def test_a_wait_that_was_issued_behind_the_last_launch_is_kept_by_a_read():
    device = cuda()
    upload(device, cell(0), np.full(SIZE, 5.0))
    device.wait(COPY_OUT, COMPUTE, 1)
    device.copy_out(HOST, 0, NBYTES)
    device.wait(COPY_IN, COPY_OUT, 1)
    device.copy_in(NBYTES, HOST, NBYTES)
    device.wait(COMPUTE, COPY_IN, 1)
    assert device.read(cell(1)).tolist() == [5.0] * SIZE
    assert device.vendor.host_time >= device.streams.handles[COPY_IN].ready


@pytest.mark.parametrize("verb", ["copy_in", "copy_out"])
def test_an_event_that_is_recorded_before_its_work_is_found_out(verb, monkeypatch):
    right = getattr(CudaDevice, verb)

    def early(self, *arguments):
        stream = COPY_IN if verb == "copy_in" else COPY_OUT
        position = self.streams.mark(stream)
        mark, self.streams.mark = self.streams.mark, lambda stream: position
        right(self, *arguments)
        self.streams.mark = mark
        return position
    monkeypatch.setattr(CudaDevice, verb, early)
    with pytest.raises(Violation):
        round_trip()


def test_a_wait_for_what_the_host_has_seen_needs_no_call():
    device = cuda()
    upload(device, cell(0), np.zeros(SIZE))
    device.synchronize(COMPUTE, 1)
    device.wait(COPY_OUT, COMPUTE, 1)
    assert "wait" not in device.vendor.counts


def test_nothing_but_reading_waits_for_the_device():
    assert round_trip()[1].counts["synchronize"] == 1


def work(vendor, streams, stream, seconds):
    """Busy a stream."""
    vendor._work(streams.handles[stream], "work", seconds)


def timed(streams, vendor, told, name, seconds):
    streams.begin()
    work(vendor, streams, COMPUTE, seconds)
    return streams.mark(COMPUTE, lambda took: told.append((name, took)))


def test_times_are_told_in_order_without_waits_when_somebody_asks():  # 3 ms of copy in 1 + 2 ms of work: 2 ms of stall
    vendor = FakeCuda()
    streams, told = EventStreams(vendor), []
    timed(streams, vendor, told, "a", 1e-3)
    work(vendor, streams, COPY_IN, 3e-3)
    streams.mark(COPY_IN)
    streams.wait(COMPUTE, COPY_IN, 1)
    timed(streams, vendor, told, "b", 2e-3)
    assert told == [] and streams.stall == 0.0
    streams.settle()
    assert [name for name, _ in told] == ["a", "b"]
    assert [took for _, took in told] == pytest.approx([1e-3, 2e-3], rel=0.02)
    assert streams.stall == streams.stood[COPY_IN, 1] == pytest.approx(2e-3, rel=0.02)


def test_the_time_of_work_after_the_host_has_waited_is_its_own():
    vendor = FakeCuda()
    streams, told = EventStreams(vendor), []
    timed(streams, vendor, told, "a", 1e-3)
    work(vendor, streams, COPY_OUT, 5e-3)
    streams.synchronize(COPY_OUT, streams.mark(COPY_OUT))  # as a copy in passive mode
    timed(streams, vendor, told, "b", 1e-3)
    streams.settle()
    timed(streams, vendor, told, "c", 1e-3)  # the host has waited for the compute stream itself: no stall
    streams.settle()
    assert [took for _, took in told] == pytest.approx([1e-3] * 3, rel=0.02)
    assert streams.stall == pytest.approx(4e-3, rel=0.02)


def test_while_it_is_measured_work_of_a_slow_host_takes_what_the_device_takes():
    device, told = cuda(numerics=False), []
    algorithm = device.algorithms("relu", [cell(0).meta], [cell(1).meta], {}, COST)[0]

    def launched(host_seconds):
        device.vendor.host_time += host_seconds  # the host decides what to evict, and the device has no work
        device.launch("relu", algorithm, (cell(1),), (cell(0),), {}, 0, told.append)
    for measured, host_seconds in ((False, 1e-3), (True, 1e-3), (True, 0.0)):
        device.measure(measured)
        told.clear()
        for _ in range(5):
            launched(host_seconds)
        device.settle()
        usual = 1e-3 if not measured else KERNEL_S
        assert told[1:] == pytest.approx([usual] * 4, abs=5e-6 if measured else 5e-5)
    assert device.stall_seconds() == 0.0


def test_the_trace_of_a_slow_host_has_the_times_of_the_device(monkeypatch):
    def traced(host_seconds):
        device = WatchedCuda(PROFILE, numerics=False)
        launch = device.launch

        def slow(*arguments):
            device.fake.host_time += host_seconds
            return launch(*arguments)
        monkeypatch.setattr(device, "launch", slow)
        with minidl.Runtime(device, memory_budget="64MiB", host_memory="4MiB", policy="capuchin") as runtime:
            training = Training(runtime, "resnet", "momentum")
            for _ in range(7):
                training.iterate()
            (entry,) = runtime.guide.entries
            return entry.trace.seconds
    assert traced(1e-3) == pytest.approx(traced(0.0), rel=0.3)


def test_collecting_tells_what_has_finished_and_waits_for_nothing():
    vendor = FakeCuda()
    streams, told = EventStreams(vendor), []
    for name in range(4):
        timed(streams, vendor, told, name, 1e-3)
    vendor.host_time += 2.5e-3
    streams.collect()
    assert [name for name, _ in told] == [0, 1] and "synchronize" not in vendor.counts
    streams.settle()
    assert [name for name, _ in told] == [0, 1, 2, 3]


@pytest.mark.parametrize("depth", [4, 5, 16])
def test_a_ring_of_events_may_be_passed_many_times(depth):
    vendor = FakeCuda()
    streams, told, draw = EventStreams(vendor, depth=depth), [], random.Random(depth)
    for number in range(200):
        assert streams.positions[COMPUTE] - streams.finished[COMPUTE] < depth
        timed(streams, vendor, told, number, 1e-3 * (1 + number % 3))
        if draw.random() < 0.3:
            work(vendor, streams, COPY_OUT, 1e-4)
            position = streams.mark(COPY_OUT)
            streams.wait(COMPUTE, COPY_OUT, draw.randint(1, position))
    streams.settle()
    assert [name for name, _ in told] == list(range(200))
    assert [took for _, took in told] == pytest.approx([1e-3 * (1 + n % 3) for n in range(200)], rel=0.02)


# Bytes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nbytes", [256, 1024, 10 * 256, 9 * 1024])
@pytest.mark.parametrize("distance", [256, 512, 2048])
@pytest.mark.parametrize("up", [False, True])
def test_a_block_is_slid_as_if_it_were_copied_first(nbytes, distance, up):
    device = cuda(cells=64)
    values = np.random.default_rng(0).integers(0, 1 << 30, nbytes // 8)
    origin, to = (1024, 1024 + distance) if up else (1024 + distance, 1024)
    upload(device, operand(origin, meta(values.shape, int64)), values)
    device.move(to, origin, nbytes)
    assert device.read(operand(to, meta(values.shape, int64))).tolist() == values.tolist()


def test_a_slide_by_little_goes_through_the_reserve_in_few_copies():  # 64 KiB by 256 B: 16 pieces of 4 KiB, twice
    device = cuda(cells=512, numerics=False)
    before = device.vendor.counts.get("copy", 0)
    device.move(0, 256, 1 << 16)
    assert device.vendor.counts["copy"] - before == 2 * (1 << 16) // RESERVE


@pytest.mark.parametrize("seed", range(5))
def test_staged_bytes_are_not_written_over_before_their_copy_has_ended(seed):
    vendor, draw = FakeCuda(numerics=True), random.Random(seed)
    streams = EventStreams(vendor)
    staging, target = Staging(streams), vendor.allocate(1 << 22)
    under_way, copy = [], vendor.copy

    def watched(to, origin, nbytes, stream):
        for start, end, position in under_way:
            assert position <= streams.finished[COMPUTE] or end <= origin or origin + nbytes <= start
        under_way.append((origin, origin + nbytes, streams.positions[COMPUTE] + 1))
        copy(to, origin, nbytes, stream)
    vendor.copy = watched
    for _ in range(300):
        for _ in range(draw.choice([1, 1, 1, 3])):
            data = np.full(draw.choice([1, 300, 5000, 1 << 17, 1 << 18, (1 << 19) + draw.randint(0, 99)]),
                           draw.randint(0, 255), np.uint8)
            staging.upload(target, data)
        streams.mark(COMPUTE)
        vendor.host_time += draw.choice([0.0, 1e-4])
    streams.settle()
    staging.close()
    vendor.free(target)
    vendor.close()


@pytest.mark.parametrize("nbytes", [PIECE_BYTES - 1, PIECE_BYTES, 4 * PIECE_BYTES + 1, 5 * PIECE_BYTES + 300])
def test_all_bytes_of_an_array_that_several_threads_stage_arrive_at_their_places(nbytes):
    vendor = FakeCuda(numerics=True, memory_bytes=1 << 25)
    streams, target = EventStreams(vendor), vendor.allocate(aligned(nbytes))
    staging, data = Staging(streams), np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    staging.upload(target, data)
    streams.mark(COMPUTE)
    streams.settle()
    assert ctypes.string_at(target, nbytes) == data.tobytes()
    staging.close()
    vendor.free(target)
    vendor.close()


def test_a_scalar_and_a_strided_tensor_are_read_as_they_are():
    device = cuda()
    upload(device, operand(0, meta((), float32)), np.float32(3.5))
    value = device.read(operand(0, meta((), float32)))
    assert value.shape == () and value == 3.5
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    lies = memory_format.channels_last(meta((2, 3, 2, 2), float32))
    target = operand(NBYTES, lies)
    upload(device, target, values)
    assert device.read(target).tolist() == values.tolist()
    assert device.read(operand(NBYTES, meta((2, 2, 2, 3), float32))).tolist() == values.transpose(0, 2, 3, 1).tolist()


# Layouts ----------------------------------------------------------------------------------------------------------
IMAGE = meta((2, 3, 4, 5), float32)
LAST = memory_format.channels_last(IMAGE)


def test_channels_last_is_a_matter_of_strides_and_keeps_what_lies_so_anyway():
    assert LAST.shape == IMAGE.shape and LAST.strides == (60, 1, 15, 3) and LAST.nbytes == IMAGE.nbytes
    for shape in ((2, 1, 4, 5), (2, 3, 1, 1), (5, 3), (), (2, 3, 4, 5, 6)):
        plain = meta(shape, float32)
        assert memory_format.channels_last(plain) is plain
    assert memory_format.channels_last(LAST) is LAST


@pytest.mark.parametrize(("op", "inputs", "lies"), [
    ("conv2d", (IMAGE,), LAST), ("conv2d_relu", (IMAGE,), LAST), ("upload", (), LAST),
    ("relu", (LAST,), LAST), ("relu", (IMAGE,), IMAGE),
    ("add", (IMAGE, LAST), LAST), ("contiguous", (LAST,), IMAGE), ("matmul", (LAST, LAST), IMAGE)])
def test_outputs_follow_their_inputs_layout(op, inputs, lies):
    assert memory_format.outputs(op, inputs, (IMAGE,)) == (lies,)


@pytest.mark.parametrize(("first", "second", "written", "given"), [
    (LAST, LAST, LAST, [0, 1]), (IMAGE, LAST, LAST, [1]), (LAST, IMAGE, LAST, [0]), (IMAGE, IMAGE, IMAGE, [0, 1])])
def test_an_output_is_written_over_an_input_only_where_both_lie_alike(first, second, written, given):
    signature = Signature(minidl.ops.elementwise.ADD, (first, second), (written,), ())
    inputs = [Operand(0, first), Operand(1, second)]
    for each in inputs:
        each.nbytes = each.meta.nbytes
    assert [position for _, position in may_donate(signature, inputs)] == given


# Products ---------------------------------------------------------------------------------------------------------
def strided(shape, order, offset=0):
    """A meta whose dimensions lie in this order, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return meta(shape, float32, tuple(strides), offset)


def check_product(op, first, second, bias=False, **attrs):
    """Compute a product on the fake and with NumPy."""
    from minidl import ops
    from minidl.kernels.cpu import KERNELS as CPU
    op_of = {"matmul": ops.linear.MATMUL, "linear": ops.linear.LINEAR, "linear_dgrad": ops.linear.LINEAR_DGRAD,
             "linear_wgrad": ops.linear.LINEAR_WGRAD}[op]
    described = [first, second] + ([meta((second.shape[0],), float32)] if bias else [])
    device, draw = cuda(cells=512), np.random.default_rng(1)
    operands, values, at = [], [], 0
    for m in described:
        span = m.offset + 1 + sum((d - 1) * s for d, s in zip(m.shape, m.strides, strict=True))
        whole = operand(at, meta((span,), float32))
        data = draw.integers(-3, 4, span).astype(np.float32)
        upload(device, whole, data)
        operands.append(operand(at, m))
        values.append(np.lib.stride_tricks.as_strided(data[m.offset:], m.shape, tuple(4 * s for s in m.strides)))
        at += whole.block.size
    result = op_of.infer(*described, **attrs)
    y = operand(at, result)
    run(device, op, (y,), operands, workspace=at + y.block.size, **attrs)
    right = np.empty(result.shape, np.float32)
    CPU[op](right, *[np.ascontiguousarray(v) for v in values], **attrs)
    assert device.read(y).tolist() == right.tolist()
    return device


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_matrix_products_in_every_transposition(transpose_a, transpose_b, batch):
    a, b = ((5, 4) if transpose_a else (4, 5)), ((6, 5) if transpose_b else (5, 6))
    device = check_product("matmul", meta((*batch, *a), float32), meta((*batch, *b), float32),
                           transpose_a=transpose_a, transpose_b=transpose_b)
    assert device.vendor.counts["gemm"] == 1


@pytest.mark.parametrize(("a", "b", "calls", "copies"), [
    # Heads of an attention layer, [N, heads, L, D] of [N, L, heads D]: the larger is the batch, a call for each other.
    (strided((2, 3, 4, 5), (0, 2, 1, 3)), strided((2, 3, 5, 6), (0, 2, 1, 3)), 2, 0),
    (meta((2, 3, 4, 5), float32), meta((5, 6), float32), 1, 0),  # the second for every matrix of the first
    (meta((4, 5), float32), meta((2, 5, 6), float32), 1, 0),
    (meta((2, 1, 4, 5), float32), meta((3, 5, 6), float32), 2, 0),
    (strided((4, 5), (1, 0)), strided((5, 6), (1, 0)), 1, 0),  # both by columns
    (meta((4, 5), float32, (40, 1), 3), meta((5, 6), float32, (30, 1), 2), 1, 0),  # slices, with an offset
    (meta((4, 5), float32, (40, 3)), meta((5, 6), float32, (6, 1)), 1, 1),  # neither step is 1: copied first
    (meta((4, 1), float32, (7, 5)), meta((1, 6), float32, (9, 1)), 1, 0),
    (meta((1, 5), float32, (3, 2)), meta((5, 1), float32, (1, 4)), 1, 0)])
def test_matrix_products_of_operands_in_any_layout(a, b, calls, copies):
    device = check_product("matmul", a, b, transpose_a=False, transpose_b=False)
    assert device.vendor.counts["gemm"] == calls and device.vendor.counts.get("launch", 0) == copies


@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 5), (1, 5), (3, 2, 4, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_and_their_gradients(shape, bias):
    x, w, dy = meta(shape, float32), meta((6, 5), float32), meta((*shape[:-1], 6), float32)
    check_product("linear", x, w, bias)
    check_product("linear_dgrad", dy, w)
    check_product("linear_wgrad", dy, x)


def test_linear_layers_of_strided_inputs():
    x, dy = strided((3, 4, 5), (1, 0, 2)), strided((3, 4, 6), (1, 0, 2))
    check_product("linear", x, meta((6, 5), float32), True)
    check_product("linear_dgrad", dy, meta((6, 5), float32))
    device = check_product("linear_wgrad", dy, x)  # a sum over all rows wants them in one order
    assert device.vendor.counts["launch"] == 2


def test_what_is_summed_over_nothing_is_zero_and_what_has_no_elements_is_not_launched():
    device = cuda()
    upload(device, cell(0), np.ones(SIZE, np.float32))
    empty, result = operand(NBYTES, meta((0, 5), float32)), operand(0, meta((6, 5), float32))
    run(device, "relu", (empty,), (empty,))
    run(device, "linear", (operand(NBYTES, meta((0, 6), float32)),), (empty, result))
    assert "launch" not in device.vendor.counts and "product" not in device.vendor.counts
    run(device, "linear_wgrad", (result,), (operand(NBYTES, meta((0, 6), float32)), empty))
    assert device.read(result).tolist() == [[0.0] * 5] * 6
    assert device.read(cell(0)).tolist() == [0.0] * 30 + [1.0] * (SIZE - 30)


def test_integers_have_no_products():
    with pytest.raises(UserError, match="no matrix products of int64"):
        cuda().algorithms("matmul", [meta((2, 2), int64)] * 2, [meta((2, 2), int64)],
                          {"transpose_a": False, "transpose_b": False}, COST)


# Convolutions -----------------------------------------------------------------------------------------------------
def check_convolution(kind, x, w, *, third=None, lies=memory_format.channels_last, choice=0, over=False):
    """Compute a convolution, or a gradient, on the fake and with the CPU's kernel. Returns the device."""
    from minidl.kernels.cpu import KERNELS as CPU
    n, _, h, width = x
    y = (n, w[0], h, width)
    attrs = {"stride": (1, 1), "padding": (w[2] // 2, w[3] // 2)}
    shapes = {"conv2d": (y, x, w), "conv2d_relu": (y, x, w), "conv2d_dgrad": (x, y, w), "conv2d_wgrad": (w, y, x)}[kind]
    if third is not None:
        shapes += (third,)
    device, draw, at = cuda(cells=1024), np.random.default_rng(2), 0
    operands, values = [], []
    for index, shape in enumerate(shapes):
        m = memory_format.channels_last(meta(shape, float32)) if index == 0 else lies(meta(shape, float32))
        made = operand(at, m)
        if over and index == 3:  # the output is written over what is added to it
            made = operands[0]
        values.append(draw.integers(-3, 4, shape).astype(np.float32))
        if index:
            upload(device, made, values[-1], workspace=1000 * NBYTES)
        operands.append(made)
        at += aligned(m.nbytes)
    if kind == "conv2d_dgrad":
        attrs["x_shape"] = x
    if kind == "conv2d_wgrad":
        attrs["kernel"] = w[2:]
    run(device, kind, operands[:1], operands[1:], workspace=at, choice=choice, **attrs)
    right = np.empty(shapes[0], np.float32)
    CPU[kind](right, *values[1:], **attrs)
    assert device.read(operands[0]).tolist() == right.tolist()
    return device


WINDOWS = [((2, 3, 5, 4), (4, 3, 3, 3)), ((2, 1, 5, 4), (4, 1, 3, 3)), ((3, 4, 1, 1), (5, 4, 1, 1)),
           ((2, 4, 5, 5), (1, 4, 1, 1))]


@pytest.mark.parametrize("kind", convolution.KINDS)
@pytest.mark.parametrize(("x", "w"), WINDOWS)
@pytest.mark.parametrize("lies", [memory_format.channels_last, lambda m: m], ids=["channels last", "C order"])
def test_convolutions_of_operands_in_either_layout(kind, x, w, lies):
    check_convolution(kind, x, w, lies=lies)


@pytest.mark.parametrize("choice", [0, 1])
def test_every_alternative_has_the_workspace_that_its_plan_asks_for(choice):
    device = check_convolution("conv2d", *WINDOWS[0], choice=choice)
    assert device.vendor.counts["convolve"] > 3


@pytest.mark.parametrize("lies", [memory_format.channels_last, lambda m: m], ids=["channels last", "C order"])
def test_a_bias_and_a_relu_follow_a_convolution_in_one_pass(lies):
    plain, *others = (check_convolution(kind, *WINDOWS[0], third=third, lies=lies).vendor.counts.get("launch", 0)
                      for kind in ("conv2d", "conv2d_relu") for third in (None, (4,)))
    assert [count - plain for count in others] == [1, 1, 1]


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
@pytest.mark.parametrize("lies", [memory_format.channels_last, lambda m: m], ids=["channels last", "C order"])
def test_a_gradient_is_added_to_what_has_arrived_even_in_the_same_bytes(over, part_bytes, lies, monkeypatch):
    monkeypatch.setattr(convolution, "PART_BYTES", part_bytes)
    x, w = WINDOWS[0]
    before = sum(1 for _ in PLANS) * 6  # each plan was timed
    device = check_convolution("conv2d_dgrad", x, w, third=x, over=over, lies=lies)
    assert device.vendor.counts["convolve"] - before == (x[0] if part_bytes == 1 else 1)


@pytest.mark.parametrize("kind", convolution.KINDS)
def test_what_cudnn_cannot_count_is_computed_in_parts_of_the_batch(kind, monkeypatch):
    x, w = (4, 3, 5, 4), (4, 3, 3, 3)
    monkeypatch.setattr(convolution, "MOST_ELEMENTS", 2 * 4 * 5 * 4)  # of two images' y, which is the larger tensor
    for third in {None, {"conv2d": (4,), "conv2d_relu": (4,), "conv2d_dgrad": x}.get(kind)}:
        device = check_convolution(kind, x, w, third=third)
        assert device.vendor.counts["convolve"] == len(PLANS) * 6 + 2  # each plan was timed, six times


def test_a_tensor_of_more_than_2_to_the_31_elements_is_cut_and_one_below_is_not():
    w = memory_format.channels_last(meta((64, 64, 3, 3), float32))
    attrs = {"stride": (1, 1), "padding": (1, 1)}
    for images, parts in ((2674, 1), (2676, 2), (5352, 3)):  # 802,816 elements an image: 2^31 are 2,674.9 of them
        plane = memory_format.channels_last(meta((images, 64, 112, 112), float32))
        for kind, ins, out in (("conv2d", (plane, w), plane), ("conv2d_dgrad", (plane, w), plane),
                               ("conv2d_wgrad", (plane, plane), w)):
            found = convolution.steps(kind, ins, out, {**attrs, "kernel": (3, 3)}, tf32=False)
            assert found.parts == parts and np.prod(found.convolution.x) < 1 << 31, (kind, images)


CONV = Convolution("conv2d", "float32", (2, 3, 5, 4), (4, 3, 3, 3), (2, 4, 5, 4), (1, 1), (1, 1))


def choices(plans):
    steps = convolution.steps("conv2d", [LAST, memory_format.channels_last(meta((4, 3, 3, 3), float32))],
                              memory_format.channels_last(meta((2, 4, 4, 5), float32)),
                              {"stride": (1, 1), "padding": (1, 1)}, tf32=False)
    return convolution.algorithms(steps, plans, 1e-3)


def test_the_deterministic_plan_is_the_first_in_fixed_order_with_little_workspace_whatever_it_takes():
    plans = [TimedPlan("quick", 100, False, 1e-6), TimedPlan("large", 1 << 30, True, 2e-6),
             TimedPlan("first", 100, True, 9e-6), TimedPlan("second", 0, True, 3e-6)]
    assert [c.name for c in choices(plans)] == ["first", "quick", "second"]  # "large" is slower and larger than "quick"
    untimed = [replace(p, seconds=None) for p in plans]
    assert choices(untimed)[0].name == "first"
    assert [c.bits_class for c in choices(plans)] == ["first", "quick", "second"]


def test_without_a_plan_that_adds_in_a_fixed_order_there_is_an_error():
    with pytest.raises(DeviceError, match="no fixed order"):
        choices([TimedPlan("quick", 0, False, 1e-6)])
    with pytest.raises(DeviceError, match="no plan"):
        choices([])


# Timed plans ------------------------------------------------------------------------------------------------------
def test_plans_are_timed_once_and_kept_on_disk(tmp_path):
    first = FakeCuda()
    plans = PlanTable(first, tmp_path).of(CONV)
    assert [p.name for p in plans] == [p.name for p in PLANS]
    # The fake takes 20 microseconds for the first plan, 40 for the second, 60 for the third; a call takes 1.
    assert [p.seconds for p in plans] == pytest.approx([20e-6, 40e-6, 60e-6], abs=3e-6)
    first.close()  # nothing was kept
    (file,) = tmp_path.iterdir()
    assert file.name == "cudnn-Fake-1-nhwc.json" and len(json.loads(file.read_text())) == 1
    second = FakeCuda()
    assert PlanTable(second, tmp_path).of(CONV) == plans
    assert "convolve" not in second.counts and "plans" not in second.counts


def test_plans_are_the_first_of_the_heuristics_and_those_that_need_less_workspace():
    fake = FakeCuda()
    fake.listed[:] = [PlanInfo(f"p{i}", 1000, False) for i in range(MOST_TIMED)] + [
        PlanInfo("no better", 1000, False), PlanInfo("fixed order", 2000, True), PlanInfo("larger", 2000, True),
        PlanInfo("fixed and smaller", 1500, True), PlanInfo("least", 10, False)]
    plans = PlanTable(fake).of(CONV, timed=False)
    assert [p.name for p in plans[MOST_TIMED:]] == ["fixed order", "fixed and smaller", "least"]
    assert [p.rank for p in plans] == [*range(MOST_TIMED), 11, 13, 14]


def test_a_trial_lists_plans_and_times_none_and_the_run_times_them_later(tmp_path):
    fake = FakeCuda()
    table = PlanTable(fake, tmp_path)
    assert [p.seconds for p in table.of(CONV, timed=False)] == [None] * 3 and "convolve" not in fake.counts
    assert None not in [p.seconds for p in table.of(CONV)]
    device = cuda()
    arguments = ("conv2d", (LAST, memory_format.channels_last(meta((4, 3, 3, 3), float32))),
                 (memory_format.channels_last(meta((2, 4, 4, 5), float32)),), {"stride": (1, 1), "padding": (1, 1)},
                 Cost(1e9, 1e6, "conv"))
    trial = device.dry_twin(timed=False).algorithms(*arguments)
    assert "convolve" not in device.vendor.counts and all(a.seconds > 0 for a in trial)
    assert device.dry_twin().algorithms(*arguments)[0].name == trial[0].name  # the deterministic mode's
    assert device.vendor.counts["convolve"]


def test_a_plan_that_is_listed_and_does_not_run_is_no_alternative_and_ends_nothing(tmp_path):
    fake = FakeCuda()
    fake.failing = {PLANS[0].name}
    assert [p.name for p in PlanTable(fake, tmp_path).of(CONV)] == [p.name for p in PLANS[1:]]
    assert fake.counts["convolve"] == 2 * 6
    fake.close()  # operands and workspaces were given back
    fake = FakeCuda()
    fake.failing = {p.name for p in PLANS}
    with pytest.raises(DeviceError, match=r"none of the 3 plans of conv2d float32 x 2x3x5x4 .* runs: cuDNN, plan"):
        PlanTable(fake).of(CONV)


def test_a_plan_that_fails_for_want_of_memory_stays_untimed_and_is_timed_by_the_next_process(tmp_path):
    fake = FakeCuda()
    fake.short = {PLANS[0].name}
    plans = PlanTable(fake, tmp_path).of(CONV)
    assert [p.name for p in plans] == [p.name for p in PLANS]
    assert [p.seconds is None for p in plans] == [True, False, False]
    (file,) = tmp_path.iterdir()
    assert [p["name"] for p in json.loads(file.read_text())[key(CONV)]] == [p.name for p in PLANS]
    again = PlanTable(FakeCuda(), tmp_path).of(CONV)
    assert [p.name for p in again] == [p.name for p in PLANS] and None not in [p.seconds for p in again]
    fake.short = {p.name for p in PLANS}
    assert [p.seconds for p in PlanTable(fake).of(CONV)] == [None] * 3  # nothing is lost where none ran
    fake.close()


def test_an_error_of_the_vendor_names_the_operation_and_is_a_device_error():
    device = cuda()

    def refuse(source, blocks, arguments, stream):
        raise DeviceError("launch of it: CUDA_ERROR_LAUNCH_FAILED (719)")
    device.vendor.launch = refuse
    with pytest.raises(DeviceError, match=r"^relu: launch of it: CUDA_ERROR_LAUNCH_FAILED \(719\)$"):
        run(device, "relu", (cell(1),), (cell(0),))


def test_a_plan_that_is_far_slower_than_the_best_is_timed_once_more_and_then_left():  # 80 us, and 3 x 20 are allowed
    fake = FakeCuda()
    fake.listed.append(PlanInfo("slow", 0, True))
    plans = PlanTable(fake).of(CONV)
    assert plans[3].seconds == pytest.approx(80e-6, abs=3e-6)
    assert fake.counts["convolve"] == 3 * 6 + 2


def test_a_file_of_plans_that_cannot_be_read_counts_as_none(tmp_path):
    path = tmp_path / "cudnn-Fake-1-nhwc.json"
    PlanTable(FakeCuda(), tmp_path).of(CONV)
    whole = path.read_text()
    name = json.loads(whole)[key(CONV)][0]["name"]
    for text in ("{", "[]", '{"a": [{"b": 1}]}', '{"a": 3}', "[" * 10**5, whole.replace(f'"{name}"', "7"),
                 re.sub(r'"workspace": \d+', '"workspace": "x"', whole),
                 re.sub(r'"seconds": [^,]+', '"seconds": NaN', whole),
                 re.sub(r'"workspace": \d+', '"workspace": -1', whole)):
        assert text != whole
        path.write_text(text)
        plans = PlanTable(FakeCuda(), tmp_path).of(CONV)
        assert [p.name for p in plans] == [p.name for p in PLANS] and all(p.seconds > 0 for p in plans)


def test_without_memory_for_timing_seconds_stay_unknown_and_are_found_by_the_next_process(tmp_path):
    small = PlanTable(FakeCuda(memory_bytes=100), tmp_path)
    assert [p.seconds for p in small.of(CONV)] == [None] * 3
    assert None not in [p.seconds for p in PlanTable(FakeCuda(), tmp_path).of(CONV)]


# The whole manager ------------------------------------------------------------------------------------------------
def train(network, policy, budget, *, iterations=6, numerics=True, host="4MiB", precision="tf32", **options):
    """Train on a watched device; returns (state, device, statistics, fewest host waits in an iteration)."""
    device = WatchedCuda(PROFILE, numerics=numerics, **options)
    with minidl.Runtime(device, memory_budget=budget + (1 << 16), host_memory=host, policy=policy,
                        precision=precision) as runtime:
        training, counts = Training(runtime, network, "momentum"), [0]
        for _ in range(iterations):
            training.iterate()
            counts.append(device.fake.counts.get("synchronize", 0))
        # On a busy machine an iteration may be planned anew and run on demand: the fewest are those under a plan.
        waits = min(after - before for before, after in pairwise(counts))
        stats = runtime.stats()
        state = training.state()
    device.close()
    return state, device, stats, waits


UNMANAGED = {}


def unmanaged(network):
    if network not in UNMANAGED:
        state, _, stats, _ = train(network, "none", 1 << 26)
        UNMANAGED[network] = state, stats.peak_bytes
    return UNMANAGED[network]


@pytest.mark.default(network=["vgg"])
@pytest.mark.parametrize(("network", "policy", "share"), [
    ("resnet", "passive", 0.6), ("vgg", "capuchin", 0.7), ("resnet", "capuchin", 0.7), ("branching", "capuchin", 0.7)])
def test_every_policy_gives_the_bits_of_an_unmanaged_run_and_obeys_the_order_of_streams(network, policy, share):
    state, peak = unmanaged(network)
    managed, _, stats, _ = train(network, policy, int(share * peak))
    assert managed == state
    assert stats.swapped_out_bytes > 0 and stats.peak_bytes <= share * peak


@pytest.mark.full
def test_a_bf16_training_has_the_bits_of_an_unmanaged_one_and_nearly_the_losses_of_float32():
    plain, _, stats, _ = train("resnet", "none", 1 << 26, precision="bf16")
    managed, _, moved, _ = train("resnet", "passive", int(0.7 * stats.peak_bytes), precision="bf16")
    assert managed == plain and moved.swapped_out_bytes > 0
    wanted, losses = (np.frombuffer(state["losses"]) for state in (unmanaged("resnet")[0], plain))
    assert losses == pytest.approx(wanted, rel=0.03) and (losses != wanted).any()
    assert stats.peak_bytes < 0.7 * unmanaged("resnet")[1]


def test_the_cpu_computes_the_same_losses():  # its products add in another order than the fake's
    with minidl.Runtime("cpu:virtual", memory_budget=1 << 26, host_memory=0, policy="none") as runtime:
        training = Training(runtime, "resnet", "momentum")
        for _ in range(6):
            training.iterate()
    losses = np.frombuffer(unmanaged("resnet")[0]["losses"])
    assert losses == pytest.approx(training.losses, rel=1e-4)


def test_a_guided_iteration_waits_for_nothing_but_its_times_and_the_value_that_it_reads():
    _, peak = unmanaged("vgg")
    _, _, stats, waits = train("vgg", "capuchin", int(0.9 * peak), iterations=8)
    assert stats.swapped_out_bytes > 0
    assert 0 < waits <= 2  # the loss, and the times at the iteration's end


MISSING = [(COMPUTE, COPY_IN), (COPY_OUT, COMPUTE), (COPY_IN, COMPUTE)]


@pytest.mark.parametrize(("who", "on"), MISSING)
def test_a_manager_that_forgets_one_kind_of_wait_is_found_out(who, on, monkeypatch):
    wait = EventStreams.wait
    monkeypatch.setattr(EventStreams, "wait", lambda self, stream, of, position: (
        None if (stream, of) == (who, on) else wait(self, stream, of, position)))
    _, peak = unmanaged("vgg")
    with pytest.raises(Violation):
        train("vgg", "capuchin", int(0.7 * peak), iterations=9)


def test_the_reserve_is_part_of_the_budget():
    device = WatchedCuda(PROFILE, reserve_bytes=1 << 20)
    with minidl.Runtime(device, memory_budget="3MiB", host_memory=0, policy="none") as runtime:
        assert runtime.budget_bytes == 2 << 20
        assert sum(device.fake._device.values()) == 3 << 20
    with pytest.raises(UserError, match="a memory budget of 1.0 MiB on cuda: more than 1.0 MiB is needed"):
        minidl.Runtime(WatchedCuda(PROFILE, reserve_bytes=1 << 20), memory_budget="1MiB", host_memory=0)


# Real kernels and full size ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("name", "batch", "budget"), [
    ("resnet50", 8, 1 << 31), ("vgg11", 2, 1 << 32), ("bert-base", 2, 1 << 32)])
def test_a_full_iteration_with_the_real_kernels_passes_the_judge(name, batch, budget, precision):
    table = {**stand_ins(), **KERNELS}
    device = JudgedCuda(replace(profiles.get("h200"), name="fake"), kernels=table)
    with minidl.Runtime(device, memory_budget=budget, host_memory="64MiB", policy="none",
                        precision=precision) as runtime:
        model, entry = models.create(name), models.find(name)
        optimizer = Adam(model.parameters(), lr=1e-4)
        with runtime.iteration():
            if entry.text:
                loss = model(*entry.text_batch(runtime, batch, entry.text))
            else:
                labels = runtime.tensor(np.zeros(batch, np.int64))
                loss = entry.loss(model, runtime.tensor(np.zeros((batch, *entry.input_shape), np.float32)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert device.fake.counts["launch"] > 150


# The seam ---------------------------------------------------------------------------------------------------------
def calls_of(cls):
    return {name: list(inspect.signature(f).parameters)[1:] for name, f in vars(cls).items()
            if inspect.isfunction(f) and not name.startswith("_")}


def test_the_real_vendor_and_the_null_one_have_every_call_of_the_seam():
    from bench.support.null_cuda import NullCuda
    wanted = calls_of(Vendor)
    tree = ast.parse((Path(devices.__file__).parent / "cuda" / "real.py").read_text(encoding="utf-8"))
    (real,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Cuda"]
    real_calls = {node.name: [a.arg for a in node.args.args[1:]] for node in real.body
                  if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
    assert real_calls == wanted
    for cls in (NullCuda, FakeCuda):
        assert {name: parameters for name, parameters in calls_of(cls).items() if name in wanted} == wanted


def test_the_fake_refuses_a_wrong_width_a_stray_pointer_and_a_foreign_plan():
    from minidl.kernels.cuda.launch import DeviceFunction
    fake = FakeCuda()
    stream, address = fake.stream(), fake.allocate(1024)
    source = DeviceFunction(stand_ins, ("*float32", "int64", "float32"), 32, ())
    fake.announced = [(address, address + 1000)]
    fake.launch(source, 1, [address, np.int64(1), np.float32(2)], stream)
    for arguments in ([address, 1, np.float32(2)], [address, np.int32(1), np.float32(2)], [address, np.int64(1), 2.0],
                      [address + 1001, np.int64(1), np.float32(2)], [address], [np.int64(address), np.int64(1),
                                                                                  np.float32(2)]):
        with pytest.raises(Violation):
            fake.launch(source, 1, arguments, stream)
    with pytest.raises(Violation, match="overlaps"):
        fake.copy(address, address + 8, 16, stream)
    with pytest.raises(Violation, match="leaves"):
        fake.copy(address + 1020, address, 16, stream)
    with pytest.raises(Violation, match="workspace"):
        fake.convolve(CONV, "fast", address, address, address, address, stream)


# Other libraries --------------------------------------------------------------------------------------------------
def test_a_tensor_is_given_to_other_libraries_as_a_copy_or_at_its_place():
    device = WatchedCuda(PROFILE, numerics=True)
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    with minidl.Runtime(device, memory_budget="1MiB", host_memory=0, policy="none") as runtime:
        x = runtime.tensor(values)
        y = x + x
        assert y.__dlpack_device__() == (2, 0)
        waits = device.fake.counts.get("synchronize", 0)
        copy = device.share(y.storage)
        assert copy.tolist() == (2 * values).tolist() and device.fake.counts["synchronize"] == waits + 1
        described = y.__cuda_array_interface__
        assert described["shape"] == (2, 3, 2, 2) and described["typestr"] == "<f4"
        assert described["strides"] == (48, 4, 24, 12)  # channels-last
        address, read_only = described["data"]
        assert address == device.address(y.storage) and not read_only


def test_tensors_on_the_host_are_given_by_dlpack_and_have_no_cuda_interface():
    with minidl.Runtime("cpu:virtual", memory_budget="1MiB", host_memory=0, policy="none") as runtime:
        x = runtime.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        assert np.from_dlpack(x).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert not hasattr(x, "__cuda_array_interface__")
        assert runtime.tensor(x.numpy()).numpy().tolist() == x.numpy().tolist()


class Elsewhere:
    """An array in another memory, which comes to the host when it is asked to."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, dl_device=None, copy=None, **options):
        assert dl_device == (1, 0)
        return self.values.__dlpack__(**options)


def test_an_array_of_another_device_is_taken_by_way_of_the_host():
    with minidl.Runtime("cpu:virtual", memory_budget="1MiB", host_memory=0, policy="none") as runtime:
        assert runtime.tensor(Elsewhere(np.arange(3.0))).numpy().tolist() == [0, 1, 2]


# Opening ----------------------------------------------------------------------------------------------------------
def test_without_a_gpu_one_line_says_what_is_missing_and_what_to_do(monkeypatch):
    monkeypatch.setattr(missing, "has_driver", lambda: False)
    with pytest.raises(UserError, match=r"^--device cuda needs an NVIDIA GPU and its driver.*--device cpu") as caught:
        devices.create("cuda")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(missing, "has_driver", lambda: True)
    monkeypatch.setattr(missing, "packages", lambda: ["cupy", "cuda-core"])
    with pytest.raises(UserError, match=r"^--device cuda needs cupy, cuda-core: pip install 'minidl\[cuda13\]'"):
        devices.create("cuda:1")


def test_a_package_inside_a_package_that_is_missing_is_missing():
    assert not missing._found("nowhere.inside") and missing._found("numpy.linalg")


def test_wrong_names_and_precisions_are_refused():
    for name, options, words in (("cuda:first", {}, "cuda:<number>"),
                                 ("cuda", {"precision": "fp8"}, "no precision 'fp8'"),
                                 ("cuda", {"poisoned": True}, "on the CPU only")):
        with pytest.raises(UserError, match=words):
            devices.create(name, **options)


def test_a_gpu_before_ampere_is_refused_bf16_in_one_line():
    old, new = (replace(FakeCuda().properties, name="Tesla T4", capability=c) for c in ((7, 5), (8, 0)))
    for properties, name in ((old, "fp32"), (old, "tf32"), (new, "bf16")):
        opening.refuse_what_it_cannot(properties, PRECISIONS[name])
    with pytest.raises(UserError, match=r"^Tesla T4 \(compute capability 7.5\) cannot compute in bf16"):
        opening.refuse_what_it_cannot(old, PRECISIONS["bf16"])


@pytest.mark.parametrize(("name", "capability", "peak"), [
    ("NVIDIA H200", (9, 0), "h200"), ("Tesla P100-PCIE-16GB", (6, 0), "p100"),
    ("NVIDIA A100-SXM4-80GB", (8, 0), "a100"), ("NVIDIA GeForce RTX 2080 Ti", (7, 5), "rtx2080ti"),
    ("Quadro GV100", (7, 0), "v100"), ("NVIDIA B200", (10, 0), "h100")])
def test_a_gpu_is_modelled_by_its_name_or_its_generation_with_its_own_memory_and_link(name, capability, peak):
    fake = FakeCuda()
    fake.properties = replace(fake.properties, name=name, capability=capability)
    profile = opening.profile_of(fake, 1 << 30)
    assert profile.peak_flops == profiles.get(peak).peak_flops
    assert profile.memory_bytes == fake.properties.free_bytes - opening.CONTEXT_BYTES
    assert profile.link_out_bandwidth == pytest.approx(50e9, rel=0.02)  # the fake's
    fake.close()


def test_tf32_is_asked_for_in_fp32_products_and_convolutions_alone():
    described = [meta((4, 4), float32)] * 2, [meta((4, 4), bfloat16)] * 2
    attrs = {"transpose_a": False, "transpose_b": False}
    from minidl.device.cuda import products
    for tf32 in (False, True):
        (single, *_), (half, *_) = (products.plan("matmul", m, m[0], attrs, tf32=tf32).calls[0] for m in described)
        assert (single.tf32, half.tf32) == (tf32, False)
    for dtype, wanted in ((float32, True), (bfloat16, False)):
        steps = convolution.steps("conv2d", [memory_format.channels_last(meta((2, 3, 4, 5), dtype)),
                                             memory_format.channels_last(meta((4, 3, 3, 3), dtype))],
                                  memory_format.channels_last(meta((2, 4, 4, 5), dtype)),
                                  {"stride": (1, 1), "padding": (1, 1)}, tf32=True)
        assert steps.convolution.tf32 is wanted


def test_a_gpu_before_turing_is_refused_a_cudnn_that_no_longer_runs_there():
    old, new = (replace(FakeCuda().properties, name="P100", capability=c) for c in ((6, 0), (7, 5)))
    for properties, cudnn in ((old, 91002), (new, 92800)):
        opening.refuse_what_it_cannot(replace(properties, cudnn=cudnn), PRECISIONS["fp32"])
    words = r"^P100 .compute capability 6.0. is not for cuDNN 9.28, only up to 9.10: pip install '.*cuda12-pascal.'$"
    with pytest.raises(UserError, match=words):
        opening.refuse_what_it_cannot(replace(old, cudnn=92800), PRECISIONS["fp32"])


@pytest.mark.parametrize(("driver", "toolkit", "words"), [
    (13000, 13, None), (13010, 12, None), (12040, 12, None), (13000, None, None),
    (12040, 13, r"this driver runs CUDA up to 12.4, but the installed packages are for CUDA 13: pip install "
                r"'minidl\[cuda12\]', or install driver 580 or newer"),
    (None, 13, "the loaded libcuda.so.1 has no cuInit")])
def test_the_driver_and_the_packages_are_compared_before_anything_is_loaded(driver, toolkit, words, monkeypatch):
    for name, value in (("has_driver", True), ("packages", []), ("driver_cuda", driver), ("toolkit_cuda", toolkit)):
        monkeypatch.setattr(missing, name, lambda value=value: value)
    message = missing.message()
    assert message is None if words is None else message is not None and re.search(words, message)
    assert message is None or "\n" not in message
