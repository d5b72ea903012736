"""Loss, gradients and optimizer steps against PyTorch's, from the same weights. Skipped where torch is not installed.

The rule: both are measured against PyTorch in float64, by the norm of the difference, parameter by parameter, relative
to the norm of the float64 value. Ours may be off by at most four times what PyTorch's own float32 is off by.

Kinks need care: among a million ReLUs some value lies within rounding of zero, and a run that falls on the other side
has a gradient that is exact, but that of the other branch (1e-3 off from a single element). So each run notes the side
that it took at every ReLU and maximum, and is measured against the float64 gradient of these same branches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from minidl import Runtime, current, nn, optim
from minidl.memory.switches import Switches
from minidl.models import create

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

TIMES = 4.0
# PyTorch's error may be zero by luck, where few roundings happen (a loss, a sum of a few numbers): half a unit in the
# last place of float32 is what rounding the exact value to it may cost.
FLOOR = 2.0**-24

Arrays = dict[str, np.ndarray[Any, Any]]


class Branches:
    """The side of each kink, in the order of the calls: noted in ``taken``, and prescribed by ``given`` if that is set.

    Of a ReLU: which outputs are positive. Of a max-pooling: where in its image each maximum lies, row by row.
    """

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.given: Iterator[Any] | None = None

    def relu(self, x):
        y = torch.relu(x) if self.given is None else x * torch.tensor(next(self.given), dtype=x.dtype)
        self.taken.append((y > 0).numpy())
        return y

    def max_pool(self, x, *window):
        y, index = torch.nn.functional.max_pool2d(x, *window, return_indices=True)
        if self.given is not None:
            index = torch.tensor(next(self.given))
            y = x.flatten(2).gather(2, index.flatten(2)).view_as(index)
        self.taken.append(index.numpy())
        return y


# The peers: torchvision's layers and names, written down here because torchvision is not needed for anything else.
class Peer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = Branches()


class Block(torch.nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outs)
        self.conv2 = torch.nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outs)
        self.downsample = torch.nn.Identity() if (ins, stride) == (outs, 1) else torch.nn.Sequential(
            torch.nn.Conv2d(ins, outs, 1, stride, bias=False), torch.nn.BatchNorm2d(outs))

    def forward(self, x, relu):
        y = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(Peer):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        for i, (ins, outs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
            blocks = [Block(ins, outs, 1 if i == 1 else 2), Block(outs, outs, 1)]
            self.add_module(f"layer{i}", torch.nn.ModuleList(blocks))
        self.fc = torch.nn.Linear(512, classes)

    def forward(self, x):
        relu = self.branches.relu
        x = self.branches.max_pool(relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for block in (*self.layer1, *self.layer2, *self.layer3, *self.layer4):
            x = block(x, relu)
        return self.fc(x.mean((2, 3)))


class VGG11(Peer):
    def __init__(self, classes):
        super().__init__()
        layers, ins = [], 3
        for outs in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            layers += [torch.nn.Conv2d(ins, outs, 3, padding=1), torch.nn.ReLU()] if outs else [torch.nn.MaxPool2d(2)]
            ins = outs or ins
        self.features = torch.nn.ModuleList(layers)
        linear = (torch.nn.Linear(512 * 7 * 7, 4096), torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, classes))
        self.classifier = torch.nn.ModuleDict(dict(zip("036", linear, strict=True)))

    def forward(self, x):
        for layer in self.features:
            if isinstance(layer, torch.nn.Conv2d):
                x = self.branches.relu(layer(x))
            elif isinstance(layer, torch.nn.MaxPool2d):
                x = self.branches.max_pool(x, 2)
        x = torch.nn.functional.adaptive_avg_pool2d(x, 7).flatten(1)
        x = self.branches.relu(self.classifier["0"](x))
        x = self.branches.relu(self.classifier["3"](x))
        return self.classifier["6"](x)


class LeNet(Peer):
    def __init__(self, classes):
        super().__init__()
        self.C1 = torch.nn.Conv2d(1, 6, 5)
        self.C3 = torch.nn.Conv2d(6, 16, 5)
        self.C5 = torch.nn.Conv2d(16, 120, 5)
        self.F6 = torch.nn.Linear(120, 84)
        self.output = torch.nn.Linear(84, classes)

    def forward(self, x):
        x = torch.nn.functional.avg_pool2d(torch.tanh(self.C1(x)), 2)
        x = torch.nn.functional.avg_pool2d(torch.tanh(self.C3(x)), 2)
        return self.output(torch.tanh(self.F6(torch.tanh(self.C5(x)).flatten(1))))


class MLP(Peer):
    def __init__(self, classes):
        super().__init__()
        linear = (torch.nn.Linear(784, 300), torch.nn.Linear(300, 100), torch.nn.Linear(100, classes))
        self.layers = torch.nn.ModuleDict(dict(zip("135", linear, strict=True)))

    def forward(self, x):
        x = self.branches.relu(self.layers["1"](x.flatten(1)))
        return self.layers["5"](self.branches.relu(self.layers["3"](x)))


# Name of the model: its peer, the shape of its images (64 pixels a side where any size will do), and device memory.
PEERS: dict[str, tuple[Callable[[int], Any], tuple[int, ...], str]] = {
    "mlp": (MLP, (8, 1, 28, 28), "64MiB"),
    "lenet": (LeNet, (8, 1, 32, 32), "64MiB"),
    "resnet18": (ResNet18, (4, 3, 64, 64), "512MiB"),
    "vgg11": (VGG11, (4, 3, 64, 64), "1400MiB"),
}
CLASSES = 10


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@contextmanager
def branches_noted(taken: list[Any]) -> Iterator[None]:
    """What Branches notes of PyTorch, of the calls that run here."""
    executor = current()
    run = executor.run

    def noting(op, inputs, attrs, given=0):
        outputs = run(op, inputs, attrs, given)
        if op.name == "relu":
            taken.append(executor.read(outputs[0]) > 0)
        elif op.name == "max_pool2d":
            in_window = executor.read(outputs[1]).astype(np.int64)
            row, column = (np.arange(n) * stride - pad for n, stride, pad in
                           zip(in_window.shape[2:], attrs["stride"], attrs["padding"], strict=True))
            width = attrs["kernel"][1]
            taken.append((row[:, None] + in_window // width) * inputs[0].meta.shape[3] + column + in_window % width)
        return outputs
    executor.run = noting
    try:
        yield
    finally:
        executor.run = run


def batch(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(np.float32), rng.integers(0, CLASSES, shape[0])


def peer(make, state: Arrays, dtype):
    with torch.device("meta"):  # no initial values: VGG has 133 million
        model = make(CLASSES)
    counts = {name: torch.tensor(0) for name in model.state_dict() if name.endswith("num_batches_tracked")}
    arrays = {name: torch.from_numpy(value).to(dtype, copy=True) for name, value in state.items()}
    model.load_state_dict(counts | arrays, assign=True)
    return model


def without_dropout(model: nn.Module) -> nn.Module:
    """Its random masks are not PyTorch's; without it both compute the same function."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def our_gradients(name, shape, budget, *, training) -> tuple[Arrays, Arrays, list[Any]]:
    """The state before the step; loss, gradients and, in training, buffers after it; and the branches taken."""
    images, labels = batch(shape)
    taken: list[Any] = []
    # A fused ReLU has the bits of a separate one (test_fused), whose branches can be seen here.
    with Runtime(device="cpu:virtual", memory_budget=budget, host_memory="1MiB", poisoned=True,
                 switches=Switches(fused=False)) as runtime:
        model = without_dropout(create(name, num_classes=CLASSES)).train(training)
        before = model.state_dict()
        with branches_noted(taken):
            loss = nn.CrossEntropyLoss()(model(runtime.tensor(images)), runtime.tensor(labels))
        result = {"loss": loss.numpy()}
        loss.backward()
        result |= {f"gradient of {n}": p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
        result |= {n: b.numpy() for n, b in model.named_buffers() if training}
    return before, result, taken


def their_gradients(make, state, shape, dtype, *, training, given=None) -> tuple[Arrays, list[Any]]:
    images, labels = batch(shape)
    model = peer(make, state, dtype).train(training)
    model.branches.given = given if given is None else iter(given)
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(images, dtype=dtype)), torch.tensor(labels))
    loss.backward()
    result = {"loss": loss.detach().numpy()}
    result |= {f"gradient of {n}": p.grad.numpy() for n, p in model.named_parameters()}
    result |= {n: b.numpy() for n, b in model.named_buffers() if training and not n.endswith("num_batches_tracked")}
    return result, model.branches.taken


def errors(values: Arrays, exact: Arrays) -> dict[str, float]:
    """Norm of the difference over the norm of the exact value, for each name."""
    assert values.keys() == exact.keys()
    found = {}
    for name, reference in exact.items():
        assert values[name].shape == reference.shape and reference.dtype == np.float64
        norm = np.linalg.norm(reference.ravel())
        assert norm > 0, f"{name} is zero: nothing would be compared"
        found[name] = float(np.linalg.norm((values[name] - reference).ravel()) / norm)
    return found


def assert_as_near(ours: dict[str, float], theirs: dict[str, float]) -> None:
    for name, error in ours.items():
        assert error <= TIMES * max(theirs[name], FLOOR), f"{name}: our error {error:.2e}, PyTorch's {theirs[name]:.2e}"


def differing(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many kinks were taken on different sides."""
    assert [x.shape for x in a] == [x.shape for x in b]  # the same kinks, in the same order
    return sum(int(np.count_nonzero(x != y)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "training"), [*((name, True) for name in PEERS), ("resnet18", False)],
                         ids=lambda value: value if isinstance(value, str) else "training" if value else "inference")
def test_loss_and_gradients_are_as_near_to_float64_as_those_of_pytorch(name, training):
    make, shape, budget = PEERS[name]
    state, our_values, our_branches = our_gradients(name, shape, budget, training=training)
    their_values, their_branches = their_gradients(make, state, shape, torch.float32, training=training)
    exact, exact_branches = their_gradients(make, state, shape, torch.float64, training=training)

    def exact_along(branches) -> Arrays:
        count = differing(branches, exact_branches)
        if not count:
            return exact
        # Rounding moves a value by some 1e-6 of its spread at most: more than 1e-5 of all are not near misses.
        assert count <= 1e-5 * sum(x.size for x in exact_branches)
        return their_gradients(make, state, shape, torch.float64, training=training, given=branches)[0]
    assert_as_near(errors(our_values, exact_along(our_branches)), errors(their_values, exact_along(their_branches)))


# Name of the optimizer: ours, PyTorch's, arguments of both, and the names of their states.
OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, str]]] = {
    "sgd": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}, {}),
    "momentum": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
                 {"momentum": "momentum_buffer"}),
    "adam": (optim.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.98), "eps": 1e-5, "weight_decay": 0.01},
             {"m": "exp_avg", "v": "exp_avg_sq"}),
}
STEPS = 3
TINY = (8, 1, 32, 32)


def our_steps(make, arguments) -> tuple[Arrays, Arrays]:
    """The state before the first step; and each parameter's change after the last, with the optimizer's state."""
    with Runtime(device="cpu:virtual", memory_budget="16MiB", host_memory="1MiB", poisoned=True) as runtime:
        model = create("lenet", num_classes=CLASSES)
        before = model.state_dict()
        optimizer = make(model.parameters(), **arguments)
        for step in range(STEPS):
            images, labels = batch(TINY, step)
            with runtime.iteration():
                nn.CrossEntropyLoss()(model(runtime.tensor(images)), runtime.tensor(labels)).backward()
                optimizer.step()
                optimizer.zero_grad()
        states = {key: value for key, value in optimizer.state_dict().items() if key != "step"}
        after = model.state_dict()
    return before, states | {f"change of {n}": after[n].astype(np.float64) - before[n] for n in before}


def their_steps(make, arguments, names, state, dtype) -> Arrays:
    model = peer(LeNet, state, dtype)
    optimizer = make(model.parameters(), **arguments)
    for step in range(STEPS):
        images, labels = batch(TINY, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.tensor(images, dtype=dtype)), torch.tensor(labels)).backward()
        optimizer.step()
    states = {f"{ours}.{i}": optimizer.state[p][theirs].numpy() for ours, theirs in names.items()
              for i, p in enumerate(model.parameters())}
    return states | {f"change of {n}": p.detach().numpy().astype(np.float64) - state[n]
                     for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_steps_are_as_near_to_float64_as_those_of_pytorch(name):
    ours, theirs, arguments, names = OPTIMIZERS[name]
    state, our_values = our_steps(ours, arguments)
    their_values, exact = (their_steps(theirs, arguments, names, state, dtype)
                           for dtype in (torch.float32, torch.float64))
    assert_as_near(errors(our_values, exact), errors(their_values, exact))
