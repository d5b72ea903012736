"""einops on minidl's tensors: values beside NumPy's, gradients beside differences of them, bits in little memory."""

import subprocess
import sys

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn

einops = pytest.importorskip("einops", reason="extra einops")
PATTERNS = {  # of one or two arrays (4, 6, 5); NumPy computes the same from arrays
    "order": lambda x: einops.rearrange(x, "a b c -> c a b"),
    "join": lambda x: einops.rearrange(x, "a b c -> (c a) b"),
    "split": lambda x: einops.rearrange(x, "a (b two) c -> two (a c) b", two=2),
    "split both": lambda x: einops.rearrange(x, "(one a) (b c) d -> (b one) d (a c)", a=2, c=3),
    "ones": lambda x: einops.rearrange(x, "a b c -> a 1 (b c) 1"),
    "rest": lambda x: einops.rearrange(x, "... c -> c ..."),
    "joined rest": lambda x: einops.rearrange(x, "a ... -> (...) a"),
    "list": lambda x: einops.rearrange([x, x * 2.0], "n a b c -> a (n b) c"),
    "repeat": lambda x: einops.repeat(x, "a b c -> a new (b k) c", new=3, k=2),
    "repeat first": lambda x: einops.repeat(x, "a b c -> (n a) (b c)", n=2),
    "sum": lambda x: einops.reduce(x, "a b c -> b", "sum"),
    "mean": lambda x: einops.reduce(x, "a (b two) c -> a b", "mean", two=2),
    "max pool": lambda x: einops.reduce(x, "a (b two) c -> b a c", "max", two=2),
    "min": lambda x: einops.reduce(x, "a b c -> () b ()", "min"),
    "prod": lambda x: einops.reduce(x, "a b c -> c", "prod"),
    "all axes": lambda x: einops.reduce(x, "... ->", "mean"),
    "einsum": lambda x: einops.einsum(x, x, "batch row k, batch column k -> batch row column"),
    "einsum rest": lambda x: einops.einsum(x, x, "... k, ... k -> k ..."),
    "pack": lambda x: einops.pack([x, einops.reduce(x, "a b c -> a c", "sum")], "a * c")[0],
    "unpack": lambda x: einops.unpack(x, [(2,), (), (3,)], "a * c")[2],
}


def numbers(shape=(4, 6, 5)):
    """Values without ties, of both signs, away from 0."""
    x = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape) / np.prod(shape) + 0.5
    return x * np.random.default_rng(1).choice([-1.0, 1.0], shape)


@pytest.mark.parametrize("name", PATTERNS)
def test_values_are_numpys_and_gradients_those_of_differences(name):
    array, direction = numbers(), np.random.default_rng(2).standard_normal((4, 6, 5))
    right = PATTERNS[name](array)
    weights = np.random.default_rng(3).uniform(0.5, 1.5, right.shape)
    with Runtime("cpu", memory_budget="8MiB", policy="none"):
        x = minidl.tensor(array, requires_grad=True)
        y = PATTERNS[name](x)
        assert isinstance(y, minidl.Tensor)
        np.testing.assert_allclose(y.numpy(), right, rtol=1e-13, atol=1e-13)
        (y * minidl.tensor(weights)).sum().backward()
        found = (x.grad.numpy() * direction).sum()
    step = 1e-5  # the error of a central difference is step ** 2 of a third derivative; rounding adds 1e-16 / step
    there, back = ((PATTERNS[name](array + sign * step * direction) * weights).sum() for sign in (1, -1))
    np.testing.assert_allclose(found, (there - back) / (2 * step), rtol=1e-6, atol=1e-9)


def test_the_other_functions_and_dtypes_are_numpys():
    array = np.arange(24).reshape(4, 6)
    with Runtime("cpu", memory_budget="1MiB"):
        x = minidl.tensor(array)
        assert einops.parse_shape(x, "rows columns") == {"rows": 4, "columns": 6}
        assert einops.asnumpy(x).tobytes() == array.tobytes()
        for reduction in ("any", "all", "sum", "max"):
            over = (x > 5, array > 5) if reduction in ("any", "all") else (x, array)
            found, right = (einops.reduce(each, "a (b c) -> c", reduction, c=3) for each in over)
            assert found.tolist() == right.tolist() and found.dtype.name == right.dtype.name
        with pytest.raises(NotImplementedError, match="reduce_mean is not available"):
            einops.reduce(x, "a b -> a", "mean")
        with pytest.raises(einops.EinopsError, match="can't divide axis"):
            einops.rearrange(x, "a (b c) -> a b c", b=4)


def steps(budget, policy):
    """The gradient's bytes after two steps of all patterns, the loss, and statistics of the runtime."""
    with Runtime("cpu:virtual", memory_budget=budget, policy=policy, poisoned=True) as runtime:
        w = nn.Parameter(minidl.tensor(numbers().astype("f4")))
        for _ in range(2):
            loss = sum((pattern(w * 1.5) ** 2).mean() for pattern in PATTERNS.values())
            loss.backward()
        runtime.check()
        return w.grad.numpy().tobytes(), loss.item(), runtime.stats()


@pytest.mark.parametrize("policy", ["passive", "recompute", "auto"])
def test_patterns_have_the_same_bits_in_half_of_their_memory(policy):
    *plain, free = steps("8MiB", "none")
    *managed, tight = steps(free.peak_bytes // 2, policy)
    assert plain == managed and tight.swapped_out_bytes + tight.recomputed_bytes > 0


def test_layers_train_and_compute_what_the_functions_do():
    from minidl.nn.einops import EinMix, Rearrange, Reduce
    with Runtime("cpu", memory_budget="1MiB", seed=1):
        x = minidl.tensor(numbers().astype("f4"))
        mix = EinMix("a b (g c) -> a b (g d)", "g c d", "g d", g=2, c=5, d=3)
        model = nn.Sequential(Rearrange("a (b two) c -> a b (two c)", two=2), mix, Reduce("a b d -> a d", "max"))
        names = {name: p.shape for name, p in model.named_parameters()}
        assert names == {"1.weight": (2, 5, 3), "1.bias": (1, 1, 2, 3)}
        weight, bias = model[1].weight.numpy(), model[1].bias.numpy()
        assert np.abs(weight).max() <= (3 / 5) ** 0.5 and np.abs(bias).max() <= 5 ** -0.5  # fan in: 5 channels
        right = einops.rearrange(x.numpy(), "a (b two) c -> a b two c", two=2)
        right = einops.reduce(np.einsum("abgc,gcd->abgd", right, weight) + bias, "a b g d -> a (g d)", "max")
        np.testing.assert_allclose(model(x).detach().numpy(), right, rtol=1e-5, atol=1e-6)
        model(x).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        assert "Rearrange('a (b two) c -> a b (two c)', two=2)" in repr(model)
        assert einops._backends.get_backend(x).layers().EinMix is EinMix
        assert repr(EinMix("a b -> a c", "b c", b=2, c=3)) == "EinMix('a b -> a c', 'b c', b=2, c=3)"
        assert EinMix("a b -> a c", "b c", b=2, c=3).bias is None


@pytest.mark.parametrize("first", ["import einops, minidl", "import minidl, einops",
                                   "import minidl.as_torch as minidl, einops"])
def test_einops_finds_minidl_in_every_order_of_imports_and_under_pytorchs_name(first):
    shim = "as_torch" in first
    inside = "no_grad()" if shim else "Runtime('cpu:virtual', memory_budget='1MiB')"
    program = (f"{first}\nwith minidl.{inside}:\n"
               "    print(einops.rearrange(minidl.ones(2, 3), 'a b -> (b a)').sum().item())")
    if shim:
        program += ("\nfrom einops.layers.torch import Rearrange\n"
                    "print(minidl.nn.Sequential(Rearrange('a b -> b a'))(minidl.ones(2, 3)).shape)")
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "6.0\n" + "(3, 2)\n" * shim
