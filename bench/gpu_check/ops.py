"""Every operation on the device against float64 formulas on the CPU.

Inputs are random and fresh in each run; outputs and workspaces are NaN before each launch. An error is the norm of the
difference over the norm of the exact result. Operands lie as they are uploaded, and as permuted views do.

A failed call may leave a GPU's context dead: every later call fails, too. Then the check notes its place and ends its
process; the command starts another one, which continues after the failed case.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.gpu_check.setting import Record, Setting
from bench.support import formulas, kernel_cases
from bench.support.kernel_cases import OPS, RANDOM, Case
from minidl import Runtime, no_grad, ops
from minidl.device.cuda.device import CudaDevice
from minidl.dispatch import apply_all
from minidl.errors import UserError
from minidl.kernels.cpu import COMPOSED as CPU_ONLY
from minidl.meta import DTYPES
from minidl.tensor import Tensor

PRODUCTS = {"conv2d", "conv2d_relu", "conv2d_dgrad", "conv2d_wgrad", "matmul", "linear", "linear_dgrad", "linear_wgrad"}
# One rounding of the result to the dtype, after sums in float32 (float64 for itself).
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 1.02 * 2.0**-8, "float16": 1.02 * 2.0**-11}
TF32_TOLERANCE = 1e-3  # factors are rounded to 10 bits: 2^-11 each at most, some 3e-4 by norm
# What a device may lack for some shapes and dtypes, and says so: layers compose it of other operations then.
COMPOSED = {"scaled_dot_product_attention", "scaled_dot_product_attention_grad"}
LEAST_NORM = 0.1  # where terms of about 1 cancel, the error is that of the terms
BUDGET = 512 * 2**20
TOLD = 3  # failures of an operation in a dtype that are told one by one
SAMPLE = 100_000  # random numbers whose moments are looked at


def measure(setting: Setting, record: Record) -> None:
    """Record for each dtype and precision the largest error of each operation."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    record.put("seed", seed)
    table = [c for c in (*kernel_cases.cases(setting.sizes.ops_block), *larger()) if c.attrs.get("data", 0) is not None
             and c.name not in CPU_ONLY]
    for dtype in setting.sizes.dtypes:
        run_all(setting, record, "fp32", dtype, chosen(table, dtype, setting.sizes.ops_every), seed)
    run_all(setting, record, "tf32", "float32", [c for c in table if c.name in PRODUCTS], seed)
    with setting.runtime(precision="fp32", poisoned=True, memory_budget=BUDGET) as runtime, no_grad():
        for name in sorted(RANDOM):
            check_moments(runtime, record, name, seed)
        check_bits(runtime, record)


def chosen(table: Sequence[Case], dtype: str, every: int) -> list[Case]:
    """Select the cases that run in a dtype: in float32 every ``every``-th, in the other dtypes a few.

    The last case of each operation is always among them.
    """
    by_name: dict[str, list[Case]] = {}
    for case in table:
        by_name.setdefault(case.name, []).append(case)
    step = every if dtype == "float32" else 8 * every
    return [c for cases in by_name.values() for i, c in enumerate(cases) if i % step == 0 or i == len(cases) - 1]


def run_all(setting: Setting, record: Record, precision: str, dtype: str, cases: Sequence[Case], seed: int) -> None:
    """Run cases in one dtype, and record the largest error of each operation.

    If the device died in an earlier process, begin with the case after the one in which it died.
    """
    group, resume = f"{dtype} ({precision})", record.resume
    if group in resume.get("done", ()):
        return
    here = resume if resume.get("group") == group else {}
    worst: dict[str, float] = dict(here.get("worst", {}))
    refused: dict[str, str] = {}
    tolerance = TOLERANCE[dtype]
    failed: dict[str, int] = dict(here.get("failed", {}))

    def fail(name: str, words: str) -> None:
        failed[name] = failed.get(name, 0) + 1
        if failed[name] <= TOLD:
            record.fail(words)
    with setting.runtime(precision=precision, poisoned=True, memory_budget=BUDGET) as runtime, no_grad():
        for number, case in enumerate(cases):
            if number < here.get("number", 0):
                continue
            if setting.seconds_left() < 0:
                record.leave_out(f"{len(cases) - number} cases in {dtype}: the time is up")
                break
            if case.name in COMPOSED and case.attrs["p"] and isinstance(runtime.device, CudaDevice):
                continue  # cuDNN draws another mask than the formula
            allowed = TF32_TOLERANCE if precision == "tf32" else tolerance
            for permuted in (False, True):
                if permuted and OPS[case.name].mutates is not None:
                    continue
                try:
                    error = error_of(runtime, case, dtype, seed + number, permuted=permuted)
                except Exception as problem:  # each operation is told of
                    if isinstance(problem, UserError) and case.name in COMPOSED:
                        refused[case.name] = str(problem)
                        continue
                    fail(case.name, f"{case} in {dtype}: {type(problem).__name__}: {problem}")
                    if not answers(runtime):
                        record.die({"done": resume.get("done", []), "group": group, "number": number + 1,
                                    "worst": worst, "failed": failed})
                        raise
                    continue
                worst[case.name] = max(worst.get(case.name, 0.0), error) if error == error else error
                if not error <= allowed:
                    lies = "permuted" if permuted else "as uploaded"
                    fail(case.name, f"{case} in {dtype} ({precision}), {lies}: off by {error:.1e}, allowed "
                                    f"{allowed:.1e}")
    for name, count in failed.items():
        if count > TOLD:
            record.fail(f"{name} in {dtype} ({precision}): {count} cases in all")
    if refused:
        record.put(f"{group}, not offered", refused)
    name, error = max(worst.items(), key=lambda item: item[1], default=("", 0.0))
    record.put(group, worst, f"{group}: {len(cases)} cases of {len(worst)} operations, worst {error:.1e} ({name})")
    record.resume = {"done": [*resume.get("done", []), group]}


def answers(runtime: Runtime) -> bool:
    """Return True if the device still works: if it copies four numbers to itself and back."""
    try:
        with runtime.iteration():
            return bool((runtime.tensor(np.arange(4.0)).numpy() == np.arange(4.0)).all())
    except Exception:  # of whatever kind: the device is of no more use
        return False


def error_of(runtime: Runtime, case: Case, dtype: str, seed: int, *, permuted: bool) -> float:
    """Run one call on random inputs; return the largest error of its outputs.
    permuted: its operands are permuted views."""
    arrays = case.inputs(dtype, seed)
    op = OPS[case.name]
    with runtime.iteration():
        tensors = [_permuted(runtime, a) if permuted else runtime.tensor(a, dtype=DTYPES[a.dtype.name]) for a in arrays]
        outputs = apply_all(op, *tensors, **case.attrs)
        results = [tensors[i] for i in sorted(op.mutates(len(tensors)))] if op.mutates is not None else outputs
        values = [t.numpy() for t in results]
    exact = [a.astype(np.float64) if DTYPES[a.dtype.name].floating else a for a in arrays]
    expected = case.reference(*exact, **case.attrs)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    return max((distance(v, np.asarray(e)) for v, e in zip(values, expected, strict=True)),
               key=lambda error: np.inf if np.isnan(error) else error)


def distance(value: np.ndarray, exact: np.ndarray) -> float:
    """Return the norm of the difference divided by the norm of the exact value; NaN if shapes differ or any is NaN.

    Infinities of the same sign differ by 0 and do not count in the norm.
    """
    if value.shape != exact.shape:
        return float("nan")
    value, exact = value.astype(np.float64), np.asarray(exact, np.float64)
    counts = ~(np.isinf(exact) & (value == exact))
    value, exact = value[counts], exact[counts]
    return float(np.linalg.norm(value - exact) / max(float(np.linalg.norm(exact)), LEAST_NORM))


def _permuted(runtime: Runtime, array: np.ndarray) -> Tensor:
    """Make a tensor with these values that is a permuted view: its dimensions lie in the reverse order in memory."""
    turned = runtime.tensor(array.transpose(), dtype=DTYPES[array.dtype.name])
    return ops.permute(turned, tuple(range(array.ndim))[::-1]) if array.ndim > 1 else turned


def check_moments(runtime: Runtime, record: Record, name: str, seed: int) -> None:
    """Check that a random fill has its mean and deviation within five standard errors, and repeats with its seed."""
    attrs, mean, std = {"normal_": ({"mean": 3.0, "std": 2.0}, 3.0, 2.0),
                        "uniform_": ({"low": -1.0, "high": 5.0}, 2.0, 6 / 12**0.5)}[name]
    values = []
    for _ in range(2):
        with runtime.iteration():
            tensor = runtime.tensor(None, shape=(SAMPLE,))
            apply_all(OPS[name], tensor, seed=seed, **attrs)
            values.append(tensor.numpy().astype(np.float64))
    off_mean, off_std = abs(values[0].mean() - mean), abs(values[0].std() - std)
    if not (off_mean < 5 * std / SAMPLE**0.5 and off_std < 5 * std / (2 * SAMPLE)**0.5):
        record.fail(f"{name}: mean off by {off_mean:.1e}, deviation by {off_std:.1e}")
    if values[0].tobytes() != values[1].tobytes():
        record.fail(f"{name}: the same seed gives other numbers")
    record.put(name, {"mean": float(values[0].mean()), "std": float(values[0].std())})


def check_bits(runtime: Runtime, record: Record) -> None:
    """Check that copies keep all bit patterns of 16-bit floats, with every NaN and infinity:
    transposed, and one by one."""
    patterns = np.arange(1 << 16).astype(np.uint16)
    wrong = {}
    for dtype in ("bfloat16", "float16"):
        held = patterns.view(dtype).reshape(256, 256)
        with runtime.iteration():
            x = runtime.tensor(held, dtype=DTYPES[dtype])
            for name, view, right in (("transposed", ops.permute(x, (1, 0)), held.T),
                                      ("one by one", ops.between(ops.permute(x, (1, 0)), 0, 1, 4), held.T[1:4])):
                copied = ops.contiguous(view).numpy()
                wrong[f"{dtype}, {name}"] = int((copied.view(np.uint16) != np.ascontiguousarray(right).view(
                    np.uint16)).sum())
    record.put("bit patterns that a copy changes", wrong)
    for where, count in wrong.items():
        if count:
            record.fail(f"a copy changes {count} of the bit patterns of {where}")


def larger() -> Iterator[Case]:
    """Yield cases that fill several blocks of threads, at sizes that suit tensor cores and vector loads."""
    ref: Any = formulas
    x, w, y = (4, 32, 15, 15), (64, 32, 3, 3), (4, 64, 15, 15)
    window = {"stride": (1, 1), "padding": (1, 1)}
    yield Case("conv2d", (x, w), ref.conv_ref, window)
    yield Case("conv2d_relu", (x, w, (64,)), ref.conv_relu_ref, window)
    yield Case("conv2d_dgrad", (y, w), ref.dgrad_ref, {"x_shape": x, **window})
    yield Case("conv2d_wgrad", (y, x), ref.wgrad_ref, {"kernel": (3, 3), **window})
    half = {"stride": (2, 2), "padding": (0, 0)}
    yield Case("conv2d", (x, (128, 32, 1, 1)), ref.conv_ref, half)
    yield Case("conv2d_dgrad", ((4, 128, 8, 8), (128, 32, 1, 1)), ref.dgrad_ref, {"x_shape": x, **half})
    yield Case("conv2d_wgrad", ((4, 128, 8, 8), x), ref.wgrad_ref, {"kernel": (1, 1), **half})
    yield Case("matmul", ((6, 2, 128, 64), (6, 2, 128, 64)), lambda a, b, **flags: a @ b.swapaxes(-1, -2),
               {"transpose_a": False, "transpose_b": True})
    yield Case("linear", ((512, 768), (256, 768), (256,)), lambda x, w, b: x @ w.T + b)
    yield Case("linear_dgrad", ((512, 256), (256, 768)), lambda dy, w: dy @ w)
    yield Case("linear_wgrad", ((512, 256), (512, 768)), lambda dy, x: dy.T @ x)
    yield Case("softmax", ((64, 30_522),), ref.softmax_ref)
    yield Case("cross_entropy", ((64, 30_522), ("i30522", (64,))), ref.cross_entropy_ref)
    yield Case("layer_norm", ((128, 1024), (1024,), (1024,)), ref.layer_ref, {"eps": 1e-3})
    image, c = (16, 64, 28, 28), (64,)
    yield Case("batch_norm_stats", (image,), lambda x: (x.mean((0, 2, 3)), x.var((0, 2, 3))))
    yield Case("batch_norm_grad_reduce", (image, image, c, ("+", c)), lambda dy, x, mean, var, eps:
               ((dy * ref.normed(x, mean, var, eps)).sum((0, 2, 3)), dy.sum((0, 2, 3))), {"eps": 1e-3})
    yield Case("sum_to", ((4096, 130),), ref.sum_ref, {"shape": (130,)})
    yield Case("contiguous", ((1 << 20,),), lambda x: x)
