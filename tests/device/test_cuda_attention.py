"""Attention as one graph of cuDNN, over a fake vendor that judges every call: where it fits, what it is told and given.

The fake computes it with the CPU's kernel, from descriptions and addresses alone. What only a GPU can say, that cuDNN
does what the seam's words say, is for ``-m gpu``.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_cuda import FakeCuda, JudgedCuda, WatchedCuda

from minidl import Runtime, nn, ops
from minidl.device import profiles
from minidl.device.cuda import attention, missing
from minidl.device.cuda.seam import PlanInfo
from minidl.errors import DeviceError, UserError
from minidl.kernels.random import fold_seed
from minidl.meta import Cost, aligned, bfloat16, float16, float32, meta
from minidl.models import bert
from minidl.models.text import Text
from minidl.optim import SGD
from minidl.tensor import Tensor

PROFILE = replace(profiles.get("cpu"), name="fake")
N, LENGTH, HEADS, DEPTH = 2, 5, 3, 8
SHAPE = (N, LENGTH, HEADS * DEPTH)
PLAN_BYTES = 5000  # of the fake's plan


def step(device, dtype, *, mask=None, p=0.0, shape=SHAPE, attention=None, how=nn.attend):
    """Attention of random numbers, and the gradients of q, k and v; and the operations that were called."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    with Runtime(device, memory_budget="4MiB", host_memory=0, policy="none", attention=attention, seed=3) as runtime:
        leaves = [runtime.tensor(a, dtype=dtype) for a in arrays]
        for x in leaves[:3]:
            x.requires_grad = True
        added = mask(runtime) if callable(mask) else mask
        with runtime.iteration():
            y = how(leaves[0].alias(), *leaves[1:3], added, heads=HEADS, dropout=nn.Dropout(p))
            results = [y.numpy()]
            y.backward(leaves[3])
            called = [call.op for call in runtime.trace().calls]
        results += [x.grad.numpy() for x in leaves[:3]]
    return [r.astype(np.float64) for r in results], called


def judged(**options):
    return JudgedCuda(PROFILE, numerics=True, **options)


def key_mask(runtime) -> Tensor:
    hidden = np.arange(LENGTH) >= np.array([[LENGTH], [LENGTH - 2]])  # [N, LENGTH]
    return runtime.tensor(np.where(hidden, -1e4, 0.0).astype(np.float32)).reshape((N, 1, 1, LENGTH))


def turned_mask(runtime) -> Tensor:
    """[LENGTH, LENGTH], which lies by columns."""
    return ops.permute(runtime.tensor(np.random.default_rng(1).standard_normal((LENGTH, LENGTH)).astype(np.float32)),
                       (1, 0))


@pytest.mark.parametrize("mask", [None, key_mask, turned_mask, "causal"])
@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_halves_are_one_call_of_cudnn_each_way_with_the_results_of_the_cpu(dtype, mask):
    device = judged()
    made = nn.Causal() if mask == "causal" else mask
    results, called = step(device, dtype, mask=made)
    assert device.fake.counts["attend"] == 2 and "gemm" not in device.fake.counts and "softmax" not in called
    expected, _ = step("cpu:virtual", dtype, mask=made, attention="fused")
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)  # the same kernel on the same bytes


def test_dropout_is_the_vendors_from_a_key_on_the_device_that_forward_and_gradient_share():
    results, _ = step(judged(), bfloat16, p=0.4)

    def again(q, k, v, mask, heads, dropout):
        # The fake takes its two numbers, which both are the key, for one seed.
        key = fold_seed(seeds[0])
        return ops.scaled_dot_product_attention(q, k, v, heads=heads, p=dropout.p, seed=key ^ key << 32)
    with Runtime("sim:p100", seed=3) as runtime:
        seeds = [runtime.next_seed()]
    expected, _ = step("cpu:virtual", bfloat16, p=0.4, how=again)
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)


NO_GPU = missing.message()
REAL = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=REAL)], ids=["fake", "cuda"])
def test_forward_and_gradient_drop_the_same_elements(real):
    """y is linear in v, and dv the transpose of that: for each head the sum of dy y is that of dv v. With other zeros
    it would differ by some sqrt(p / (1 - p) / 64) / sqrt(64) = 1.3%, and by rounding to bf16 it does by 0.1%."""
    rng, shape = np.random.default_rng(0), (2, 64, HEADS * DEPTH)
    q, k, v, dy = (rng.uniform(0.5, 1.5, shape).astype(np.float32) for _ in range(4))
    with Runtime("cuda" if real else judged(), memory_budget="64MiB", host_memory=0, policy="none") as runtime:
        leaves = [runtime.tensor(a, dtype=bfloat16) for a in (q, k, v, dy)]
        leaves[2].requires_grad = True
        y = nn.attend(leaves[0].alias(), *leaves[1:3], heads=HEADS, dropout=nn.Dropout(0.4))
        assert y.operation_name == attention.ATTEND
        y.backward(leaves[3])
        found = [t.numpy().astype(np.float64) for t in (leaves[3], y, leaves[2].grad, leaves[2])]
    dy_y, dv_v = ((a * b).reshape(2, 64, HEADS, DEPTH).sum((1, 3)) for a, b in (found[:2], found[2:]))
    np.testing.assert_allclose(dy_y, dv_v, rtol=4e-3)


@pytest.mark.default(wanted=["auto"])
@pytest.mark.parametrize(("dtype", "shape", "mask"), [
    (float32, SHAPE, None), (bfloat16, (N, LENGTH, HEADS * 4), None),  # not of halves; 4 is no multiple of 8
    (bfloat16, SHAPE, lambda runtime: runtime.tensor(np.zeros((LENGTH, 1), np.float32), dtype=bfloat16)),
])
@pytest.mark.parametrize("wanted", ["auto", "fused"])
def test_what_cudnn_has_not_is_composed(dtype, shape, mask, wanted):
    device = judged()
    results, called = step(device, dtype, shape=shape, mask=mask, attention=wanted)
    assert "attend" not in device.fake.counts and called.count("softmax") == 1
    expected, _ = step("cpu:virtual", dtype, shape=shape, mask=mask)
    np.testing.assert_allclose(results[0], expected[0], rtol=0.02, atol=0.02)


def test_what_can_be_one_operation_is_composed_where_that_is_asked_for():
    device = judged()
    _, called = step(device, bfloat16, attention="composed")
    assert "attend" not in device.fake.counts and "attention_plan" not in device.fake.counts and "softmax" in called


def test_without_a_plan_for_the_gradient_it_is_composed(monkeypatch):
    right = FakeCuda.attention_plan
    monkeypatch.setattr(FakeCuda, "attention_plan", lambda self, a: None if a.gradient else right(self, a))
    assert "softmax" in step(judged(), bfloat16)[1]


def test_where_cudnn_fails_attention_is_not_composed_in_silence_but_is_where_that_was_asked_for(monkeypatch):
    def fail(self, a):
        raise DeviceError("cuDNN 91900 failed to build a plan")
    monkeypatch.setattr(FakeCuda, "attention_plan", fail)
    for wanted in ("auto", "fused"):
        with pytest.raises(DeviceError, match="cuDNN 91900 failed"):
            step(judged(), bfloat16, attention=wanted)
    assert "softmax" in step(judged(), bfloat16, attention="composed")[1]


def test_a_plan_is_found_again_on_disk_by_another_process_and_so_is_that_there_is_none(tmp_path):
    x = meta(SHAPE, bfloat16)
    odd = meta((N, LENGTH, HEADS * 4), bfloat16)
    options = {"heads": HEADS, "causal": False, "p": 0.1}
    first = FakeCuda()
    plans = attention.AttentionPlans(first, tmp_path)
    assert plans.fits(x, x, None, **options) and not plans.fits(odd, odd, None, **options)
    (file,) = tmp_path.iterdir()
    assert file.name == "cudnn-Fake-1-attention.json" and first.counts["attention_plan"] == 4
    second = FakeCuda()
    plans = attention.AttentionPlans(second, tmp_path)
    assert plans.fits(x, x, None, **options) and not plans.fits(odd, odd, None, **options)
    assert "attention_plan" not in second.counts
    found = attention.describe(x, x, None, **options)
    assert plans.of(found) == PlanInfo("attention", PLAN_BYTES, True)
    assert attention.text(found) != attention.text(replace(found, dropout=0.0))
    whole = file.read_text()
    for damaged in ("{", whole.replace("5000", "-1"), whole.replace('"attention"', "7")):
        file.write_text(damaged)
        third = FakeCuda()
        assert attention.AttentionPlans(third, tmp_path).fits(x, x, None, **options)
        assert third.counts["attention_plan"] == 2


def test_a_call_that_cudnn_cannot_run_is_the_users_error():
    with Runtime(judged(), memory_budget="4MiB", host_memory=0) as runtime:
        x = runtime.tensor(np.zeros(SHAPE, np.float32))
        with pytest.raises(UserError, match="float32.*on a GPU: cuDNN needs bfloat16 or float16"):
            ops.scaled_dot_product_attention(x, x, x, heads=HEADS)
        narrow = runtime.tensor(np.zeros((N, LENGTH, 12), np.float32), dtype=bfloat16)
        with pytest.raises(UserError, match="no plan that adds in a fixed order"):
            ops.scaled_dot_product_attention(narrow, narrow, narrow, heads=HEADS)


def test_its_workspace_has_room_for_the_plan_for_copies_and_for_the_seed():
    device, x = judged(), meta(SHAPE, bfloat16)
    turned = meta((LENGTH, LENGTH), float32, (1, LENGTH))
    lse = meta((N, HEADS, LENGTH), float32)

    def workspace(*mask, p=0.0):
        attrs = {"heads": HEADS, "causal": False, "p": p, "seed": 1}
        found, = device.algorithms(attention.ATTEND, (x, x, x, *mask), (x, lse), attrs, Cost(1.0, 1.0, "matmul"))
        assert found.name == found.bits_class == "attention"
        return found.workspace
    plan = aligned(PLAN_BYTES)
    assert workspace() == plan
    assert workspace(p=0.1) == plan + 256
    assert workspace(turned, p=0.1) == plan + 256 + 256  # 5 x 5 x 4 bytes, aligned


def test_operands_that_start_between_multiples_of_16_bytes_are_copied():
    def shifted(q, k, v, mask, heads, dropout):
        joined = ops.reshape(ops.concat([ops.reshape(q, (-1,)), ops.reshape(k, (-1,))], 0), (2, *SHAPE))
        flat = ops.reshape(v, (-1,))
        odd = ops.reshape(ops.between(ops.concat([ops.between(flat, 0, 0, 3), flat], 0), 0, 3, 3 + v.numel()), SHAPE)
        first, second = (ops.reshape(ops.between(joined, 0, i, i + 1), SHAPE) for i in range(2))
        return nn.attend(first, second, odd, mask, heads=heads, dropout=dropout)
    device = judged()
    results, _ = step(device, bfloat16, how=shifted)
    expected, _ = step("cpu:virtual", bfloat16, how=shifted, attention="fused")
    assert device.fake.counts["attend"] == 2
    np.testing.assert_array_equal(results[0], expected[0])


def test_each_shape_is_asked_for_once():
    device = judged()
    with Runtime(device, memory_budget="4MiB", host_memory=0, policy="none") as runtime:
        x = runtime.tensor(np.zeros(SHAPE, np.float32), dtype=bfloat16)
        for _ in range(3):
            assert device.fuses_attention(x.meta, x.meta, None, heads=HEADS, causal=False, p=0.0)
    assert device.fake.counts["attention_plan"] == 2  # it and its gradient


def test_memory_management_changes_no_bit_of_a_transformer_in_bf16():
    text = Text(length=24, predictions=5, vocabulary=40)

    def train(budget, policy):
        device = WatchedCuda(PROFILE, numerics=True)
        with Runtime(device, memory_budget=budget + (1 << 16), host_memory="8MiB", policy=policy, precision="bf16",
                     seed=5) as runtime:
            model = bert.BertForPreTraining(bert.BertConfig(2, 32, 4, vocab_size=40, max_position_embeddings=24))
            batch = bert.synthetic_batch(runtime, 6, text)
            optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
            for _ in range(4):
                with runtime.iteration():
                    optimizer.zero_grad()
                    model(*batch).backward()
                    optimizer.step()
                runtime.check()
            stats = runtime.stats()
            state = {name: array.tobytes() for name, array in model.state_dict().items()}
        assert device.fake.counts["attend"] >= 4 * 4  # two layers, both ways; replays
        device.close()
        return state, stats
    free, stats = train(1 << 26, "none")
    tight, stats = train(stats.peak_bytes * 3 // 4, "auto")
    assert tight == free
    assert stats.swapped_out_bytes + stats.recomputed_bytes > 0


# cuDNN itself ---------------------------------------------------------------------------------------------------------
# A driver without a GPU. Its calls succeed: an attention graph is compiled and loaded when its plan is built.
VALUES = {"cuDriverGetVersion": "*(int *)a = 13000", "cuGetErrorString": '*(char **)b = "stub"',
          "cuGetErrorName": '*(char **)b = "stub"', "cuDeviceGetCount": "*(int *)a = 1", "cuDeviceGet": "*(int *)a = 0",
          "cuKernelGetAttribute": "*(int *)a = 0", "cuOccupancyMaxPotentialClusterSize": "*(int *)a = 8",
          "cuCtxGetLimit": "*(size_t *)a = 1024", "cuStreamGetCtx": "*(void **)b = it", "cuLinkCreate": "",
          **dict.fromkeys(("cuCtxGetCurrent", "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetKernel",
                           "cuKernelGetFunction", "cuModuleLoadData", "cuModuleGetFunction"), "*(void **)a = it"),
          **dict.fromkeys(("cuCtxPushCurrent", "cuCtxPopCurrent", "cuModuleUnload", "cuLibraryUnload",
                           "cuKernelSetAttribute", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
                           "cuLinkAddData", "cuLinkComplete", "cuLinkDestroy", "cuTensorMapEncodeIm2col",
                           "cuTensorMapEncodeTiled"), "")}
SHAPES = [{}, {"dtype": "float16", "causal": True}, {"mask": (8, 1, 1, 512), "mask_dtype": "float32"},
          {"mask": (1, 8, 512, 512), "mask_dtype": "bfloat16", "dropout": 0.1}, {"dropout": 0.1, "causal": True},
          {"dtype": "float32"}, {"depth": 20}, {"depth": 264}]
LISTING = """
import json, sys
from minidl.device.cuda.attention_graphs import AttentionGraphs
from minidl.device.cuda.seam import Attention
graphs = AttentionGraphs(None, open(sys.argv[1]).read())
usual = dict(dtype="bfloat16", n=8, heads=8, length=512, keys=512, depth=64, causal=False, dropout=0.0)
shapes = [{**usual, **shape, "mask": tuple(shape["mask"]) if "mask" in shape else None}
          for shape in json.loads(sys.argv[2])]
found = [[graphs.plan(Attention(gradient, **shape)) for gradient in (False, True)] for shape in shapes]
print(json.dumps([[plan and plan.workspace for plan in both] for both in found]))
"""


def test_cudnn_has_plans_for_halves_both_ways_and_none_for_the_gradient_of_what_is_composed(tmp_path):
    if importlib.util.find_spec("cudnn") is None or shutil.which("cc") is None:
        pytest.skip("nvidia-cudnn-frontend or a C compiler is not installed")
    source = "#include <stddef.h>\nstatic char it[64];\n" + "".join(
        f"int {name}(void *a, void *b) {{ {value}; return 0; }}\n" for name, value in VALUES.items())
    (tmp_path / "stub.c").write_text(source, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "stub.c"], check=True)
    root = Path(__file__).resolve().parents[2]
    properties = root / "bench/gpu_properties/h200.json"
    result = subprocess.run([sys.executable, "-c", LISTING, properties, json.dumps(SHAPES)], cwd=root,
                            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True,
                            text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    listed = json.loads(result.stdout.splitlines()[-1])
    for forward, gradient in listed[:5]:
        assert forward <= 4096 < gradient < 64 << 20  # sums in fp32 of what 8 x 8 heads of 512 x 64 give
    assert [gradient for _, gradient in listed[5:]] == [None] * 3
