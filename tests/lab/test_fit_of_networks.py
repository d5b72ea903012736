"""``minidl fit`` of minidl's own networks: adapters, tokens, precision."""

import json

import pytest

import minidl
from minidl import device as devices
from minidl.__main__ import main
from minidl.errors import OutOfMemory
from minidl.lab.training_step import Setting, training_step


def needs(capsys, *flags):
    assert main(["fit", "bert-tiny:64", "--policies", "none", "--memory", "1GiB", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)["needs"]


def test_adapters_alone_need_gradients_and_states_and_tokens_and_precision_decide_what_activations_need(capsys):
    whole, adapted = needs(capsys), needs(capsys, "--lora", "4")
    # Rank times the sum of both sides: of 4 squares of 128 and two of 128 x 512 in each of 2 layers, of pooler and
    # transform, and of the head of 128 x 2.
    adapters = 4 * (2 * (4 * 256 + 2 * 640) + 2 * 256 + 130)
    assert adapted["gradients"] == 4 * adapters and whole["gradients"] == 4 * 4_433_468
    assert whole["state"] == 2 * 4 * 4_433_468
    assert adapted["state"] == 2 * 4 * adapters + 4 * 4_433_468  # frozen weights count, too
    assert needs(capsys, "--tokens", "32")["activations"] < 0.7 * whole["activations"]
    assert needs(capsys, "--precision", "bf16")["activations"] < 0.9 * whole["activations"]


@pytest.mark.parametrize(("flags", "message"), [
    (["torch:package.module:function:8", "--lora", "4"], "--lora is for networks of minidl"),
    (["lenet:8", "--tokens", "4"], "lenet reads images, so it takes no number of tokens"),
    (["torch:package.module:function:8", "--ranks", "2"], "--ranks is for networks of minidl"),
    (["lenet:8", "--ranks", "2", "--noise", "0.1"], "--ranks and --noise do not go together"),
])
def test_flags_that_a_program_cannot_have_are_refused(capsys, flags, message):
    assert main(["fit", *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_optimizer_of_the_step_is_a_flag_and_decides_the_states(capsys):
    """4 bytes for each of 4,433,468 parameters: none, one or two states of each."""
    assert [needs(capsys, "--optimizer", name)["state"] for name in ("sgd", "momentum", "adam", "adamw")] == [
        4 * 4_433_468 * states for states in (0, 1, 2, 2)]


@pytest.mark.parametrize(("flags", "assumed"), [
    (["lenet:8"], "assumed: precision fp32, images 1x32x32, optimizer momentum"),
    (["bert-tiny:8", "--tokens", "64", "--precision", "bf16"], "assumed: precision bf16, tokens 64, optimizer adamw")])
def test_what_is_assumed_of_a_network_stands_above_the_table(capsys, flags, assumed):
    assert main(["fit", *flags, "--policies", "none"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == assumed and told[3].split()[:4] == ["device", "memory", "host", "policy"]


def test_a_sentence_answers_whether_the_batch_fits(capsys):
    """Lenet at 2,048 takes some 90 MiB; in 1 GiB it fits, in 80 MiB under a policy, in 1 MiB never."""
    def told(memory, policies="none,passive"):
        assert main(["fit", "lenet:2048", "--policies", policies, "--memory", memory]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert told("1GiB").startswith("batch 2048 fits p100 with nothing moved: ")
    assert told("1GiB", "passive").startswith("batch 2048 fits p100 with nothing moved: ")
    some = told("80MiB")
    assert "does not fit p100 with nothing moved, " in some and "it fits under passive, up to " in some
    assert told("1MiB").endswith("nor does it fit under any policy of this table (none, passive)")


@pytest.mark.parametrize("flags", [[], ["--precision", "bf16", "--optimizer", "adam"]], ids=["usual", "others"])
def test_on_ranks_the_largest_batch_of_each_is_that_of_a_training(capsys, flags):
    """Each of 4 devices has 16 MiB, and as much host memory."""
    assert main(["fit", "lenet:512", "--ranks", "4", "--policies", "passive", "--memory", "16MiB", "--host",
                 "16MiB", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    precision, optimizer = ("bf16", "adam") if flags else ("fp32", None)

    def trains(batch):
        device = devices.create("sim:p100", precision=precision, sharing=4)
        with minidl.Runtime(device, policy="passive", memory_budget="16MiB", host_memory="16MiB", precision=precision,
                            ranks=minidl.ranks.modelled(4)) as runtime:
            step = training_step("lenet", 4 * batch, setting=Setting(precision=precision, optimizer=optimizer))
            for _ in range(4):
                before = runtime.stats()
                with runtime.iteration():
                    step()
            return runtime.stats().since(before).seconds

    largest = row["largest_batch"]
    assert found["ranks"] == 4 and trains(largest) == pytest.approx(largest / row["examples_per_second"], rel=1e-6)
    with pytest.raises(OutOfMemory):
        trains(largest + 1)


def test_each_rank_has_its_share_of_the_hosts_memory(capsys):
    def host(*flags):
        assert main(["fit", "lenet:8", "--policies", "none", "--steps", "2", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)["rows"][0]["host_bytes"]

    assert 4 * host("--ranks", "4") == host()
