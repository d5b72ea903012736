"""What each network computes and keeps per image, against figures computed layer by layer from the papers' definitions.

Forward operations are those of convolutions and products, 2 a multiply-add. Saved bytes are what is alive between
forward and backward pass: convolutions, products and normalisations keep their input, ReLU and softmax their output,
max-pooling one byte an output, dropout nothing. These figures are for normalisation and ReLU apart; together they keep
less wherever the ReLU's output has no other reader.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from minidl import Runtime, current, no_grad
from minidl.device import Device
from minidl.device import create as create_device
from minidl.memory.switches import Switches
from minidl.meta import int64
from minidl.models import create, find, gpt
from minidl.models.bert import Text, loss, synthetic_batch
from minidl.outside.units import UNLIMITED

BATCHES = (8, 16)

# GFLOP of the forward pass and MB (1e6 bytes) saved, both per image; name@pixels.
IMAGES = {
    "vgg16@224": (30.94, 60.99), "vgg19@224": (39.26, 66.21),
    "resnet50@224": (8.18, 84.31), "resnet152@224": (23.03, 175.83),
    "inception_v3@299": (11.43, 93.04), "inception_v3@224": (5.68, 47.84),
    "inception_v4@299": (24.51, 169.14), "inception_v4@224": (12.24, 86.66),
    "densenet121@224": (5.67, 125.95),
    "unet@224": (73.76, 251.08), "unet@576": (487.74, 1660.21),
}
# Convolutions (transposed ones not counted), batch norms and ReLUs of a forward pass. The number in a name counts
# convolutions and linear layers on the longest path: ResNet's shortcuts add four; DenseNet's layers begin with a norm.
LAYERS = {"vgg16": (13, 0, 15), "vgg16_bn": (13, 13, 15), "resnet18": (20, 20, 17), "resnet50": (53, 53, 49),
          "resnet152": (155, 155, 151), "inception_v3": (94, 94, 94), "inception_v3_aux": (96, 96, 96),
          "inception_v4": (149, 149, 149), "densenet121": (120, 121, 121), "densenet201": (200, 201, 201),
          "unet": (19, 18, 18)}
# Of BERT-base, at a length with as many predictions.
TEXT = {(128, 20): 23.31, (128, 128): 28.50, (512, 80): 100.48, (512, 512): 121.25}


@dataclass
class Pass:
    """Of one forward pass."""

    flops: float = 0.0
    index_bytes: int = 0  # positions that max-pooling keeps
    saved_bytes: int = 0
    calls: Counter[str] = field(default_factory=Counter)


def dry() -> Device:
    return create_device("sim:p100").dry_twin()


def counted(runtime: Runtime, forward) -> Pass:
    """Run ``forward``, which returns what a backward pass would start from."""
    executor, found = current(), Pass()
    run = executor.run

    def counting(op, inputs, attrs, given=0):
        outputs = run(op, inputs, attrs, given)
        found.calls[op.name] += 1
        cost = op.cost([s.meta for s in inputs], [s.meta for s in outputs], attrs)
        if cost.kind in ("conv", "matmul"):
            found.flops += cost.flops
        if op.name == "max_pool2d":
            found.index_bytes += outputs[1].meta.nbytes
        return outputs
    executor.run = counting
    before = runtime.stats().used_bytes
    value = forward()
    found.saved_bytes = runtime.stats().used_bytes - before
    del value, executor.run
    return found


def image_pass(name: str, size: int, batch: int, *, fuses: bool) -> Pass:
    with Runtime(dry(), memory_budget=UNLIMITED, policy="none", switches=Switches(fused=fuses)) as runtime:
        entry, model = find(name), create(name)

        def forward():
            images = runtime.tensor(None, shape=(batch, entry.input_shape[0], size, size))
            labels = runtime.tensor(None, shape=(batch, size, size) if entry.pixel_labels else (batch,), dtype=int64)
            return entry.loss(model, images, labels)
        return counted(runtime, forward)


@pytest.mark.parametrize("case", IMAGES)
def test_operations_are_those_of_the_paper_and_saved_bytes_within_2_percent(case):
    name, _, size = case.partition("@")
    gflop, saved_mb = IMAGES[case]
    few, many = (image_pass(name, int(size), batch, fuses=False) for batch in BATCHES)
    images = BATCHES[1] - BATCHES[0]
    # The table has two decimals; the FLOPs of the smallest network are known to 0.1%, of the largest to 0.001%.
    assert (many.flops - few.flops) / images / 1e9 == pytest.approx(gflop, abs=0.005)
    # Where a pooling's input and output are kept by their neighbours anyway (VGG), our byte an output comes on top.
    index = (many.index_bytes - few.index_bytes) / images
    saved = (many.saved_bytes - few.saved_bytes) / images
    assert (saved - index) / 1e6 == pytest.approx(saved_mb, rel=0.02)


@pytest.mark.parametrize("name", LAYERS)
def test_a_network_has_as_many_convolutions_norms_and_relus_as_its_paper(name):
    calls = image_pass(name, find(name).image_size, 2, fuses=False).calls
    assert (calls["conv2d"], calls["batch_norm"], calls["relu"]) == LAYERS[name]


@pytest.mark.parametrize(("name", "least", "most"), [("inception_v3", 0.15, 0.25), ("densenet121", 0.02, 0.04),
                                                     ("unet", 0.08, 0.11), ("resnet50", 0.03, 0.05)])
def test_normalisation_and_relu_together_keep_less_where_a_relu_feeds_a_concatenation(name, least, most):
    size = find(name).image_size
    fused, apart = (image_pass(name, size, 8, fuses=fuses).saved_bytes for fuses in (True, False))
    assert least < 1 - fused / apart < most


@pytest.mark.parametrize(("length", "predictions"), TEXT)
def test_operations_of_bert_base_are_those_of_the_paper(length, predictions):
    text = Text(length, predictions)

    def flops(batch: int) -> float:
        with Runtime(dry(), memory_budget=UNLIMITED, policy="none") as runtime:
            model = create("bert-base")
            return counted(runtime, lambda: loss(model, synthetic_batch(runtime, batch, text))).flops
    assert (flops(2) - flops(1)) / 1e9 == pytest.approx(TEXT[length, predictions], abs=0.005)


def test_operations_of_gpt2_are_two_a_weight_and_those_of_attention():
    # Each of 1024 tokens meets every weight of a product once: 12 blocks of 12 D^2 and the table of 50,257 words; the
    # two products of attention are 4 L D a token and block (what the mask hides is computed, too).
    d, length, words = 768, 1024, 50_257
    expected = length * (2 * (12 * 12 * d * d + words * d) + 12 * 4 * length * d)
    with Runtime(dry(), memory_budget=UNLIMITED, policy="none") as runtime, no_grad():
        model = create("gpt2")
        found = counted(runtime, lambda: model(*gpt.synthetic_batch(runtime, 1)))
    assert found.flops == expected
