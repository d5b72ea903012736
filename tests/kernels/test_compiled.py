"""How kernels are compiled: the same bits on any number of threads, nothing twice; and the float32 formulas."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from cpu_kernel_calls import call, poisoned
from numba.core.dispatcher import Dispatcher
from scipy import special

from minidl.kernels import cpu, scalar
from minidl.kernels.cpu import compiled, elementwise, shape
from minidl.kernels.cpu.sums import largest

ROOT = Path(__file__).resolve().parents[2]
ROWS, IMAGES, WINDOW = (70, 300), (6, 5, 30, 31), {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}
CHANNELS = (IMAGES[1],)
NUMBERS = ("ids", (40,))
ATTENTION = {"heads": 3, "causal": True, "p": 0.2, "seed": 1}
# Kernels whose pieces of work are not simply elements: (input shapes, attributes), larger than one piece each.
LOOPS = {
    "gelu": (((3 * elementwise.CHUNK + 1,),), {}), "dropout": (((2 * elementwise.CHUNK + 1,),), {"p": 0.3, "seed": 1}),
    "add": ((ROWS, (300,)), {}),
    "softmax": ((ROWS, (1, 300)), {}), "softmax_grad": ((ROWS, ROWS), {}),
    "scaled_dot_product_attention": (((2, 200, 24),) * 3, ATTENTION),
    "scaled_dot_product_attention_grad": (((2, 200, 24),) * 5 + ((2, 3, 200),), ATTENTION),
    "layer_norm": ((ROWS, (300,), (300,)), {"eps": 1e-3}), "layer_norm_grad": ((ROWS, ROWS, (300,), (70,), (70,)), {}),
    "layer_norm_grad_reduce": ((ROWS, ROWS, (70,), (70,)), {}),
    "cross_entropy": ((ROWS, ("ids", (70,))), {}), "bias_grad": ((IMAGES,), {"axis": 1}),
    "sum_to": ((ROWS,), {"shape": (300,)}), "batch_norm_stats": ((IMAGES,), {}),
    "batch_norm_grad_reduce": ((IMAGES, IMAGES, CHANNELS, CHANNELS), {"eps": 1e-3}),
    "batch_norm_relu_grad_reduce": ((IMAGES, IMAGES, *(CHANNELS,) * 4), {"eps": 1e-3}),
    "max_pool2d": ((IMAGES,), WINDOW), "avg_pool2d": ((IMAGES,), WINDOW),
    "embedding_grad": (((40, 7), NUMBERS), {"rows": 9}),
    "adam_": (((5,), (40_000,)) * 4, {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "step": 2}),
}


def operands(shapes):
    rng = np.random.default_rng(5)
    return [rng.integers(0, 9, s[1]) if s and s[0] == "ids" else rng.uniform(0.1, 2, s).astype(np.float32)
            for s in shapes]


@pytest.mark.parametrize("name", LOOPS)
def test_one_thread_and_several_give_the_same_bytes(name, monkeypatch):
    shapes, attrs = LOOPS[name]
    inputs = operands(shapes)
    results = []
    for least, threads in ((1 << 40, 1), (0, 1), (0, numba.config.NUMBA_NUM_THREADS)):
        monkeypatch.setattr(compiled, "PARALLEL_FROM", least)
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            results.append([a.tobytes() for a in call(name, inputs, attrs)])
        finally:
            numba.set_num_threads(before)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("length", [elementwise.CHUNK + d for d in (-1, 0, 1)] + [2 * elementwise.CHUNK + 1])
def test_every_element_is_computed_at_the_edges_of_pieces(length):
    x = np.random.default_rng(1).standard_normal(length).astype(np.float32)
    np.testing.assert_array_equal(call("relu", [x], {})[0], np.maximum(x, 0))
    np.testing.assert_array_equal(call("add", [x, x], {})[0], x + x)
    y = np.random.default_rng(2).standard_normal(length).astype(np.float32)
    np.testing.assert_allclose(call("sgd_", [x, y, y, x], {"lr": 0.5})[0], x - 0.5 * y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (3, 2, 1, 0), (0, 1, 3, 2), (2, 3, 0, 1), (1, 0, 2, 3)])
def test_a_large_copy_of_any_strides_has_the_same_elements(axes):
    x = np.arange(5 * 7 * 33 * 65, dtype=np.int64).reshape(5, 7, 33, 65)
    assert x.size > compiled.PARALLEL_FROM
    view = x.transpose(axes)
    to = poisoned((view.shape[0] + 2, *view.shape[1:]), "int64")
    shape.copy(to[1:-1], view)
    np.testing.assert_array_equal(to[1:-1], view)
    assert (to[[0, -1]].view(np.uint8) == 0xFF).all()
    wide = np.broadcast_to(x[:, :1, :, :1], x.shape)
    same = np.empty_like(x)
    shape.copy(same, wide)
    np.testing.assert_array_equal(same, wide)


# The formulas in float32 --------------------------------------------------------------------------------------------
REACH = {  # function: (exact one, its argument's range, largest error in units in the last place)
    "exp": (np.exp, (-104.5, 89.5), 1.1),
    "tanh": (np.tanh, (-12, 12), 1.5),
    "bell": (lambda x: np.exp(-x * x / 2), (-15, 15), 1.3),
    "normal_below": (special.ndtr, (-14.6, 9), 6.0),
}


def lifted(name):
    formula = getattr(scalar, name)

    @numba.njit(error_model="numpy", fastmath={"contract"})
    def apply(y, x):
        for i in range(x.size):
            y[i] = formula(x[i])

    def run(x):
        y = np.empty_like(x)
        apply(y, x)
        return y
    return run


@pytest.mark.parametrize("name", REACH)
def test_a_float32_formula_keeps_its_bound_over_the_whole_range(name):
    exact, (low, high), bound = REACH[name]
    rng = np.random.default_rng(0)
    exponents = rng.uniform(-149, 8, 200_000)  # all magnitudes, those below the normal numbers too
    x = np.concatenate([np.linspace(low, high, 1_000_000), rng.choice([-1, 1], exponents.size) * 2.0**exponents])
    x = x[(x >= low) & (x <= high)].astype(np.float32)
    with np.errstate(all="ignore"):
        right = exact(x.astype(np.float64))
        nearest = right.astype(np.float32)
        unit = np.spacing(np.minimum(np.abs(nearest), np.float32(3e38)))  # of the smallest numbers: 2^-149
    got = lifted(name)(x)
    inside = np.abs(right) < 3.4e38
    assert np.max(np.abs(got[inside] - right[inside]) / unit[inside]) <= bound
    np.testing.assert_array_equal(got[~inside], nearest[~inside])


def test_the_float32_formulas_treat_infinities_and_nan_as_values():
    x = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0], np.float32)
    nan = np.nan
    for name, right in {"exp": [np.inf, 0, nan, nan, 1, 1], "tanh": [1, -1, nan, nan, 0, -0.0],
                        "bell": [0, 0, nan, nan, 1, 1], "normal_below": [1, 0, nan, nan, 0.5, 0.5]}.items():
        np.testing.assert_array_equal(lifted(name)(x), np.array(right, np.float32), err_msg=name)
    assert np.signbit(lifted("tanh")(x))[5]


def test_the_exponential_of_what_is_at_most_zero_has_the_bits_of_the_exponential():
    x = np.concatenate([np.linspace(-110, 0, 300_001), -2.0**np.linspace(-149, 8, 10_000), [-np.inf, np.nan, -0.0]])
    x = x.astype(np.float32)
    assert lifted("exp_below")(x).tobytes() == lifted("exp")(x).tobytes()


@pytest.mark.parametrize("name", REACH)
def test_the_formulas_in_float64_are_those_of_the_library(name):
    x = np.linspace(-30, 30, 1001)
    exact = REACH[name][0]
    np.testing.assert_allclose(lifted(name)(x), exact(x), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_of_a_row_is_found_among_all_signs_and_sizes(dtype):
    rng = np.random.default_rng(0)
    for values in ([-3.0], [-0.0, 0.0], [-np.inf, -1e30], [-np.inf], [np.inf, 1], *rng.standard_normal((20, 37)) - 2):
        assert largest(np.array(values, dtype)) == np.max(np.array(values, dtype))


# Compilation --------------------------------------------------------------------------------------------------------
PROGRAM = """
import numpy as np
from minidl.kernels.cpu import KERNELS, elementwise, attention, compiled
from minidl.kernels.cpu.compiled import PieceLoop
x = np.ones((2, 5), np.float32)
y = np.empty_like(x)
for n in (compiled.PARALLEL_FROM, 0):
    compiled.PARALLEL_FROM = n
    for name in ("gelu", "relu", "softmax"):
        KERNELS[name](y, x)
def stats(kernel):
    return [sum(getattr(d.stats, k).values()) for d in (kernel.serial, kernel.parallel)
            for k in ("cache_hits", "cache_misses")]
print(*stats(attention._softmax), *[n for f in (elementwise.gelu, elementwise.relu)
      for n in stats(f.__closure__[0].cell_contents)])
"""


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path):
    def start():
        environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
        result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True,
                                text=True, check=False)
        assert result.returncode == 0, result.stderr
        return [int(n) for n in result.stdout.split()]
    # Hits and misses of the serial, then of the parallel version, of three kernels.
    assert start() == [0, 1] * 6
    assert start() == [1, 0] * 6


def test_the_cache_sees_a_change_of_the_files_that_kernels_take_formulas_from(monkeypatch):
    def function(x):
        return x
    stamps = set()
    for shared in (compiled._STAMPS, compiled._STAMPS[1:]):
        monkeypatch.setattr(compiled, "_STAMPS", shared)
        stamps.add(compiled.compiled(function)._cache._cache_file._source_stamp)
    assert len(stamps) == 2
    shared_modules = {f"minidl.kernels.{'' if name.startswith('..') else 'cpu.'}{Path(name).stem}"
                      for name in compiled.SHARED}
    for info in pkgutil.iter_modules(cpu.__path__):
        module = importlib.import_module(f"minidl.kernels.cpu.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Dispatcher):
                assert value.py_func.__module__ in {module.__name__, *shared_modules}, value


@pytest.mark.parametrize(("given", "policy", "sleeps"), [({}, "PASSIVE", True),
                                                         ({"OMP_WAIT_POLICY": "active"}, "ACTIVE", False)])
def test_threads_that_wait_sleep_unless_the_environment_says_otherwise(given: dict[str, str], policy: str,
                                                                       sleeps: bool) -> None:
    """OpenMP itself tells how its threads wait, in a process that makes one parallel call.

    Where nothing is asked for it says PASSIVE, too, but spins 300,000 times first.
    """
    program = ("import numba, numpy as np\n"
               "from minidl.kernels.cpu import compiled\n"
               "@numba.njit(parallel=True)\n"
               "def double(x):\n"
               "    for i in numba.prange(len(x)):\n"
               "        x[i] *= 2\n"
               "double(np.ones(100)); print(numba.threading_layer())")
    asked = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in asked}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | given
    ended = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True,
                           check=True)
    if ended.stdout.strip() == "omp":  # other layers sleep by themselves
        assert f"OMP_WAIT_POLICY = '{policy}'" in ended.stderr
        assert ("GOMP_SPINCOUNT = '0'" in ended.stderr) == sleeps
