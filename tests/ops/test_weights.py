"""Weights from files: other names for the same tensors, files of other formats, and what is refused."""

import io
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minidl import Runtime
from minidl.cli.convert import main as convert_main
from minidl.errors import UserError
from minidl.models import convert, create, weights
from minidl.models.bert import BertConfig, BertForPreTraining
from minidl.models.gpt import GPT, GPTConfig
from train import main

GPT_CONFIG = GPTConfig(2, 8, 2, vocab_size=11, n_positions=6)
BERT_CONFIG = BertConfig(1, 8, 2, vocab_size=11, max_position_embeddings=6)


def arrays(names, value=1.0):
    return {name: np.full((2,), value + i, np.float32) for i, name in enumerate(names)}


def names_of(model):
    return [name for name, _ in (*model.named_parameters(), *model.named_buffers())]


# Names --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("written", "ours"), [
    ("layer1.0.conv1.weight", "layer1.0.conv1.weight"),
    ("module.layer1.0.conv1.weight", "layer1.0.conv1.weight"),
    ("model.layer1.0.conv1.weight", "layer1.0.conv1.weight"),
    ("h.3.ln_1.bias", "transformer.h.3.ln_1.bias"),
    ("module.h.3.ln_1.bias", "transformer.h.3.ln_1.bias"),
    ("pooler.dense.bias", "bert.pooler.dense.bias"),
    ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
    ("embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"),
    ("features.denseblock1.denselayer2.norm.1.weight", "features.denseblock1.denselayer2.norm1.weight"),
    ("features.denseblock1.denselayer2.conv.2.weight", "features.denseblock1.denselayer2.conv2.weight"),
])
def test_a_name_that_a_file_has_finds_the_one_of_the_network(written, ours):
    assert list(weights.fit(arrays([written]), ["another", ours])) == [ours]


def test_a_name_is_changed_only_where_that_leads_to_one_of_the_network():
    for name in ("model.fc.weight", "h.3.ln_1.bias", "x.LayerNorm.gamma", "lm_head.weight"):
        assert list(weights.fit(arrays([name]), ["fc.bias"])) == [name]
        assert list(weights.fit(arrays([name]), [name])) == [name]


@pytest.mark.parametrize("name", ["transformer.h.0.attn.bias", "h.0.attn.masked_bias", "embeddings.position_ids",
                                  "bert.embeddings.position_ids", "AuxLogits.fc.weight", "bn1.num_batches_tracked"])
def test_what_is_no_parameter_of_the_network_is_left_out_unless_the_network_has_it(name):
    assert weights.fit(arrays([name]), ["fc.weight"]) == {}
    assert list(weights.fit(arrays([name]), [name])) == [name]


@pytest.mark.parametrize(("second", "first"), weights.TIED)
def test_a_tied_parameter_may_be_written_once_or_twice_but_with_one_value(second, first):
    one, other = arrays([first])[first], arrays([first], 5.0)[first]
    for written in ({first: one}, {second: one}, {first: one, second: one}, {second: one, first: one}):
        fitted = weights.fit(written, [first])
        assert list(fitted) == [first] and fitted[first] is one
    with pytest.raises(UserError, match=f"{second} differs from {first}"):
        weights.fit({first: one, second: other}, [first])


@pytest.mark.parametrize(("make", "strip", "more"), [
    (lambda: GPT(GPT_CONFIG), "transformer.", {"h.0.attn.bias": (1, 1, 6, 6), "lm_head.weight": None}),
    (lambda: BertForPreTraining(BERT_CONFIG), "", {"bert.embeddings.position_ids": (1, 6),
                                                   "cls.predictions.decoder.weight": None}),
], ids=["gpt2", "bert"])
def test_a_file_as_it_lies_on_the_hub_is_loaded(tmp_path, make, strip, more):
    path = str(tmp_path / "model.safetensors")
    with Runtime("cpu:virtual", memory_budget="4MiB"):
        model = make()
        values = model.state_dict()
        file = {name.removeprefix(strip).replace("LayerNorm.weight", "LayerNorm.gamma"): value
                for name, value in values.items()}
        for name, shape in more.items():
            file[name] = values[weights.tied_to(name, values)] if shape is None else np.zeros(shape, np.float32)
        save_file(file, path)
        other = make()
        assert any((other.state_dict()[name] != value).any() for name, value in values.items())
        weights.load(other, path)
        for name, value in other.state_dict().items():
            np.testing.assert_array_equal(value, values[name])


# Errors -------------------------------------------------------------------------------------------------------------
def test_what_does_not_fit_is_one_error_with_the_file_and_the_names(tmp_path):
    path = str(tmp_path / "lenet.safetensors")
    with Runtime("cpu:virtual", memory_budget="4MiB"):
        model = create("lenet")
        state = model.state_dict()
        save_file({**state, "output.bias": np.zeros(3, np.float32)}, path)
        with pytest.raises(UserError, match=r"lenet.safetensors: the state .* output.bias is \[3\] and must be \[10\]"):
            weights.load(model, path)
        save_file({name: value for name, value in state.items() if name != "C1.bias"} | arrays(["fc.bias"]), path)
        with pytest.raises(UserError, match="1 missing: C1.bias; 1 unexpected: fc.bias"):
            weights.load(model, path)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.safetensors", None, "a.safetensors: cannot be read: No such file"),
    ("a.safetensors", b"", "a.safetensors: not a readable safetensors file"),
    ("a.safetensors", b"\xff" * 64, "a.safetensors: not a readable safetensors file"),
    ("a.pth", b"", "a.pth: weights are read from .safetensors files; minidl convert"),
])
def test_a_file_that_holds_no_weights_is_one_error(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with Runtime("cpu:virtual", memory_budget="4MiB"), pytest.raises(UserError, match=message):
        weights.load(create("lenet"), str(tmp_path / name))


# Other formats ------------------------------------------------------------------------------------------------------
def test_an_archive_of_numpy_is_converted(tmp_path, capsys):
    written = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.arange(3)}
    np.savez(tmp_path / "w.npz", **written)
    source, target = str(tmp_path / "w.npz"), str(tmp_path / "w.safetensors")
    assert convert_main([source, target]) == 0
    assert capsys.readouterr().out == f"{target}: 2 arrays\n"
    for name, value in load_file(target).items():
        np.testing.assert_array_equal(value, written[name])


def archive(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return bytearray(file.getvalue())


def bare():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def with_other(data, old, new):
    """The archive with other bytes in all of its tables."""
    assert bytes(old) in data
    return data.replace(old, new)


def encrypted(data):
    """The archive with the mark of encryption in its tables."""
    for sign, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(sign) + flags] |= 1
    return data


@pytest.mark.parametrize(("content", "message"), [
    pytest.param(b"", "not a readable .npz file", id="nothing"),
    pytest.param(archive(), "it holds no named weights", id="no arrays"),
    pytest.param(archive(a=np.zeros(2, np.complex64)), "a is complex64; a safetensors file can hold float64",
                 id="complex"),
    pytest.param(archive(a=np.array(["x"])), "a is str32; a safetensors file can hold float64", id="text"),
    pytest.param(archive(a=np.array([{}], object)), "not a readable .npz file: Object arrays cannot", id="objects"),
    pytest.param(archive(a=np.arange(99))[:-40], "not a readable .npz file: not an archive", id="cut off"),
    pytest.param(with_other(archive(a=np.arange(9)), np.int64(5).tobytes(), np.int64(7).tobytes()), "Bad CRC-32",
                 id="a wrong sum"),
    pytest.param(encrypted(archive(a=np.arange(9))), "is encrypted", id="encrypted"),
    pytest.param(with_other(archive(a=np.arange(9)), b"(9,)", b"(7e9"), "not a readable .npz file", id="a wrong shape"),
    pytest.param(bare(), "a single array, not named arrays as in .npz", id="a bare array"),
    pytest.param(b"\x80\x04N.", "not a readable .npz file", id="a pickle"),
])
def test_an_archive_that_cannot_be_converted_is_one_line_and_no_file(tmp_path, capsys, content, message):
    (tmp_path / "w.npz").write_bytes(content)
    assert convert_main([str(tmp_path / "w.npz"), str(tmp_path / "w.safetensors")]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["w.npz"]


@pytest.mark.parametrize("wrapper", ["", "state_dict", "model"])
def test_a_file_of_pytorch_is_converted_whatever_it_is_wrapped_in(tmp_path, wrapper):
    torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    shared = torch.arange(6.0).reshape(2, 3)
    state = {"a.weight": shared, "tied.weight": shared, "row": shared[1], "t": shared.T,
             "half": torch.ones(2, dtype=torch.bfloat16), "count": torch.tensor(7)}
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "w.pth")
    assert convert.convert(str(tmp_path / "w.pth"), str(tmp_path / "w.safetensors")) == 6
    found = load_file(tmp_path / "w.safetensors")
    for name, tensor in state.items():
        np.testing.assert_array_equal(found[name], tensor.float().numpy())
    assert found["half"].dtype == np.float32 and found["count"].dtype == np.int64


@pytest.mark.parametrize(("source", "content", "target", "message"), [
    ("w.pth", b"no", "w.bin", "the result must end in .safetensors"),
    ("w.onnx", b"no", "w.safetensors", "known formats are .pth, .pt, .bin, .ckpt and .npz"),
    ("w.npz", None, "w.safetensors", "w.npz: No such file"),
    ("w.npz", b"no", "w.safetensors", "w.npz: not a readable .npz file"),
    ("w.pth", b"no", "w.safetensors", "w.pth: its weights cannot be read without running code"),
])
def test_what_cannot_be_converted_is_one_error_and_exit_code_2(tmp_path, capsys, source, content, target, message):
    if source.endswith(".pth"):
        pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")
    if content is not None:
        (tmp_path / source).write_bytes(content)
    assert convert_main([str(tmp_path / source), str(tmp_path / target)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / target).exists()


def test_without_pytorch_a_file_of_it_is_refused_with_what_to_install(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"")
    program = ("import sys; sys.modules['torch'] = None; from minidl.cli.convert import main; "
               f"sys.exit(main([{str(tmp_path / 'w.pth')!r}, {str(tmp_path / 'w.safetensors')!r}]))")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "PyTorch is needed to read it: pip install" in result.stderr


# The command line ---------------------------------------------------------------------------------------------------
def test_train_starts_from_the_weights_it_is_given(tmp_path, capsys):
    saved, again = str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")
    common = ["--model", "lenet", "--device", "cpu:virtual", "--memory-budget", "64MiB", "--steps", "1", "--batch", "2"]
    assert main([*common, "--save-weights", saved, "--seed", "1"]) == 0
    assert main([*common, "--save-weights", again, "--seed", "2", "--lr", "0", "--weights", saved]) == 0
    for name, value in load_file(saved).items():
        np.testing.assert_array_equal(load_file(again)[name], value)
    assert main(["--model", "lenet", "--device", "sim:p100", "--weights", saved]) == 2
    assert "--weights: sim:p100 computes no values to start from" in capsys.readouterr().err


def test_train_lists_the_models(capsys):
    assert main(["--list-models"]) == 0
    assert "\n  resnet50          3x224x224 images, 1000 classes\n" in capsys.readouterr().out
