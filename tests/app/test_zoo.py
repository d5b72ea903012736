"""The convolutional networks at work: one small step each, and no bit of it changed by a budget."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest

from minidl import Runtime, nn
from minidl.models import MODELS, classification_loss, create, find
from minidl.models.convnext import ConvNeXt
from minidl.models.densenet import DenseNet
from minidl.models.efficientnet import MBConv
from minidl.models.inception_v3 import InceptionA as InceptionA3
from minidl.models.inception_v3 import InceptionB
from minidl.models.inception_v4 import InceptionA
from minidl.models.inception_v4 import InceptionB as InceptionB4
from minidl.models.mobilenet_v3 import LARGE, MobileNetV3
from minidl.models.resnet import ResNet
from minidl.models.resnext import Block32x4
from minidl.models.unet import UNet
from minidl.models.unet import loss as pixel_loss
from minidl.models.vit import VisionTransformer
from minidl.optim import SGD
from train import main

# Pixels of a side at which each network still works, and how many images make batch norm's last maps at least 2.
SMALLEST = {"mlp": 8, "lenet": 28, "inception_v3": 75, "inception_v3_aux": 299, "inception_v4": 75, "unet": 16}
SIDE = 32  # of the others
# One a family, but for VGG's 130 million weights, and for many composed convolutions.
QUICK = ("mlp", "lenet", "resnet18", "inception_v3", "densenet121", "mobilenet_v3_small", "vit_b_32")


@pytest.mark.default(name=["mlp", "lenet", "densenet121"])
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full)
                                  for name in MODELS if not find(name).text])
def test_a_small_step_gives_every_parameter_a_gradient_and_changes_it(name):
    entry, side = find(name), SMALLEST.get(name, SIDE)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((4, entry.input_shape[0], side, side)).astype(np.float32)
    with Runtime("cpu", memory_budget="4GiB", policy="none") as runtime:
        model = create(name, num_classes=3, image_size=side)
        optimizer = SGD(model.parameters(), lr=1.0)
        before = {n: p.numpy() for n, p in model.named_parameters()}
        with runtime.iteration():
            labels = rng.integers(0, 3, (4, side, side) if entry.pixel_labels else 4)
            value = entry.loss(model, runtime.tensor(images), runtime.tensor(labels))
            value.backward()
            optimizer.step()
            assert np.isfinite(value.item())
        for n, p in model.named_parameters():
            after = p.numpy()
            assert np.isfinite(after).all(), n
            # A bias before a batch norm has no effect, so no gradient but rounding; behind ConvNeXt's layer scales of
            # 1e-6 gradients are too small to change a weight of 1.
            changed = (after != before[n]).any() or "convnext" in name and p.grad is not None and p.grad.numpy().any()
            assert p.grad is not None and (n.endswith("bias") or changed), n


# The batches of the literature, in the 14.8 GiB of a P100; without management none of them fits.
PUBLISHED = {"vgg16": 350, "vgg19": 300, "resnet50": 1014, "resnet152": 798, "inception_v3": 716, "inception_v4": 468,
             "densenet121": 190, "unet": 120, "bert-base": 450}
SOON = ("vgg19", "densenet121", "unet", "bert-base")  # a second or two each


@pytest.mark.default(name=["vgg19"])
@pytest.mark.parametrize(("name", "policy"), [
    (name, "passive") if name in SOON else pytest.param(name, "passive", marks=pytest.mark.full) for name in PUBLISHED
] + [pytest.param(name, "auto", marks=pytest.mark.full) for name in PUBLISHED])
def test_a_network_trains_at_its_published_batch(tmp_path, name, policy):
    result = tmp_path / "result.json"
    steps = "2" if policy == "passive" else "6"
    assert main(["--model", name, "--batch", str(PUBLISHED[name]), "--device", "sim:p100", "--policy", policy,
                 "--steps", steps, "--json", str(result)]) == 0
    found = json.loads(result.read_text())
    assert found["swapped_out_bytes"] > 0
    assert found["unmanaged_peak_bytes"] > found["budget_bytes"] >= found["peak_bytes"] > found["largest_op"]["bytes"]


# Bits under a budget ------------------------------------------------------------------------------------------------
class MBConvs(nn.Sequential):
    """Two blocks of EfficientNet, of which the second adds its input, and a classifier."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3, 2, 1), MBConv(8, 12, 4, 3, 2, 0.0), MBConv(12, 12, 4, 5, 1, 0.2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))


@dataclass(frozen=True)
class Small:
    """A network of the same parts, small enough to be run again and again."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    labels: tuple[int, ...] = ()
    loss: Callable = classification_loss


def modules(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


SMALL = {
    "unet": Small(partial(UNet, width=2, num_classes=3), (4, 3, 32, 32), (32, 32), pixel_loss),
    "densenet": Small(partial(DenseNet, (2, 3, 1, 1), num_classes=5), (6, 3, 32, 32)),
    "inception_v3": Small(lambda: modules(InceptionA3(8, 8), InceptionB(232)), (4, 8, 7, 7)),
    "inception_v4": Small(lambda: modules(InceptionA(), nn.Conv2d(384, 1024, 1), InceptionB4()), (2, 384, 4, 4)),
    "vit": Small(lambda: VisionTransformer(8, 2, 32, 4, num_classes=3, image_size=32), (4, 3, 32, 32)),
    "convnext": Small(lambda: ConvNeXt((1, 2), (8, 16), 0.2, num_classes=3), (4, 3, 32, 32)),
    "mobilenet_v3": Small(lambda: MobileNetV3((*LARGE[:5], LARGE[10]), 32, num_classes=3), (4, 3, 64, 64)),
    "resnext": Small(lambda: ResNet(Block32x4, (1, 1, 1, 1), num_classes=3), (2, 3, 64, 64)),
    "mbconv": Small(lambda: MBConvs(), (4, 3, 32, 32)),
}


def train(name: str, budget=None, policy="none"):
    """All that two steps change, as bytes; the demand of a step; counters."""
    small = SMALL[name]
    rng = np.random.default_rng(1)
    batches = [(rng.standard_normal(small.shape).astype(np.float32),
                rng.integers(0, 3, (small.shape[0], *small.labels))) for _ in range(2)]
    with Runtime("cpu:virtual", memory_budget=budget or "256MiB", host_memory="512MiB", policy=policy,
                 poisoned=True) as runtime:
        model = small.make()
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
        losses = []

        def step(images, labels):
            optimizer.zero_grad()
            value = small.loss(model, runtime.tensor(images), runtime.tensor(labels))
            value.backward()
            optimizer.step()
            losses.append(value.item())
        needs = runtime.dry_run(partial(step, *batches[0]))
        losses.clear()
        for batch in batches:
            with runtime.iteration():
                step(*batch)
            runtime.check()
        stats = runtime.stats()
        state = {n: a.tobytes() for n, a in (model.state_dict() | optimizer.state_dict()).items()}
    assert np.isfinite(losses).all() and losses[0] != losses[1]
    return state | {"losses": np.array(losses).tobytes()}, needs, stats


unlimited = cache(train)


@pytest.mark.default(name=["unet", "densenet"], policy=["passive"])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
@pytest.mark.parametrize("name", SMALL)
def test_a_budget_changes_no_bit_of_a_network(name, policy):
    reference, needs, _ = unlimited(name)
    state, _, stats = train(name, max(needs.largest_op_bytes, needs.unmanaged_peak_bytes // 2), policy)
    assert [n for n in reference if state[n] != reference[n]] == []
    assert (stats.swapped_out_bytes if policy == "passive" else stats.recomputed_bytes) > 0
