"""--host-update: what is told, what a resumed run must have, and when ``auto`` keeps states on the host."""

from dataclasses import replace

import pytest

import train
from minidl.checkpoint.safetensors import read_arrays
from minidl.device.profiles import get, to_json

ON_DIGITS = ["--model", "lenet", "--data", "digits", "--batch", "64", "--device", "cpu:virtual", "--optimizer", "adam",
             "--memory-budget", "8MiB", "--host-memory", "32MiB", "--policy", "passive"]
TOLD = "the optimizer's states are in host memory, and are updated there"


def test_a_run_with_states_on_the_host_goes_on_with_the_same_bits(tmp_path, capsys):
    weights = {}
    for choice in ("never", "always"):
        run, file = str(tmp_path / choice), str(tmp_path / f"{choice}.safetensors")
        flags = [*ON_DIGITS, "--host-update", choice, "--checkpoint-every", "2", "--run-dir", run]
        assert train.main([*flags, "--steps", "2"]) == 0
        assert (TOLD in capsys.readouterr().out) == (choice == "always")
        assert train.main(["--resume", run, "--steps", "4", "--save-weights", file]) == 0
        weights[choice] = read_arrays(file)
    assert all((weights["never"][name] == weights["always"][name]).all() for name in weights["always"])
    assert train.main(["--resume", str(tmp_path / "always"), "--host-update", "never", "--steps", "6"]) == 2
    assert "--host-update always, not no --host-update" in capsys.readouterr().err


@pytest.mark.default(chosen=[True])
@pytest.mark.parametrize(("link", "host", "chosen"), [(1e8, 1e12, True), (1e10, 1e9, False)])
def test_auto_keeps_states_on_the_host_where_the_link_is_slow_and_the_host_is_not(tmp_path, capsys, link, host, chosen):
    profile = tmp_path / "gpu.json"
    profile.write_text(to_json(replace(get("p100"), link_out_bandwidth=link, link_in_bandwidth=link,
                                       host_bandwidth=host)))
    flags = ["--model", "vgg11", "--image-size", "32", "--optimizer", "adam", "--batch", "4", "--steps", "3",
             "--device", f"sim:{profile}", "--host-update", "auto", "--memory-budget"]
    assert train.main([*flags, "60%"]) == 0
    assert (TOLD in capsys.readouterr().out) == chosen
    assert train.main([*flags, "100%"]) == 0  # nothing has to leave
    assert TOLD not in capsys.readouterr().out
