"""Loss, gradients and optimizer steps against PyTorch's, from the same weights. Skipped where torch is not installed.

The rule: both are measured against PyTorch in float64, by the norm of the difference, parameter by parameter, relative
to the norm of the float64 value. Ours may be off by at most four times what PyTorch's own float32 is off by.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minidl import Runtime, nn, optim
from minidl.nn import Module
from models import create

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

TIMES = 4.0
# PyTorch's error may be zero by luck, where few roundings happen (a bias that is a sum of a few numbers): half a unit in
# the last place of float32 is what any rounding of the exact value to it may cost.
FLOOR = 2.0**-24

Arrays = dict[str, np.ndarray[Any, Any]]


# The peers: torchvision's layers and names, written down here because torchvision is not needed for anything else.
class Block(torch.nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outs)
        self.conv2 = torch.nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outs)
        self.downsample = torch.nn.Identity() if (ins, stride) == (outs, 1) else torch.nn.Sequential(
            torch.nn.Conv2d(ins, outs, 1, stride, bias=False), torch.nn.BatchNorm2d(outs))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        for i, (ins, outs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
            stage = torch.nn.Sequential(Block(ins, outs, 1 if i == 1 else 2), Block(outs, outs, 1))
            self.add_module(f"layer{i}", stage)
        self.fc = torch.nn.Linear(512, classes)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class VGG11(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        layers, ins = [], 3
        for outs in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            if outs:
                layers += [torch.nn.Conv2d(ins, outs, 3, padding=1), torch.nn.ReLU()]
                ins = outs
            else:
                layers.append(torch.nn.MaxPool2d(2))
        self.features = torch.nn.Sequential(*layers)
        widths = (512 * 7 * 7, 4096, 4096, classes)
        self.classifier = torch.nn.Sequential(
            torch.nn.Linear(*widths[:2]), torch.nn.ReLU(), torch.nn.Identity(),
            torch.nn.Linear(*widths[1:3]), torch.nn.ReLU(), torch.nn.Identity(), torch.nn.Linear(*widths[2:]))

    def forward(self, x):
        return self.classifier(torch.nn.functional.adaptive_avg_pool2d(self.features(x), 7).flatten(1))


class LeNet(torch.nn.Module):
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


class MLP(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(784, 300), torch.nn.ReLU(), torch.nn.Linear(300, 100), torch.nn.ReLU(),
            torch.nn.Linear(100, classes))

    def forward(self, x):
        return self.layers(x)


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


def batch(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(np.float32), rng.integers(0, CLASSES, shape[0])


def our_loss(model: Module, images, labels, runtime):
    return nn.CrossEntropyLoss()(model(runtime.tensor(images)), runtime.tensor(labels))


def their_loss(model, images, labels):
    dtype = next(model.parameters()).dtype
    return torch.nn.functional.cross_entropy(model(torch.tensor(images, dtype=dtype)), torch.tensor(labels))


def peer(make, state: Arrays, dtype):
    model = make(CLASSES).to(dtype)
    counts = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict(counts | {name: torch.tensor(value) for name, value in state.items()})
    return model


def no_dropout(model: Module) -> Module:
    """Random masks are not PyTorch's: without dropout both compute the same function."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def our_gradients(name, shape, budget, *, training) -> tuple[Arrays, Arrays]:
    """(state before the step, loss and gradients and state after it)"""
    images, labels = batch(shape)
    with Runtime(device="cpu", memory_budget=budget, host_memory="1MiB", poisoned=True) as runtime:
        model = no_dropout(create(name, num_classes=CLASSES)).train(training)
        before = model.state_dict()
        loss = our_loss(model, images, labels, runtime)
        result = {"loss": loss.numpy()}
        loss.backward()
        del loss
        result |= {f"grad {n}": p.grad.numpy() for n, p in model.named_parameters()}
        result |= {n: b.numpy() for n, b in model.named_buffers()}
    return before, result


def their_gradients(make, state, shape, dtype, *, training) -> Arrays:
    images, labels = batch(shape)
    model = peer(make, state, dtype).train(training)
    loss = their_loss(model, images, labels)
    loss.backward()
    return ({"loss": loss.detach().numpy()} | {f"grad {n}": p.grad.numpy() for n, p in model.named_parameters()}
            | {n: b.numpy() for n, b in model.named_buffers() if not n.endswith("num_batches_tracked")})


def assert_at_most_four_times_the_error_of_pytorch(ours: Arrays, theirs: Arrays, exact: Arrays) -> None:
    assert ours.keys() == theirs.keys() == exact.keys()
    for name, reference in exact.items():
        assert ours[name].shape == reference.shape and reference.dtype == np.float64
        norm = np.linalg.norm(reference.ravel())
        assert norm > 0, f"{name} is zero: nothing was compared"
        our_error, their_error = (np.linalg.norm((x[name] - reference).ravel()) / norm for x in (ours, theirs))
        assert our_error <= TIMES * max(their_error, FLOOR), (
            f"{name}: our error {our_error:.2e}, PyTorch's {their_error:.2e}")


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", PEERS)
def test_loss_and_gradients_are_as_near_to_float64_as_those_of_pytorch(name, training):
    if name != "resnet18" and not training:
        pytest.skip("without batch norm (and dropout) both modes are one function")
    make, shape, budget = PEERS[name]
    state, ours = our_gradients(name, shape, budget, training=training)
    theirs, exact = (their_gradients(make, state, shape, dtype, training=training)
                     for dtype in (torch.float32, torch.float64))
    assert_at_most_four_times_the_error_of_pytorch(ours, theirs, exact)
