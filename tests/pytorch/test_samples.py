"""PyTorch's own samples of its functions and modules have the same bits when all that they save leaves the device."""

import warnings
from itertools import islice

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import forced  # noqa: E402
from torch_samples import PARTS, bits, copied, in_part, with_gradients  # noqa: E402

from bench.support import opinfo  # noqa: E402
from minidl.torch import eligible  # noqa: E402

MOST = 4  # samples of each


def held_by_autograd_alone(value):
    """An argument with tensors that the program does not hold, equal to those of a leaf."""
    if isinstance(value, torch.Tensor):
        return value if value.layout is not torch.strided else value * 1.0 if value.requires_grad else value.clone()
    return type(value)(map(held_by_autograd_alone, value)) if type(value) in (list, tuple) else value


def trained(case, memory=None, steps=4):
    """The bits of losses, gradients and parameters of a training whose network is one function."""
    function, arguments, named = case
    torch.manual_seed(0)
    leaves, found = [], []
    if isinstance(function, type):
        function = function(*arguments.constructor_input.args, **arguments.constructor_input.kwargs)
        leaves += [p for p in function.parameters() if p.requires_grad]
        arguments, named = arguments.forward_input.args, arguments.forward_input.kwargs
    arguments, named = copied(tuple(arguments), leaves), {name: copied(each, leaves) for name, each in named.items()}
    optimizer = torch.optim.SGD(leaves, 1e-3)

    def step():
        optimizer.zero_grad()
        result = function(*held_by_autograd_alone(arguments),
                          **{name: held_by_autograd_alone(each) for name, each in named.items()})
        loss = sum((t * torch.randn(t.shape)).sum() for t in with_gradients(result))
        del result
        loss.backward()
        optimizer.step()
        found.extend(map(bits, [loss, *(leaf.grad for leaf in leaves)]))

    def train():
        for _ in range(steps):
            step()
    if memory is None:
        train()
    else:
        with memory:
            train()
    return [*found, *map(bits, leaves), bits(torch.get_rng_state())]


def cases(part):
    """The samples of a part of all functions and modules: a name, a function or class, its arguments."""
    for op in opinfo.op_db:
        if in_part(op.name, part) and op.supports_autograd and "jiterator" not in op.name:
            try:
                samples = list(islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), MOST))
            except Exception:  # no samples of this type
                continue
            yield from ((op.name, (op, (sample.input, *sample.args), sample.kwargs)) for sample in samples)
    for module in opinfo.module_db:
        if in_part(module.name, part):
            inputs = module.module_inputs_func(module, device="cpu", dtype=torch.float32, requires_grad=True,
                                               training=True)
            yield from ((module.name, (module.module_cls, each, {})) for each in islice(inputs, MOST)
                        if each.forward_input is not None)


@pytest.mark.default(part=[0])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_a_function_has_the_same_bits_whatever_leaves_in_whichever_way(part, monkeypatch):
    monkeypatch.setattr(eligible, "LEAST_BYTES", 1)
    compared, others = 0, []
    for name, case in cases(part):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = trained(case)
                if trained(case) != expected:
                    continue  # uninitialized
            except Exception:  # a sample without a gradient, or of another dtype
                continue
            compared += 1
            others += [(name, how) for how in ("swap", "drop") if trained(case, forced(how)) != expected]
    assert not others and compared > 20
