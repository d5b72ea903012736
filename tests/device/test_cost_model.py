"""Profiles of GPUs and the modelled time of one call. Sizes are worked out beside each number."""

import dataclasses
import json
import math
from itertools import product

import pytest

from minidl import device as devices
from minidl.device import profiles
from minidl.device.cost_model import algorithms, kernel_seconds
from minidl.device.fitted import terms
from minidl.device.profiles import KINDS, PROFILES, Profile
from minidl.errors import UserError
from minidl.meta import Cost, Meta, meta
from minidl.ops.conv import CONV2D, CONV2D_DGRAD, CONV2D_WGRAD

GPUS = sorted(set(PROFILES) - {"cpu"})
P100 = PROFILES["p100"]
# Round numbers: 1 TFLOP/s, 100 GB/s, every efficiency 1/2, no overheads.
ROUND = Profile("round", "round numbers", 10**9, 1e12, 1e12, 100e9, 10e9, 5e9, link_latency_s=1e-3,
                launch_overhead_s=0.0, kernel_floor_s=0.0, half_fill_flops=0.0, half_fill_bytes=0.0,
                host_memory_bytes=10**9, efficiency=dict.fromkeys(KINDS, 0.5))


def one(profile: Profile, cost: Cost) -> float:
    (only,) = algorithms(profile, "relu", (), (), {}, cost)
    return only.seconds


def conv_calls(n: int, c: int, k: int, size: int, kernel: int, stride: int, padding: int):
    """The product and its two gradients as (op name, inputs, outputs, attributes, cost)."""
    extent = (size + 2 * padding - kernel) // stride + 1
    x, w, y = meta((n, c, size, size)), meta((k, c, kernel, kernel)), meta((n, k, extent, extent))
    attrs = {"stride": (stride, stride), "padding": (padding, padding)}
    cost = Cost(2.0 * y.size * c * kernel * kernel, float(x.nbytes + w.nbytes + y.nbytes), "conv")
    return [("conv2d", (x, w), (y,), attrs, cost), ("conv2d", (x, w, meta((k,))), (y,), attrs, cost),
            ("conv2d_relu", (x, w, meta((k,))), (y,), attrs, cost),
            ("conv2d_dgrad", (y, w), (x,), {**attrs, "x_shape": x.shape}, cost),
            ("conv2d_wgrad", (y, x), (w,), {**attrs, "kernel": (kernel, kernel)}, cost)]


CONVOLUTIONS = [call for n, c, size, (kernel, stride, padding) in product(
    (1, 64), (3, 64, 512), (7, 28, 225),
    ((1, 1, 0), (1, 2, 0), (3, 1, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 1, 3), (7, 2, 3)))
    for call in conv_calls(n, c, 64, size, kernel, stride, padding)]


def test_every_gpu_of_the_table_is_there():
    assert set(PROFILES) == {"p100", "p100-paper", "p100-cudnn", "p40", "v100", "a100", "h100", "h200", "t4",
                             "rtx2080ti", "rtx3090", "rtx4090", "cpu"}


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_complete_and_positive(name):
    profile = PROFILES[name]
    assert profile.name == name and profile.title
    assert set(profile.efficiency) == set(KINDS)
    assert all(0 < fraction < 1 for fraction in profile.efficiency.values())
    assert profile.bf16_flops == 0 or profile.bf16_flops > profile.tensor_flops  # 0: as for fp32
    others = ("name", "title", "efficiency", "rates", "rates_of", "cudnn_plans", "bf16_flops", "peer_bandwidth",
              "shared_bandwidth")
    numbers = [v for key, v in dataclasses.asdict(profile).items() if key not in others]
    assert all(value > 0 and math.isfinite(value) for value in numbers)
    assert isinstance(profile.memory_bytes, int) and isinstance(profile.host_memory_bytes, int)
    assert profile.tensor_flops >= profile.peak_flops


def test_the_p100_has_the_numbers_of_the_paper():
    assert P100.memory_bytes == 15_127 * 2**20 and P100.host_memory_bytes == 256_000_000_000
    assert (P100.link_out_bandwidth, P100.link_in_bandwidth) == (12.4e9, 12.4e9)
    paper = profiles.get("P100-paper")
    assert (paper.link_out_bandwidth, paper.link_in_bandwidth) == (12.7e9, 9.6e9)
    same = ("memory_bytes", "peak_flops", "memory_bandwidth", "efficiency", "half_fill_flops")
    assert all(getattr(paper, name) == getattr(P100, name) for name in same)


def test_the_slower_of_arithmetic_and_traffic_decides():
    assert one(ROUND, Cost(1e9, 0.0, "elementwise")) == pytest.approx(2e-3)  # 1 GFLOP at half of 1 TFLOP/s
    assert one(ROUND, Cost(0.0, 1e8, "elementwise")) == pytest.approx(2e-3)  # 100 MB at half of 100 GB/s
    assert one(ROUND, Cost(1e9, 4e8, "elementwise")) == pytest.approx(8e-3)
    assert one(ROUND, Cost(9e9, 4e8, "elementwise")) == pytest.approx(18e-3)


def test_a_kernel_of_half_fill_work_reaches_half_of_its_speed():
    small = dataclasses.replace(ROUND, half_fill_flops=1e9, half_fill_bytes=1e8, kernel_floor_s=1e-4)
    assert one(small, Cost(1e9, 0.0, "matmul")) == pytest.approx(4e-3 + 1e-4)
    assert one(small, Cost(0.0, 1e8, "copy")) == pytest.approx(4e-3 + 1e-4)
    assert one(small, Cost(0.0, 0.0, "copy")) == pytest.approx(1e-4)


def test_an_upload_takes_the_link_inwards():
    assert one(ROUND, Cost(0.0, 5e9, "link")) == pytest.approx(1.0 + 1e-3)  # 5 GB at 5 GB/s; outwards it would be 0.5 s


def test_products_use_tensor_cores_and_other_work_does_not():
    fast = dataclasses.replace(ROUND, tensor_flops=4e12)
    for kind in KINDS:
        expected = 0.5e-3 if kind in ("conv", "matmul") else 2e-3
        assert kernel_seconds(fast, kind, 1e9, 0.0) == pytest.approx(expected), kind


def test_a_kernel_bound_by_arithmetic_streams_as_well_as_a_copy():
    # A tenth of the arithmetic peak is not a tenth of the bandwidth: 100 MB at half of 100 GB/s take 2 ms all the same.
    profile = dataclasses.replace(ROUND, efficiency={**ROUND.efficiency, "conv": 0.1, "pool": 0.1})
    assert one(profile, Cost(1.0, 1e8, "conv")) == pytest.approx(2e-3)
    assert one(profile, Cost(1.0, 1e8, "pool")) == pytest.approx(10e-3)


@pytest.mark.parametrize("name", PROFILES)
def test_time_grows_with_work(name):
    for kind in (*KINDS, "link"):
        sizes = [10.0**exponent for exponent in range(2, 12)]
        by_bytes = [kernel_seconds(PROFILES[name], kind, 0.0, size) for size in sizes]
        assert all(a < b for a, b in zip(by_bytes, by_bytes[1:], strict=False))
        if kind != "link":
            by_flops = [kernel_seconds(PROFILES[name], kind, size, 0.0) for size in sizes]
            assert all(a < b for a, b in zip(by_flops, by_flops[1:], strict=False))


@pytest.mark.parametrize("name", GPUS)
def test_every_algorithm_of_a_convolution_slows_with_the_batch(name):
    for small, large in zip(conv_calls(8, 64, 64, 28, 5, 1, 2) + conv_calls(8, 64, 64, 28, 3, 1, 1),
                            conv_calls(16, 64, 64, 28, 5, 1, 2) + conv_calls(16, 64, 64, 28, 3, 1, 1), strict=True):
        before = {a.name: a for a in algorithms(PROFILES[name], *small)}
        after = {a.name: a for a in algorithms(PROFILES[name], *large)}
        assert before.keys() == after.keys()
        assert all(before[n].seconds < after[n].seconds and before[n].workspace <= after[n].workspace for n in before)


@pytest.mark.parametrize("name", PROFILES)
def test_every_convolution_has_an_alternative_without_workspace_in_the_class_of_its_first(name):
    for call in CONVOLUTIONS:
        choices = algorithms(PROFILES[name], *call)
        first = choices[0].bits_class
        members = [a for a in choices if a.bits_class == first]
        assert any(a.workspace == 0 for a in members)
        assert list(choices[:len(members)]) == sorted(members, key=lambda a: a.seconds)
        assert len({a.name for a in choices}) == len(choices)
        assert all(isinstance(a.workspace, int) and a.workspace >= 0 and a.seconds > 0 for a in choices)


@pytest.mark.parametrize("name", PROFILES)
def test_winograd_is_for_3x3_at_stride_1_and_fft_for_5x5_and_larger_at_stride_1(name):
    for op_name, inputs, outputs, attrs, cost in CONVOLUTIONS:
        weight = outputs[0] if op_name == "conv2d_wgrad" else inputs[1]
        classes = {a.bits_class for a in algorithms(PROFILES[name], op_name, inputs, outputs, attrs, cost)}
        unit = attrs["stride"] == (1, 1)
        assert ("winograd" in classes) == (unit and weight.shape[2] == 3)
        assert unit and weight.shape[2] >= 5 or "fft" not in classes
        assert "gemm" in classes


@pytest.mark.parametrize(("name", "expected"), [("p100", "winograd"), ("v100", "winograd"), ("rtx3090", "winograd"),
                                                ("a100", "gemm"), ("h200", "gemm")])  # 156 and 494 are over 2.25 x fp32
def test_the_default_for_3x3_is_winograd_unless_tensor_cores_gain_more(name, expected):
    for call in CONVOLUTIONS:
        first = algorithms(PROFILES[name], *call)[0]
        shape = (call[2][0] if call[0] == "conv2d_wgrad" else call[1][1]).shape
        assert first.bits_class == (expected if shape[2] == 3 and call[3]["stride"] == (1, 1) else "gemm")


@pytest.mark.parametrize("device", ["sim:p100", "sim:a100", "sim:h200", "cpu:virtual"])
def test_a_convolution_with_relu_has_the_algorithms_of_one_without(device):
    found = devices.create(device)
    for _, inputs, outputs, attrs, cost in CONVOLUTIONS:
        if len(inputs) == 3:
            alone, both = (found.algorithms(name, inputs, outputs, attrs, cost) for name in ("conv2d", "conv2d_relu"))
            assert alone == both


def find(choices, name: str):
    return next(a for a in choices if a.name == name)


def test_the_workspace_of_a_nonfused_winograd_is_its_transformed_tiles():
    # 64 images of 30x30 give 28x28, that is 64 * 14 * 14 = 12,544 tiles of 16 values, for 64 channels in and 128 out,
    # and 64 * 128 filters of 16: 4 * 16 * (12,544 * 192 + 8,192) bytes = 154,664,960.
    for call in conv_calls(64, 64, 128, 30, 3, 1, 0):
        assert find(algorithms(P100, *call), "winograd_nonfused").workspace == 154_664_960


def test_the_workspace_of_an_fft_is_its_spectra():
    # 10 images of 30x30 padded by 1 are 32x32 (the output is 28x28), 32 * 17 complex values each, and there are
    # 10 * 3 + 10 * 8 + 3 * 8 planes:
    # 8 * 544 * 134 bytes = 583,168.
    for call in conv_calls(10, 3, 8, 30, 5, 1, 1):
        assert find(algorithms(P100, *call), "fft").workspace == 583_168


def test_no_fft_is_offered_beyond_256_values_a_side():
    assert any(a.name == "fft" for a in algorithms(P100, *conv_calls(1, 3, 8, 252, 5, 1, 2)[0]))
    assert not any(a.name == "fft" for a in algorithms(P100, *conv_calls(1, 3, 8, 254, 5, 1, 2)[0]))


def test_an_index_buffer_is_small_and_buys_time():
    for call in conv_calls(64, 64, 64, 56, 3, 2, 1):
        fast, free = algorithms(P100, *call)
        assert (fast.name, free.name) == ("implicit_precomp_gemm", "implicit_gemm")
        assert fast.seconds < free.seconds and 0 < fast.workspace < 2**20 and free.workspace == 0


def test_winograd_does_2_25_times_fewer_products():
    # 1 TFLOP/s at 1/2: 2 * 64 * 56 * 56 * 64 * 64 * 9 = 14.8 GFLOP, 29.6 ms, or 13.2 ms; traffic is 103 MB, 2.1 ms.
    choices = algorithms(ROUND, *conv_calls(64, 64, 64, 56, 3, 1, 1)[0])
    assert find(choices, "winograd").seconds == pytest.approx(find(choices, "implicit_precomp_gemm").seconds / 2.25)


def test_a_step_of_many_channels_may_use_what_workspace_buys_on_a_p100():
    few, many = (algorithms(P100, *conv_calls(64, c, c, size, 3, 1, 1)[0]) for c, size in ((64, 224), (512, 28)))
    assert few[0].name == "winograd"  # 224x224 of 64 channels: the tiles' traffic costs more than it saves
    assert many[0].name == "winograd_nonfused"


def test_other_operations_have_one_algorithm_without_workspace():
    x: Meta = meta((64, 64, 56, 56))
    (only,) = algorithms(P100, "batch_norm", (x,), (x,), {}, Cost(1.0, 2.0 * x.nbytes, "elementwise"))
    assert (only.name, only.workspace, only.bits_class) == ("", 0, "")


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(UserError, match=r"no GPU profile 'p10'; did you mean .*p100"):
        profiles.get("p10")
    with pytest.raises(UserError, match=r"known: .*rtx3090"):
        profiles.get("zzzz")


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_survives_json(name, tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(profiles.to_json(PROFILES[name]))
    assert profiles.load(path) == PROFILES[name]
    assert hash(profiles.load(path)) == hash(PROFILES[name])


@pytest.mark.parametrize(("change", "message"), [
    ({"peak_flop": 1e12}, "unknown field 'peak_flop'; did you mean peak_flops"),
    ({"peak_flops": None}, r"Expected `float`, got `null` - at `\$.peak_flops`"),
    ({"peak_flops": 0}, r"peak_flops must be from 1000 to 1e\+24, not 0"),
    ({"peak_flops": 5e-324}, r"peak_flops must be from 1000 to 1e\+24, not 5e-324"),
    ({"bf16_flops": 1e-308}, r"bf16_flops must be 0, or from 1000 to 1e\+24, not 1e-308"),
    ({"link_out_bandwidth": 1e-308}, r"link_out_bandwidth must be from 1000 to 1e\+24, not 1e-308"),
    ({"kernel_floor_s": 1e308}, r"kernel_floor_s must be from 0 to 3600, not 1e\+308"),
    ({"half_fill_bytes": 1e300}, r"half_fill_bytes must be from 0 to 1e\+18, not 1e\+300"),
    ({"link_latency_s": -1}, "link_latency_s must be from 0 to 3600, not -1"),
    ({"peak_flops": math.nan}, r"peak_flops must be from 1000 to 1e\+24, not nan"),
    ({"memory_bandwidth": math.inf}, r"memory_bandwidth must be from 1000 to 1e\+24, not inf"),
    ({"memory_bytes": 10**400}, r"memory_bytes must be from 1 to 9.0072e\+15, not 10{56}\.\.\.$"),
    ({"memory_bytes": 1.5}, r"Expected `int`, got `float` - at `\$.memory_bytes`"),
    ({"memory_bytes": True}, r"Expected `int`, got `bool` - at `\$.memory_bytes`"),
    ({"title": 3}, r"Expected `str`, got `int` - at `\$.title`"),
    ({"cudnn_plans": "y" * 5000}, "cudnn_plans must be a text of at most 200 characters, not yyy"),
    ({"y" * 5000: 1}, r"unknown field 'y{57}\.\.\.'"),
    ({"efficiency": {"conv": "high"}}, r"Expected `float`, got `str` - at `\$.efficiency\[...\]`"),
    ({"efficiency": {"conv": 0.5}}, "no efficiency for winograd, fft"),
    ({"efficiency": {**P100.efficiency, "conv": 1.5}}, "efficiency of conv must be from 1e-06 to 1, not 1.5"),
    ({"efficiency": {**P100.efficiency, "conv": 5e-324}}, "efficiency of conv must be from 1e-06 to 1, not 5e-324"),
    ({"efficiency": {**P100.efficiency, "pol": 0.5}}, "unknown kind of work 'pol'; did you mean pool"),
    ({"rates": {"add": 3}}, r"Expected `object`, got `int` - at `\$.rates\[...\]`"),
    ({"rates": {"add": {"byte": 1e-9}}}, "unknown term of work 'byte'; did you mean bytes"),
    ({"rates": {"add": {"bytes": -1}}}, "rates of add: bytes must be from 0 to 3600, not -1"),
    ({"rates": {"add": {"bytes": 1e300}}}, r"rates of add: bytes must be from 0 to 3600, not 1e\+300"),
])
def test_a_faulty_profile_file_says_what_is_wrong(change, message, tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({**json.loads(profiles.to_json(P100)), **change}))
    with pytest.raises(UserError, match=message):
        profiles.load(path)


def test_a_profile_file_must_exist_be_json_be_an_object_and_be_complete(tmp_path):
    path = tmp_path / "gpu.json"
    with pytest.raises(UserError, match="cannot read profile .*gpu.json: No such file"):
        profiles.load(path)
    for content, message in ((b"{", "at byte 1: not JSON"), (b"\xff\xfe\x00", "at byte 0: not UTF-8"),
                             (b"[" * 10**5, "nested too deeply"), (b"[1]", "not a list"),
                             (b'{"name": 1' + b"0" * 5000 + b"}", "a number of thousands"),
                             (b'{"name": "x"}', "missing title, memory_bytes")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            profiles.load(path)


def test_overheads_may_be_zero_in_a_file(tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(profiles.to_json(ROUND))
    assert profiles.load(path).kernel_floor_s == 0.0


def test_groups_divide_the_operations_of_a_convolution_and_leave_it_no_transforms():
    x, plain, grouped = meta((2, 64, 28, 28)), meta((64, 64, 3, 3)), meta((64, 2, 3, 3))
    attrs = {"stride": (1, 1), "padding": (1, 1)}
    for op, inputs, of_weight in ((CONV2D, lambda w: (x, w), False), (CONV2D_DGRAD, lambda w: (x, w), False),
                                  (CONV2D_WGRAD, lambda w: (x, x), True)):
        whole, parts = (op.cost(inputs(w), (w if of_weight else x,), attrs) for w in (plain, grouped))
        assert parts.flops == whole.flops / 32
        found = algorithms(P100, op.name, inputs(grouped), (grouped if of_weight else x,), attrs, parts)
        assert {a.bits_class for a in found} == {"gemm"} and found[-1].workspace == 0
        # The unfolded input of all groups is that of the plain convolution.
        columns = [terms(op.name, inputs(w), (w if of_weight else x,), attrs, whole)["columns"]
                   for w in (plain, grouped)]
        assert columns == [2 * 28 * 28 * 64 * 9] * 2
