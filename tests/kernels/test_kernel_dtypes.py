"""bfloat16 and float16 as storage: every kernel computes in float32 and rounds once; the conversions themselves."""

import ml_dtypes
import numpy as np
import pytest
from cpu_kernel_calls import call, poisoned, same_bytes_over_an_input, strided

import minidl
from bench.support.formulas import attention_ref
from bench.support.kernel_cases import BLOCK, CASES, OPS, RANDOM
from minidl import meta as metas
from minidl import ops
from minidl.kernels.cpu import blocks
from minidl.kernels.cpu.half import decode, encode
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD

HALVES = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # the largest relative error of rounding to nearest


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4 * BLOCK)


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_on_halves_rounds_the_result_of_the_formula_once(case, dtype, monkeypatch):
    inputs = case.inputs(dtype)
    exact = [a.astype(np.float64) if metas.DTYPES[a.dtype.name].floating else a for a in inputs]
    if case.name == "scaled_dot_product_attention_grad":  # it computes the unrounded result again
        _, q, k, v, _, _, *mask = exact
        exact[4], lse = attention_ref(q, k, v, *mask, **case.attrs)
        inputs[5] = lse.astype(inputs[5].dtype)
        exact[5] = inputs[5].astype(np.float64)
    expected = case.reference(*exact, **case.attrs)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    if case.name in ("embedding_grad", "gather_rows_grad", "add_rows"):
        monkeypatch.undo()  # rows of one number in several blocks are added in the half type: a rounding for each
    for operands in (inputs, [strided(a) for a in inputs]):
        for result, right in zip(call(case.name, operands, case.attrs), expected, strict=True):
            scale = max(1.0, float(np.max(np.abs(right), initial=0)))
            np.testing.assert_allclose(result.astype(np.float64), right, rtol=1.02 * HALVES[dtype],
                                       atol=2e-5 * scale)


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(), (1,), (BLOCK - 1,), (BLOCK + 1,), (3, 5, 70)])
def test_a_cast_rounds_to_nearest_and_back_it_is_exact(shape, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for name in ("cast", "cast_grad"):
        for values in (x, strided(x)):
            half, = call(name, [values], {"dtype": metas.DTYPES[dtype]})
            assert half.tobytes() == x.astype(dtype).tobytes()
        for values in (half, strided(half)):
            full, = call(name, [values], {"dtype": metas.float32})
            assert full.dtype == np.float32 and full.tobytes() == half.astype(np.float32).tobytes()


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
def test_rows_of_a_float32_table_are_looked_up_as_halves_and_their_gradient_is_added_up_in_float32(dtype):
    rng, half = np.random.default_rng(1), metas.DTYPES[dtype]
    table, ids = rng.standard_normal((5, BLOCK + 1)).astype(np.float32), rng.integers(0, 4, (3, BLOCK))
    for given in ([table, ids], [strided(table), strided(ids)]):
        y, = call("embedding", given, {"dtype": half})
        assert y.tobytes() == table.astype(dtype)[ids].tobytes()
    right = np.zeros(table.shape)
    np.add.at(right, ids, y.astype(np.float64))
    for given in ([y, ids], [strided(y), strided(ids)]):
        dw, = call("embedding_grad", given, {"rows": 5, "dtype": metas.float32})
        np.testing.assert_allclose(dw, right, rtol=1e-5, atol=1e-5)
        assert dw.dtype == np.float32 and not dw[4].any()


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", [c for c in CASES if OPS[c.name].donates], ids=str)
def test_halves_over_an_input_have_the_same_bytes_wherever_the_engine_may_put_it_there(case, dtype):
    same_bytes_over_an_input(case, dtype)


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_numbers_in_a_half_type_are_those_of_float32_rounded(name, dtype):
    attrs = {"mean": 1.0, "std": 2.0} if name == "normal_" else {"low": -1.0, "high": 3.0}
    half, full = (call(name, [poisoned((1000,), d)], {"seed": 3, **attrs})[0] for d in (dtype, "float32"))
    if name == "uniform_":
        below = np.nextafter(np.asarray(3, dtype), np.asarray(0, dtype))
        assert half.max() <= below < 3
        full = np.minimum(full, below.astype(np.float32))
    np.testing.assert_allclose(half.astype(np.float32), full, rtol=1.01 * HALVES[dtype], atol=1e-6)


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_decoded_exactly_and_encoded_back_to_its_bits(dtype):
    halves = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    values, back = decode(halves), np.empty_like(halves)
    np.testing.assert_array_equal(values, halves.astype(np.float32))  # NaN equals NaN here
    encode(back, values)
    numbers = ~np.isnan(values)
    assert back[numbers].tobytes() == halves[numbers].tobytes()
    assert np.isnan(back[~numbers].astype(np.float32)).all()


@pytest.mark.default(dtype=["bfloat16"])
@pytest.mark.parametrize("dtype", HALVES)
def test_encoding_rounds_to_nearest_and_ties_to_even(dtype):
    # Around every bfloat16, and around every float16 (13 bits less), one unit of float32 to either side of each tie.
    top = np.arange(1 << 16, dtype=np.uint32) << 16
    low = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0xEFFF, 0xF000, 0xFFFF]
    values = np.concatenate([top + np.uint32(k) for k in low]).view(np.float32)
    result = np.empty(values.shape, dtype)
    encode(result, values)
    with np.errstate(all="ignore"):
        right = values.astype(dtype)  # NumPy and ml_dtypes round the same way
    numbers = ~np.isnan(values)
    assert result[numbers].tobytes() == right[numbers].tobytes()
    assert np.isnan(result[~numbers].astype(np.float32)).all()


@pytest.mark.parametrize("device", ["cpu", "sim:p100"])
@pytest.mark.parametrize("dtype", [metas.bfloat16, metas.float16])
def test_a_network_of_halves_trains(dtype, device):
    with minidl.Runtime(device=device, memory_budget="1MiB", policy="none") as runtime:
        w = minidl.parameter((8, 8), dtype=dtype)
        ops.uniform_(w, seed=1, low=-0.5, high=0.5)
        optimizer = SGD([w], lr=8.0)
        data = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
        losses = []
        for _ in range(20):
            with runtime.iteration():
                x = runtime.tensor(data, dtype=dtype)
                loss = cross_entropy(ops.gelu(x) * w, runtime.tensor(np.arange(8)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert w.numpy().dtype == (ml_dtypes.bfloat16 if dtype is metas.bfloat16 else np.float16) and w.nbytes == 128
        assert device != "cpu" or losses[-1] < 0.9 * losses[0]
