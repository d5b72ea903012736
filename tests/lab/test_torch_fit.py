"""minidl fit of PyTorch programs as people write them: precision, GPUs, checkpoints, adapters; rows, flags, JSON."""

import json

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from minidl.__main__ import main  # noqa: E402
from minidl.lab import changes as advised  # noqa: E402
from minidl.lab.cell import Machine  # noqa: E402
from minidl.lab.changes import blocks_of, changes  # noqa: E402
from minidl.lab.fitting import between, peak  # noqa: E402
from minidl.lab.torch_capture import look  # noqa: E402
from minidl.lab.torch_programs import Asked  # noqa: E402
from minidl.lab.torch_seen import Layer  # noqa: E402

WIDE, DEEP = 32, 2  # of the network: 4,256 parameters


class Net(nn.Module):
    """Two hidden layers of 32 and one that reads the image's channels: 3*32+32 + 2*(32*32+32) + 32*10+10."""

    def __init__(self, saves=False):
        super().__init__()
        self.first, self.last, self.saves = nn.Linear(3, WIDE), nn.Linear(WIDE, 10), saves
        self.hidden = nn.ModuleList(nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU(), nn.GELU()) for _ in range(DEEP))

    def forward(self, images):
        x = self.first(images.mean((2, 3)))
        for layer in self.hidden:
            x = checkpoint(layer, x, use_reentrant=False) if self.saves else layer(x)
        return self.last(x)


PARAMETERS = 3 * WIDE + WIDE + DEEP * (WIDE * WIDE + WIDE) + WIDE * 10 + 10


def net():
    return Net()


def half():
    return Net().bfloat16()


def on_gpu():
    return Net().to("cuda").cuda()


def stepping(network, loss_of, batch, trained=None):
    optimizer = torch.optim.AdamW(trained or network.parameters())
    images, labels = torch.randn(batch, 3, 32, 32, device="cuda"), torch.zeros(batch, dtype=torch.long).cuda()

    def step():
        optimizer.zero_grad()
        loss_of(network, images, labels).backward()
        optimizer.step()

    return step


def loss(network, images, labels):
    return nn.functional.cross_entropy(network(images), labels)


def cast(network, images, labels):
    with torch.autocast("cuda", torch.float16):
        return loss(network, images, labels)


def plain(batch):
    return stepping(Net().to(torch.device("cuda")), loss, batch)


def saving(batch):
    return stepping(Net(saves=True), loss, batch)


def half_cast(batch):
    return stepping(Net().cuda(), cast, batch)


def scaled(batch):
    scaler, network = torch.amp.GradScaler("cuda"), Net().cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    images, labels = torch.randn(batch, 3, 32, 32, device="cuda:0"), torch.zeros(batch, dtype=torch.long, device="cuda")

    def step():
        for _ in range(2):
            scaler.scale(cast(network, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def adapted(batch):
    network = Net().requires_grad_(False)
    network.last = nn.Sequential(network.last, nn.Linear(10, 10, bias=False))
    return stepping(network, loss, batch, list(network.last[1].parameters()))


def looked(program, batch=64, **asked):
    return look(f"{__name__}:{program}", batch, "p100", Asked(**asked))


def totals(found):
    return tuple(sum(getattr(layer, kind) for layer in found.layers) for kind in ("parameters", "gradients", "states"))


@pytest.mark.parametrize(("program", "size", "trained", "states"), [
    ("net", 4, PARAMETERS, 1), ("half", 2, PARAMETERS, 1), ("on_gpu", 4, PARAMETERS, 1), ("plain", 4, PARAMETERS, 2),
    ("saving", 4, PARAMETERS, 2), ("half_cast", 4, PARAMETERS, 2), ("scaled", 4, PARAMETERS, 0)])
def test_parameters_gradients_and_states_are_counted_without_being_named(program, size, trained, states):
    """SGD with momentum has a state, AdamW two and a counter of 4 bytes for each of the 8 parameters."""
    counters = 8 * 4 if states == 2 else 0
    assert totals(looked(program)) == (size * PARAMETERS, size * trained, states * size * trained + counters)


def test_what_is_frozen_has_no_gradients_and_no_states():
    found = {layer.path: layer for layer in looked("adapted").layers}
    assert (found["last.1"].parameters, found["last.1"].gradients, found["last.1"].states) == (400, 400, 804)
    assert {layer.gradients + layer.states for path, layer in found.items() if path != "last.1"} == {0}


@pytest.mark.parametrize("program", ["half_cast", "scaled", "saving", "adapted"])
def test_the_same_calls_are_made_at_any_batch(program):
    one, two, four = (looked(program, batch).trace for batch in (64, 128, 256))
    line = between(one, two, 3.0)
    assert [call.op for call in line.calls] == [call.op for call in four.calls]
    assert {i: t.nbytes for i, t in line.tensors.items()} == {i: t.nbytes for i, t in four.tensors.items()}


def test_results_of_layers_are_theirs_and_a_checkpoint_keeps_less():
    plainly, saved = looked("plain", 4096), looked("saving", 4096)
    kept = {layer.path: layer.activations for layer in plainly.layers}
    assert kept["hidden.0.0"] == kept["hidden.0.1"] == 4096 * WIDE * 4
    assert sum(layer.activations for layer in saved.layers) < sum(kept.values())


def test_precision_is_asked_for_and_told():
    assert looked("net").assumed == {
        "precision": "float32 parameters", "optimizer": "SGD", "inputs": "224 x 224 images"}
    cast = looked("net", precision="bf16", image=32)
    assert cast.assumed["precision"] == "float32 parameters, autocast to bfloat16"
    assert cast.assumed["inputs"] == "32 x 32 images"
    assert looked("half_cast").assumed["precision"] == "float32 parameters, autocast to float16"


def test_blocks_are_checkpointed_as_if_the_program_did_it():
    """Only the recorded step is compared: the parameters are the same."""
    own, asked = looked("saving"), looked("plain", checkpointed=("hidden.0", "hidden.1"))
    assert peak(asked.trace) == peak(own.trace) < peak(looked("plain").trace)
    assert len(asked.trace.calls) == len(own.trace.calls)


def test_changes_are_told_with_what_they_save_and_cost(monkeypatch):
    """Most of the memory is the images, so no plan needs as little as 60% of it."""
    monkeypatch.setattr(advised, "SHARES", (0.6, 0.97))
    machine, batch, memory = Machine("p100"), 512, 1 << 24
    now = looked("plain", batch)
    first, *others = changes("test_torch_fit:plain", batch, machine, memory, Asked(), now)
    found = {each.text.split()[0]: each for each in others}
    assert list(found) == sorted(found, key=lambda n: (found[n].seconds - first.seconds)
                                 / (first.peak_bytes - found[n].peak_bytes))
    assert found["torch.autocast"].peak_bytes == peak(looked("plain", batch, precision="bf16").trace)
    saving = found["torch.utils.checkpoint"]
    assert saving.text == "torch.utils.checkpoint of hidden.0, hidden.1"
    assert saving.peak_bytes == peak(looked("saving", batch).trace) and saving.seconds > first.seconds
    # The gradients of the first half are there while the second runs.
    assert found["accumulate"].peak_bytes == peak(looked("plain", batch // 2).trace) + 4 * PARAMETERS
    assert found["a"].peak_bytes == int(0.97 * first.peak_bytes) and found["a"].seconds >= first.seconds
    for each in (first, *others):  # by the line through this batch
        assert each.batch > batch
        if each is first or each.text.startswith("torch"):
            other = {"as": {}, "torch.autocast": {"precision": "bf16"}, "torch.utils.checkpoint": {
                "checkpointed": ("hidden.0", "hidden.1")}}[each.text.split()[0]]
            assert peak(looked("plain", each.batch, **other).trace) == pytest.approx(memory, rel=0.05)


def test_states_on_the_host_cost_two_copies():
    """At a batch of 2 they are most of the memory: 8 bytes for each parameter, and steps."""
    now, link = looked("plain", 2), Machine("p100").described()
    first, *others = changes("test_torch_fit:plain", 2, Machine("p100"), 1 << 24, Asked(), now)
    away, = [each for each in others if "on the host" in each.text]
    states = sum(layer.states for layer in now.layers)
    assert first.peak_bytes - away.peak_bytes == states > 8 * PARAMETERS
    assert away.seconds - first.seconds == pytest.approx(
        states / link.link_out_bandwidth + states / link.link_in_bandwidth)


def test_blocks_are_the_outermost_numbered_modules_that_hold_much():
    rows = [("stem.conv", 90), ("layer1.0.conv", 1), ("layer1.0.0.bn", 1), ("layer1.1.conv", 1),
            ("h.11.mlp.2.fc", 30), ("features.3", 50)]
    assert blocks_of([Layer(path, 0, 0, 0, held) for path, held in rows], 100) == ("layer1.0", "h.11")


def test_the_command_advises_on_programs_of_pytorch_alone(capsys):
    flags = ["--devices", "p100", "--policies", "none", "--memory", "16MiB", "--advice"]
    assert main(["fit", "torch:test_torch_fit:plain:64", *flags]) == 0
    out = capsys.readouterr().out
    assert "change, at batch 64 on p100" in out and "as it is" in out and "batch in 16.0 MiB" in out
    assert main(["fit", "torch:test_torch_fit:plain:64", *flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["changes"]
    assert told[0]["text"] == "as it is" and len(told) > 2
    assert main(["fit", "lenet:64", "--devices", "p100,rtx3090", "--policies", "none", "--memory", "16MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "simulated speeds, beside published ones: p100 within 3%, rtx3090 not compared with any"
    assert main(["fit", "lenet:64", *flags]) == 2
    assert "--advice takes a PyTorch program" in capsys.readouterr().err


def test_the_command_prints_assumptions_layers_and_json(capsys):
    words = ["fit", f"torch:{__name__}:net:64", "--policies", "none", "--steps", "2", "--memory", "64MiB",
             "--image-size", "32"]
    assert main([*words, "--layers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "assumed: precision float32 parameters, optimizer SGD, inputs 32 x 32 images"
    assert lines[1] == "simulated speeds, beside published ones: p100 within 3%"
    assert any(line.split()[:2] == ["hidden.0.0", "4.1"] for line in lines) and "64.0 MiB" in lines[-2]
    assert lines[-1].startswith("batch 64 fits p100 with nothing moved: ")
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["needs"]["parameters"] == said["needs"]["gradients"] == 4 * PARAMETERS
    row, = said["rows"]
    assert row["memory_bytes"] == 64 << 20 and row["largest_batch"] > 1000 and row["status"] == "ok"
    assert str(row["largest_batch"]) in lines[-2]


def grey():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def flat():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))


def test_images_have_the_channels_of_the_first_convolution_and_a_network_that_does_not_take_them_is_told_so(capsys):
    words = ["--policies", "none", "--memory", "64MiB", "--steps", "2"]
    assert main(["fit", f"torch:{__name__}:grey:4", *words, "--image-size", "8"]) == 0
    assert main(["fit", f"torch:{__name__}:flat:4", *words, "--image-size", "8", "--optimizer", "adam"]) == 0
    assert "optimizer Adam, inputs 8 x 8 images" in capsys.readouterr().out
    assert main(["fit", f"torch:{__name__}:flat:4", *words]) == 2
    assert "does not take the 3 x 224 x 224 images that it was given" in (said := capsys.readouterr().err)
    assert "--image-size changes their side" in said and "unforeseen" not in said
