"""The networks have the parameters of their papers under the names of their peers. Nothing here looks at values."""

import gc
import gzip
from pathlib import Path

import pytest

from minidl import Runtime
from minidl.autograd import no_grad
from minidl.errors import ShapeError, UserError
from minidl.lab.training_step import TrainedNetwork
from minidl.models import MODELS, create, find, listing
from minidl.models.weights import tied_to
from minidl.nn import AdaptiveAvgPool2d, Linear
from minidl.ops import full
from minidl.tensor import GONE, Tensor

# Parameters of each network for 1000 classes (10 for the three small ones, 2 for unet), buffers not counted, and the
# number of parameters and buffers together. As torchvision and timm have them; by hand
# of BERT: (V + 512 + 2) D + 2 D of embeddings, L (12 D^2 + 13 D) of layers, 2 (D^2 + D) + 2 D + 2 D + 2 + V of pooler
# and heads, with V = 30,522 words; 5 + 16 L + 9 tensors;
# of GPT-2: (V + 1024) D of embeddings, L (12 D^2 + 13 D) of blocks, 2 D of the last norm, V = 50,257; 4 + 12 L tensors;
# of Llama: V D of embeddings (twice unless tied), L (2 D^2 + 2 D K + 3 D F + 2 D) of layers with K the width of keys
# and F that of the feed-forward network, D of the last norm; Qwen2.5 has L (D + 2 K) of biases more;
# of T5, with H the width of all heads and F that of the feed-forward network: V D of embeddings (twice unless tied),
# L (4 D H + 2 D F + 2 D) of the encoder, L (8 D H + 2 D F + 3 D) of the decoder, 3 D F if gated, 2 D of the last norms
# and 2 tables of 32 numbers a head; V = 32,128; 5 + 21 L tensors, 6 + 23 L if gated;
# unet, in units of a width c = 64, 128, ...: each stage of the way down 9 (c / 2 or 3) c + 9 c^2 + 4 c, of the way up
# 4 (2 c) c + c + 9 (2 c) c + 9 c^2 + 4 c, and 2 (64 + 1) at the end;
# resnet20: 0.27 million (section 4.2's table), with option B's 16 32 + 32 64 weights and 2 (32 + 64) of norms;
# lenet: C1 6(25+1) = 156, C3 16(6*25+1) = 2,416, C5 120(16*25+1) = 48,120, F6 84(120+1) = 10,164, output 850;
# mlp: 300(784+1) = 235,500, 100(300+1) = 30,100, 10(100+1) = 1,010.
SIZES = {
    "mlp": (266_610, 6),
    "lenet": (61_706, 10),
    "vgg11": (132_863_336, 22),
    "vgg13": (133_047_848, 26),
    "vgg16": (138_357_544, 32),
    "vgg19": (143_667_240, 38),
    "vgg11_bn": (132_868_840, 54),
    "vgg13_bn": (133_053_736, 66),
    "vgg16_bn": (138_365_992, 84),
    "vgg19_bn": (143_678_248, 102),
    "resnet18": (11_689_512, 102),
    "resnet34": (21_797_672, 182),
    "resnet50": (25_557_032, 267),
    "resnet101": (44_549_160, 522),
    "resnet152": (60_192_808, 777),
    "resnet20": (272_474, 107),
    "inception_v3": (23_834_568, 472),
    "inception_v3_aux": (27_161_264, 484),
    "inception_v4": (42_679_816, 747),
    "densenet121": (7_978_856, 606),
    "densenet169": (14_149_480, 846),
    "densenet201": (20_013_928, 1006),
    "unet": (31_037_698, 100),
    "unet-small": (1_942_594, 100),
    "bert-tiny": (4_433_468, 46),
    "bert-mini": (11_267_900, 78),
    "bert-small": (29_058_876, 78),
    "bert-medium": (41_668_412, 142),
    "bert-base": (110_106_428, 206),
    "bert-large": (336_226_108, 398),
    "gpt2": (124_439_808, 148),
    "gpt2-medium": (354_823_168, 292),
    "gpt2-large": (774_030_080, 436),
    "gpt2-xl": (1_557_611_200, 580),
    "vit_b_16": (86_567_656, 152),
    "vit_b_32": (88_224_232, 152),
    "vit_l_16": (304_326_632, 296),
    "convnext_tiny": (28_589_128, 182),
    "convnext_small": (50_223_688, 344),
    "convnext_base": (88_591_464, 344),
    "efficientnet_b0": (5_288_548, 311),
    "efficientnet_b2": (9_109_994, 439),
    "efficientnet_b4": (19_341_616, 610),
    "mobilenet_v3_large": (5_483_032, 266),
    "mobilenet_v3_small": (2_542_856, 210),
    "resnext50_32x4d": (25_028_904, 267),
    "resnext101_32x8d": (88_791_336, 522),
    "resnext101_64x4d": (83_455_272, 522),
    "llama-tiny": (125_248, 20),
    "llama-1b": (1_235_814_400, 146),
    "llama-3b": (3_212_749_824, 254),
    "llama-8b": (8_030_261_248, 291),
    "qwen2.5-0.5b": (494_032_768, 290),
    "qwen2.5-1.5b": (1_543_714_304, 338),
    "qwen2.5-3b": (3_085_938_688, 434),
    "qwen2.5-7b": (7_615_616_512, 339),
    "t5-small": (60_506_624, 131),
    "t5-base": (222_903_552, 257),
    "t5-large": (737_668_096, 509),
    "t5-3b": (2_851_598_336, 509),
    "flan-t5-small": (76_961_152, 190),
    "flan-t5-base": (247_577_856, 282),
    "flan-t5-large": (783_150_080, 558),
    "flan-t5-xl": (2_849_757_184, 558),
}
IMAGE_MODELS = [name for name, model in MODELS.items() if model.text is None]


@pytest.fixture
def on_simulated_gpu():
    """A device without numerics, so that even VGG costs nothing to make."""
    with Runtime(device="sim:p100"):
        yield


def test_every_model_has_its_size_here():
    assert set(SIZES) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_as_many_parameters_as_its_paper_and_torchvision_say(on_simulated_gpu, name):
    model = create(name)
    count = sum(p.numel() for p in model.parameters())
    tensors = len([*model.named_parameters(), *model.named_buffers()])
    assert (count, tensors) == SIZES[name]


def peer_state(name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the network that torchvision, timm, Hugging Face, or github.com/milesial (unet) have."""
    text = gzip.decompress((Path(__file__).parents[1] / "support" / "names" / f"{name}.txt.gz").read_bytes()).decode()
    return [(path, tuple(map(int, shape.split("x")))) for path, shape in map(str.split, text.splitlines())]


# Their names are ours, or those of a larger sibling.
WITHOUT_PEER = ("mlp", "lenet", "resnet20", "unet-small", "llama-tiny")


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT_PEER])
def test_names_shapes_and_order_of_the_state_are_those_of_its_peer(on_simulated_gpu, name):
    model = create(name)
    ours = [(path, t.shape) for path, t in model._named_tensors(parameters=True, buffers=True)]
    # A tied weight is one parameter here, under its first name.
    known = dict(ours)
    assert ours == [(path, shape) for path, shape in peer_state(name) if not tied_to(path, known)]


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_the_default_image_gives_one_score_a_class(on_simulated_gpu, name):
    entry = find(name)
    model = create(name)
    with no_grad():
        y = model.eval()(full((2, *entry.input_shape), 0.0))
    assert y.shape == (2, entry.num_classes, *(entry.input_shape[1:] if entry.pixel_labels else ()))


@pytest.mark.parametrize(("name", "size"), [("mlp", 8), ("lenet", 28), ("vgg11", 32), ("vgg16_bn", 40),
                                            ("resnet18", 32), ("resnet50", 75), ("inception_v3", 75),
                                            ("inception_v4", 75), ("densenet121", 32), ("resnext50_32x4d", 32),
                                            ("vit_b_16", 48), ("convnext_tiny", 40), ("efficientnet_b0", 40),
                                            ("mobilenet_v3_small", 40)])
def test_other_classes_channels_and_image_sizes_can_be_asked_for(on_simulated_gpu, name, size):
    model = create(name, num_classes=7, in_channels=2, image_size=size)
    with no_grad():
        assert model(full((3, 2, size, size), 0.0)).shape == (3, 7)


def test_unet_gives_a_score_a_class_and_pixel_for_any_multiple_of_16(on_simulated_gpu):
    model = create("unet", num_classes=7, in_channels=2)
    with no_grad():
        assert model(full((3, 2, 48, 16), 0.0)).shape == (3, 7, 48, 16)
        with pytest.raises(ShapeError, match="multiples of 16, not 48 x 20"):
            model(full((3, 2, 48, 20), 0.0))


def test_the_auxiliary_classifier_speaks_in_training_only(on_simulated_gpu):
    model = create("inception_v3_aux", num_classes=7)
    with no_grad():
        x = full((2, 3, 299, 299), 0.0)
        assert [y.shape for y in model(x)] == [(2, 7), (2, 7)]
        assert model.eval()(x).shape == (2, 7)


@pytest.mark.parametrize(("name", "shape"), [
    ("vgg11", (1, 512, 7, 7)), ("vgg13", (1, 512, 7, 7)), ("vgg16", (1, 512, 7, 7)), ("vgg19", (1, 512, 7, 7)),
    ("resnet18", (1, 512, 7, 7)), ("resnet34", (1, 512, 7, 7)), ("resnet50", (1, 2048, 7, 7)),
    ("resnet101", (1, 2048, 7, 7)), ("resnet152", (1, 2048, 7, 7)),
])
def test_an_image_of_224_pixels_has_been_halved_five_times_before_the_last_pooling(on_simulated_gpu, name, shape):
    model = create(name)
    pooled = []
    model.avgpool.forward = lambda x: (pooled.append(x.shape), AdaptiveAvgPool2d.forward(model.avgpool, x))[1]
    with no_grad():
        model(full((1, 3, 224, 224), 0.0))
    assert pooled == [shape]


def test_a_bottleneck_halves_the_image_in_its_3x3_convolution(on_simulated_gpu):
    block = create("resnet50").layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.downsample[0].stride) == ((1, 1), (2, 2), (2, 2))


@pytest.mark.default(name=["lenet", "vgg11_bn", "resnet18"])
@pytest.mark.parametrize("name", ["lenet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "inception_v3", "inception_v4",
                                  "densenet121", "unet"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_forward_pass_leaves_no_tensor_alive_but_its_result(on_simulated_gpu, name, mode):
    def tensors() -> int:
        return sum(type(thing) is Tensor for thing in gc.get_objects())  # isinstance would wake dead proxies

    model = getattr(create(name), mode)()
    x = full((2, *find(name).input_shape), 0.0)
    gc.collect()
    before = tensors()
    y = model(x)
    assert tensors() == before + 1
    del y


@pytest.mark.default(name=["lenet", "unet-small", "bert-tiny", "mobilenet_v3_small", "vit_b_32", "llama-tiny"])
@pytest.mark.parametrize("name", ["lenet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d",
                                  "inception_v3", "inception_v4", "densenet121", "unet-small", "bert-tiny", "gpt2",
                                  "llama-tiny", "t5-small", "mobilenet_v3_small", "efficientnet_b0", "vit_b_32",
                                  "convnext_tiny"])
def test_a_step_with_enough_memory_computes_nothing_twice(name):
    # A donated value that a gradient needs would be computed again.
    with Runtime("sim:p100", memory_budget=1 << 50, policy="passive") as runtime:
        step = TrainedNetwork(name, 2).step
        for _ in range(2):
            with runtime.iteration():
                step()
        assert runtime.stats().recomputed_bytes == 0


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize(("stage", "index", "at_most"), [("layer1", 1, 2), ("layer2", 0, 3)])
def test_a_residual_block_in_inference_holds_no_more_than_its_join_needs(on_simulated_gpu, monkeypatch, name, stage,
                                                                        index, at_most):
    # Besides the input, which is the caller's: the branch and the sum, and the shortcut where it is not the input.
    module = getattr(create(name).eval(), stage)[index]
    x = full((1, module.conv1.weight.shape[1], 56, 56), 0.0)
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if type(thing) is Tensor}
    counts = []
    make_tensor = Tensor.__init__

    def make_and_count(self, storage):
        make_tensor(self, storage)
        counts.append(sum(type(thing) is Tensor and id(thing) not in before and thing.storage is not GONE
                          for thing in gc.get_objects()))

    monkeypatch.setattr(Tensor, "__init__", make_and_count)
    with no_grad():
        module(x)
    assert max(counts) == at_most


def test_an_unknown_name_is_answered_with_the_nearest(on_simulated_gpu):
    with pytest.raises(UserError, match="'resnet51'; did you mean resnet50"):
        create("resnet51")
    with pytest.raises(UserError, match="'inceptionv3'; did you mean inception_v3"):
        create("inceptionv3")
    with pytest.raises(UserError, match="--list-models lists all names"):
        create("zzzz")


def test_the_listing_has_every_name_once_below_its_paper():
    lines = listing().splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == list(MODELS)
    families = [line for line in lines if not line.startswith("  ")]
    assert len(families) == len(set(families)) == 17 and all(family[-1] == "." for family in families)
    assert lines[lines.index("  unet              3x224x224 images, 2 classes per pixel") - 1].startswith("U-Net: ")


def test_lenet_refuses_a_size_that_its_frame_does_not_hold(on_simulated_gpu):
    with pytest.raises(UserError, match="28x28, 30x30 or 32x32 pixels, not 8x8"):
        create("lenet", image_size=8)


def own(*, num_classes: int = 3) -> Linear:
    """A network that the registry does not know."""
    return Linear(5, num_classes)


def not_a_model() -> int:
    """Something else."""
    return 5


def test_a_network_of_ones_own_comes_by_module_and_function(on_simulated_gpu):
    assert create(f"{__name__}:own").weight.shape == (3, 5)
    assert create(f"{__name__}:own", num_classes=4, image_size=9).weight.shape == (4, 5)


@pytest.mark.parametrize(("function", "message"), [
    ("own", r"takes no in_channels, so it cannot be 3 \(a model is a function like build\(num_classes="),
    ("absent", "cannot load the model"),
    ("__doc__", "__doc__ cannot be called"),
])
def test_what_cannot_be_had_of_ones_own_function_is_one_error(on_simulated_gpu, function, message):
    with pytest.raises(UserError, match=message):
        create(f"{__name__}:{function}", in_channels=3)


def test_a_module_that_is_not_there_and_a_function_that_returns_no_module_are_errors(on_simulated_gpu):
    with pytest.raises(UserError, match="No module named 'no_such_package'"):
        create("no_such_package:net")
    with pytest.raises(UserError, match="returned int, which is not"):
        create(f"{__name__}:not_a_model")
