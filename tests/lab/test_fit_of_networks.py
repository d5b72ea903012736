"""``minidl fit`` of minidl's own networks: adapters, tokens, precision."""

import json

import pytest

from minidl.__main__ import main


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
])
def test_flags_that_a_program_cannot_have_are_refused(capsys, flags, message):
    assert main(["fit", *flags]) == 2
    assert message in capsys.readouterr().err
