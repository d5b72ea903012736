"""Networks of torchvision, timm and Hugging Face keep their bits under ``minidl.torch``, and their budgets."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

import minidl.torch  # noqa: E402
from bench import torch_bits  # noqa: E402
from bench.support.torch_programs import same  # noqa: E402
from bench.support.torch_zoo import ZOO, library_of  # noqa: E402

SLICE = (("auto", "recompute", "50%"), ("capuchin", "swap", "floor"))
WHOLE = [(policy, how, share) for policy in torch_bits.POLICIES for how in torch_bits.SECONDS_PER_BYTE
         for share in torch_bits.SHARES]


def wrong_cells(name, wanted):
    if library_of(name):
        pytest.importorskip(library_of(name), reason=f"{library_of(name)} is not installed: the extra peers has it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        return [cell for cell in torch_bits.cells(name, wanted) if not cell.right]


@pytest.mark.parametrize("name", ["lstm", "densenet", "timm efficientnet", "gpt2"])
def test_a_network_of_a_library_keeps_its_bits_within_its_budget(name):
    assert wrong_cells(name, SLICE) == []


@pytest.mark.full
@pytest.mark.parametrize("name", ZOO)
def test_every_network_keeps_its_bits_under_every_kind_of_plan_and_budget(name):
    assert wrong_cells(name, WHOLE) == []


def test_the_matrix_sees_a_bit_that_differs_and_a_budget_that_is_broken(monkeypatch):
    from minidl.torch.items import Handle

    tensor = Handle.tensor

    def flipped(handle):
        found = tensor(handle)
        return found * 1.001 if found.is_floating_point() else found

    monkeypatch.setattr(Handle, "tensor", flipped)
    cell, = torch_bits.cells("lstm", SLICE[1:])
    assert "parameters" in cell.bits and not cell.right
    monkeypatch.undo()
    monkeypatch.setattr(torch_bits, "manager",
                        lambda budget, policy, how: minidl.torch.managed(torch_bits.ENDLESS, policy=policy))
    cell, = torch_bits.cells("lstm", SLICE[1:])
    assert cell.bits == "same" and not cell.held


def test_the_table_of_the_matrix_goes_on_where_it_was_stopped(tmp_path, capsys):
    out = tmp_path / "bits.csv"
    words = ["--networks", "lstm", "--policies", "capuchin", "--out", str(out)]
    assert torch_bits.main(words) == 0
    whole = out.read_text().splitlines()
    assert len(whole) == 1 + 9 and "9 cells, 0 of them wrong" in capsys.readouterr().out
    out.write_text("\n".join(whole[:5]) + "\n")
    assert torch_bits.main(words) == 0
    assert out.read_text().splitlines()[:5] == whole[:5] and len(out.read_text().splitlines()) == 1 + 9
    out.write_text("\n".join([*whole[:5], whole[5].replace(",same,", ",losses,")]) + "\n")
    assert torch_bits.main(words) == 1


def test_equal_bits_are_compared_as_bits():
    nan = torch.tensor([float("nan"), 0.0])
    assert same([nan], [nan.clone()])
    assert not same([torch.tensor([0.0])], [torch.tensor([-0.0])])
