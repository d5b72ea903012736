"""minidl fit of models of transformers that a folder's config.json describes, or one in the hub's local cache."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from minidl.__main__ import main  # noqa: E402
from minidl.errors import UserError  # noqa: E402
from minidl.lab.torch_capture import Look, look  # noqa: E402
from minidl.lab.torch_programs import Asked  # noqa: E402

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2,
        "n_positions": 32, "vocab_size": 1000}
PARAMETERS = 1000 * 64 + 32 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64  # words, positions, two blocks, the last norm
BERT = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 64, "vocab_size": 100,
        "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128, "dtype": "bfloat16"}
VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 64, "num_hidden_layers": 1,
       "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64, "patch_size": 16, "num_channels": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder with an empty cache of the hub. Nothing may ask for an address of the network."""
    asked: list[object] = []

    def asks(*address: object, **options: object) -> None:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("socket.getaddrinfo", asks)
    yield tmp_path
    assert not asked


def written(folder: Path, configuration: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration))


def parameters(found: Look) -> int:
    return sum(layer.parameters for layer in found.layers)


def test_a_folder_is_the_model_of_its_configuration_and_fits_as_many_words_as_it_has_positions(folder):
    written(folder / "mine", GPT2)
    found = look("mine", 2, "p100", Asked(tokens=64))
    assert parameters(found) == 4 * PARAMETERS
    assert found.assumed == {"precision": "float32 parameters", "optimizer": "AdamW", "inputs": "32 tokens"}
    assert any(layer.path.startswith("transformer.h.1.mlp") for layer in found.layers)


def test_precision_images_and_the_kind_of_labels_are_the_configurations(folder):
    written(folder / "bert", BERT)
    written(folder / "vit", VIT)
    assert look("bert", 2, "p100").assumed["precision"] == "bfloat16 parameters"
    seen = look("vit", 2, "p100")
    assert seen.assumed["inputs"] == "64 x 64 images"
    patches = next(layer for layer in seen.layers if "projection" in layer.path)
    assert patches.parameters == 4 * (64 * 16 * 16 + 64)  # of one channel


def test_without_a_named_class_it_is_the_model_without_a_head(folder):
    written(folder / "mine", {**GPT2, "architectures": None})
    assert not any(layer.path.startswith("transformer.") for layer in look("mine", 2, "p100").layers)


def test_a_name_of_the_hub_is_one_whose_configuration_was_downloaded(folder):
    kept = folder / "hub" / "models--me--mine"
    written(kept / "snapshots" / "c0ffee", GPT2)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("c0ffee")
    assert parameters(look("me/mine", 2, "p100")) == 4 * PARAMETERS
    with pytest.raises(UserError, match=r"hf download me/yours config\.json"):
        look("me/yours", 2, "p100")


@pytest.mark.parametrize(("text", "says"), [
    (None, "the folder mine contains no config.json"), ("{", "mine/config.json: .*JSON"),
    ('{"model_type": "none"}', "mine/config.json: .*none"),
    ('{"model_type": "x", "auto_map": {"AutoConfig": "x.X"}}', "mine/config.json: .*"),
    ('{"model_type": "gpt2", "n_head": 5, "architectures": ["GPT2LMHeadModel"]}', "mine")])
def test_a_configuration_that_is_of_no_use_is_named_in_one_line(folder, capsys, text, says):
    (folder / "mine").mkdir()
    (folder / "mine" / "x.py").write_text("raise SystemExit('code beside a configuration is not run')")
    if text is not None:
        (folder / "mine" / "config.json").write_text(text)
    with pytest.raises(UserError, match=says) as error:
        look("mine", 2, "p100")
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_the_commands_take_a_folder(folder, capsys):
    written(folder / "mine", {**GPT2, "n_layer": 1})
    assert main(["fit", "torch:./mine:2", "--policies", "none", "--steps", "2", "--memory", "64MiB", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["needs"]["parameters"] == 4 * (PARAMETERS - 12 * 64 * 64 - 13 * 64)
    assert said["rows"][0]["largest_batch"] > 2
    assert main(["view", "torch:./mine:2", "--policy", "none", "--steps", "1", "-o", "page.html"]) == 0
    assert (folder / "page.html").is_file()
