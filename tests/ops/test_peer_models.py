"""Networks against the packages whose names their parameters have: their state, by name, gives their logits.

Each package is imported where it is needed; what it has no tests for here is skipped without it. No trained weights are
downloaded: initial ones do, once the running statistics of batch norm are those of a batch (with the initial ones a
deep network's logits all but vanish, or overflow).
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest

from minidl import Runtime, no_grad
from minidl.models import create, weights
from minidl.models.bert import BertConfig, BertForPreTraining
from minidl.models.gpt import GPT, GPTConfig
from minidl.models.llama import Llama, LlamaConfig, RopeScaling
from minidl.models.t5 import T5, T5Config, buckets

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

TOLERANCE = 3e-5  # of the largest logit: some ten times what either is off by
IMAGES = 2


def peer_package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name}, the peer, is not installed", exc_type=(ImportError, RuntimeError))


def torchvision_model(name: str, **options: Any) -> Any:
    return getattr(peer_package("torchvision").models, name)(weights=None, **options)


def torchvision_inception(name: str, **options: Any) -> Any:
    return peer_package("torchvision").models.Inception3(aux_logits=name.endswith("_aux"), init_weights=False)


def torchvision_mobilenet(name: str, **options: Any) -> Any:
    model = torchvision_model(name)
    with torch.no_grad():
        model.classifier[3].weight.mul_(10.0)  # at first the logits are hardly more than nothing
    return model


def timm_model(name: str, **options: Any) -> Any:
    return peer_package("timm").create_model(name, **options)


# The U-Net of github.com/milesial/Pytorch-UNet, which is no package: its names, written down.
class Holder(torch.nn.Module):
    """Modules by name."""

    def __init__(self, **children: Any) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class PeerUNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inc = self.double(3, 64)
        for i, width in enumerate((64, 128, 256, 512), 1):
            self.add_module(f"down{i}", Holder(maxpool_conv=torch.nn.ModuleList(
                [torch.nn.MaxPool2d(2), self.double(width, 2 * width)])))
            width = 1024 // 2**i
            self.add_module(f"up{i}", Holder(up=torch.nn.ConvTranspose2d(2 * width, width, 2, 2),
                                             conv=self.double(2 * width, width)))
        self.outc = Holder(conv=torch.nn.Conv2d(64, 2, 1))

    @staticmethod
    def double(ins: int, outs: int) -> Holder:
        layers: list[Any] = []
        for channels in (ins, outs):
            layers += [torch.nn.Conv2d(channels, outs, 3, padding=1, bias=False), torch.nn.BatchNorm2d(outs),
                       torch.nn.ReLU()]
        return Holder(double_conv=torch.nn.Sequential(*layers))

    def forward(self, x: Any) -> Any:
        skips = [self.inc.double_conv(x)]
        for i in range(1, 5):
            pool, double = getattr(self, f"down{i}").maxpool_conv
            skips.append(double.double_conv(pool(skips[-1])))
        x = skips.pop()
        for i in range(1, 5):
            up = getattr(self, f"up{i}")
            x = up.conv.double_conv(torch.cat([skips.pop(), up.up(x)], 1))
        return self.outc.conv(x)


# Name of the model: its peer, pixels a side, device memory. The rest are the same code with other numbers.
VISION: dict[str, tuple[Callable[..., Any], int, str]] = {
    "vgg11": (torchvision_model, 64, "1200MiB"),
    "vgg16_bn": (torchvision_model, 40, "1200MiB"),
    "resnet18": (torchvision_model, 64, "256MiB"),
    "resnet50": (torchvision_model, 75, "512MiB"),
    "resnet152": (torchvision_model, 64, "1GiB"),
    "inception_v3": (torchvision_inception, 139, "512MiB"),
    "inception_v3_aux": (torchvision_inception, 299, "1GiB"),
    "inception_v4": (timm_model, 139, "1GiB"),
    "densenet121": (torchvision_model, 64, "256MiB"),
    "densenet201": (torchvision_model, 64, "512MiB"),
    "resnext50_32x4d": (torchvision_model, 64, "512MiB"),
    "mobilenet_v3_small": (torchvision_mobilenet, 64, "128MiB"),
    "mobilenet_v3_large": (torchvision_mobilenet, 64, "128MiB"),
    "efficientnet_b0": (torchvision_model, 64, "256MiB"),
    "efficientnet_b2": (torchvision_model, 64, "256MiB"),
    "vit_b_16": (partial(torchvision_model, image_size=48), 48, "1GiB"),
    "vit_b_32": (partial(torchvision_model, image_size=64), 64, "1GiB"),
    "convnext_tiny": (torchvision_model, 64, "512MiB"),
    "convnext_base": (torchvision_model, 64, "1200MiB"),
    "unet": (lambda name: PeerUNet(), 32, "512MiB"),
}
# Seconds, for more of the same.
LONG = {"vgg16_bn", "resnet152", "inception_v3_aux", "densenet201", "efficientnet_b2", "vit_b_32", "convnext_base",
        "resnext50_32x4d"}


def with_statistics(model: Any, images: Any) -> Any:
    """The network in inference mode, with batch norms that have seen a batch and whose scales differ.

    Only a part of each mean is taken off: centring noise on noise, layer after layer, magnifies every rounding (PyTorch
    itself is then 5e-4 off its own float64 in resnet152).
    """
    torch.manual_seed(0)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -0.5, 0.5)
    for name, parameter in model.named_parameters():  # at first ViT's head is 0, and ConvNeXt's blocks add nothing
        if name.endswith(("layer_scale", "heads.head.weight")):
            torch.nn.init.uniform_(parameter, 0.1, 0.5)
    with torch.no_grad():
        model.train()(images)
        for norm in norms:
            norm.running_var += (0.9 * norm.running_mean)**2
            norm.running_mean *= 0.1
    return model.eval()


def save(model: Any, path: str) -> None:
    from safetensors.torch import save_model
    save_model(model, path)


def assert_near(ours: np.ndarray, theirs: Any) -> None:
    theirs = theirs.numpy()
    assert ours.shape == theirs.shape
    largest = np.abs(theirs).max()
    assert theirs.std() > 0.01 * largest > 1e-3  # the logits differ, and are no rounding errors
    assert np.abs(ours - theirs).max() <= TOLERANCE * largest


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) if name in LONG else name
                                  for name in VISION])
def test_the_state_of_a_network_loads_by_name_and_gives_its_logits(tmp_path, name):
    make, side, budget = VISION[name]
    path = str(tmp_path / "peer.safetensors")
    images = np.random.default_rng(0).standard_normal((2 * IMAGES, 3, side, side)).astype(np.float32)
    torch.manual_seed(0)
    peer = with_statistics(make(name), torch.from_numpy(images))
    save(peer, path)
    with torch.no_grad():
        theirs = peer(torch.from_numpy(images[:IMAGES]))
    with Runtime("cpu", memory_budget=budget, policy="none") as runtime:
        model = create(name, image_size=side).eval()
        weights.load(model, path)
        with no_grad():
            ours = model(runtime.tensor(images[:IMAGES])).numpy()
    assert_near(ours, theirs)


@pytest.mark.full
def test_the_auxiliary_head_gives_the_logits_of_its_peer(tmp_path):
    path = str(tmp_path / "peer.safetensors")
    images = np.random.default_rng(0).standard_normal((2, 3, 299, 299)).astype(np.float32)
    peer = torchvision_inception("inception_v3_aux")
    peer.dropout.p = 0.0
    with torch.no_grad():
        theirs = peer.train()(torch.from_numpy(images))
    save(peer, path)
    with Runtime("cpu", memory_budget="2GiB", policy="none") as runtime:
        model = create("inception_v3_aux")
        model.dropout.p = 0.0
        weights.load(model, path)
        with no_grad():
            ours = [y.numpy() for y in model(runtime.tensor(images))]
    assert_near(ours[0], theirs.logits)
    assert_near(ours[1], theirs.aux_logits)


def wide(model: Any) -> Any:
    """Ten times the initial weights: with these every position attends to all others alike."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2)
            elif "bias" in name:
                parameter.normal_(0.0, 0.1)
    return model.eval()


def test_gpt2_gives_the_logits_of_hugging_face(tmp_path):
    transformers = peer_package("transformers")
    path = str(tmp_path / "peer.safetensors")
    peer = wide(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=300)))
    save(peer, path)
    ids = np.random.default_rng(0).integers(300, size=(3, 50))
    with torch.no_grad():
        theirs = peer(torch.from_numpy(ids)).logits
    with Runtime("cpu", memory_budget="64MiB", policy="none") as runtime, no_grad():
        model = GPT(GPTConfig(3, 64, 4, vocab_size=300)).eval()
        weights.load(model, path)
        ours = model.logits(runtime.tensor(ids)).numpy()
    assert_near(ours, theirs.flatten(0, 1))


def test_bert_gives_the_logits_of_hugging_face_for_every_position_and_the_pair(tmp_path):
    transformers = peer_package("transformers")
    path = str(tmp_path / "peer.safetensors")
    peer = wide(transformers.BertForPreTraining(transformers.BertConfig(
        num_hidden_layers=3, hidden_size=64, num_attention_heads=4, intermediate_size=256, vocab_size=300)))
    save(peer, path)
    rng = np.random.default_rng(0)
    ids, types = rng.integers(300, size=(3, 50)), rng.integers(2, size=(3, 50))
    mask = (np.arange(50) < np.array([50, 31, 7])[:, None])
    with torch.no_grad():
        theirs = peer(torch.from_numpy(ids), token_type_ids=torch.from_numpy(types),
                      attention_mask=torch.from_numpy(mask.astype(np.int64)))
    with Runtime("cpu", memory_budget="64MiB", policy="none") as runtime, no_grad():
        model = BertForPreTraining(BertConfig(3, 64, 4, vocab_size=300)).eval()
        weights.load(model, path)
        x, pooled = model.bert(runtime.tensor(ids), runtime.tensor(types), runtime.tensor(mask.astype(np.float32)))
        words = model.bert.embeddings.word_embeddings.weight
        ours = model.cls.predictions(x.reshape((-1, 64)), words).numpy()
        pair = model.cls.seq_relationship(pooled).numpy()
    assert_near(ours, theirs.prediction_logits.flatten(0, 1))
    assert_near(pair, theirs.seq_relationship_logits)


SCALING = RopeScaling(8.0, original_max_position_embeddings=64)


@pytest.mark.parametrize(("config", "tied"), [
    (LlamaConfig(3, 64, 96, 4, 2, 300, True), True),
    (LlamaConfig(2, 64, 96, 4, 2, 300, False, head_dim=32, rope_scaling=SCALING), False),
    (LlamaConfig(2, 64, 96, 4, 1, 300, True, rope_theta=1e6, rms_norm_eps=1e-6, qkv_bias=True), True),
], ids=["tied", "scaled", "qwen"])
def test_llama_and_qwen_give_the_logits_of_hugging_face(tmp_path, config, tied):
    transformers = peer_package("transformers")
    path = str(tmp_path / "peer.safetensors")
    sizes = {name: getattr(config, name) for name in (
        "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "tie_word_embeddings", "rms_norm_eps")}
    rope = {"rope_theta": config.rope_theta, "rope_type": "default"}
    if config.rope_scaling is not None:
        rope |= asdict(config.rope_scaling) | {"rope_type": "llama3"}
    if config.qkv_bias:
        peer = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, rope_parameters=rope))
    else:
        peer = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, head_dim=config.head_width,
                                                                      rope_parameters=rope))
    save(wide(peer), path)
    ids = np.random.default_rng(0).integers(300, size=(3, 50))
    with torch.no_grad():
        theirs = peer(torch.from_numpy(ids)).logits
    with Runtime("cpu", memory_budget="64MiB", policy="none") as runtime, no_grad():
        model = Llama(config).eval()
        weights.load(model, path)
        ours = model.logits(runtime.tensor(ids)).numpy()
        assert tied == ("lm_head.weight" not in model.state_dict())
    assert_near(ours, theirs.flatten(0, 1))


@pytest.mark.parametrize("gated", [False, True])
def test_t5_gives_the_logits_and_the_loss_of_hugging_face(tmp_path, gated):
    transformers = peer_package("transformers")
    path = str(tmp_path / "peer.safetensors")
    config = T5Config(3, 64, 96, 4, 24, vocab_size=300, gated=gated, tie_word_embeddings=not gated)
    peer = transformers.T5ForConditionalGeneration(transformers.T5Config(
        num_layers=3, d_model=64, d_ff=96, num_heads=4, d_kv=24, vocab_size=300, scale_decoder_outputs=not gated,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
        decoder_start_token_id=0))
    if gated:  # some versions tie the head in spite of the configuration
        peer.lm_head.weight = torch.nn.Parameter(peer.lm_head.weight.detach().clone())
    wide(peer)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if name.endswith(".q.weight"):
                parameter /= 24**0.5  # scores are not divided; beyond 10 a softmax has one 1, and magnifies roundings
    save(peer, path)
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(300, size=(3, 150)), rng.integers(1, 300, size=(3, 40))
    mask = np.arange(150) < np.array([150, 31, 7])[:, None]
    labels[1, 30:] = -100
    with torch.no_grad():
        theirs = peer(torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64)), labels=torch.from_numpy(labels))
    before = np.concatenate([np.zeros((3, 1), np.int64), np.maximum(labels[:, :-1], 0)], 1)
    with Runtime("cpu", memory_budget="64MiB", policy="none") as runtime, no_grad():
        model = T5(config).eval()
        weights.load(model, path)
        seen = runtime.tensor(mask.astype(np.float32))
        ours = model.logits(runtime.tensor(ids), runtime.tensor(before), seen).numpy()
        loss = model.loss(runtime.tensor(ids), runtime.tensor(labels), seen).item()
    assert_near(ours, theirs.logits.flatten(0, 1))
    assert loss == pytest.approx(theirs.loss.item(), rel=1e-5)


@pytest.mark.parametrize("both_sides", [False, True])
def test_t5_counts_relative_positions_as_hugging_face_does(both_sides):
    peer_package("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention
    distances = torch.arange(700)[None] - torch.arange(700)[:, None]
    theirs = T5Attention._relative_position_bucket(distances, both_sides, 32, 128)
    assert (buckets(700, both_sides=both_sides) == theirs.numpy()).all()
