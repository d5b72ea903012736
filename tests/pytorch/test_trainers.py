"""Trainings by the trainers of other libraries keep their bits with the callbacks of ``minidl.torch``."""

import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import Forced, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.errors import UserError  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402

BUDGET = "1GiB"


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        yield


def forced(make, how="swap"):
    """A callback, or a manager, in whose steps all that may leave does so."""
    made = make(BUDGET, policy=Forced(how))
    memory = getattr(made, "memory", made)
    getattr(memory, "planner", memory).counts_recording = False
    return made


def computed(network):
    return [*(p.detach().clone() for p in network.parameters()), torch.get_rng_state()]


def by_transformers(tmp_path, callbacks, *, fails=False):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: the extra peers has it")
    pytest.importorskip("accelerate", reason="accelerate, which transformers' Trainer takes, is not installed")
    torch.manual_seed(0)
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=100, bos_token_id=0, eos_token_id=0))
    words = torch.randint(0, 100, (48, 32))
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, max_steps=5,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_strategy="no")
    trainer = transformers.Trainer(network, arguments, train_dataset=[{"input_ids": w, "labels": w} for w in words],
                                   callbacks=callbacks)
    if fails:
        network.transformer.wpe = None
    trainer.train()
    return computed(network)


@pytest.mark.parametrize("how", ["swap", "drop"])
def test_a_training_by_transformers_is_managed_from_its_beginning_to_its_end(tmp_path, how):
    expected = by_transformers(tmp_path, [])
    callback = forced(minidl.torch.ForTransformers, how)
    assert same(by_transformers(tmp_path, [callback]), expected)
    report = callback.memory.report()
    assert report.steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 3} and report.out_bytes > 0
    assert bool(report.replayed_calls) == (how == "drop")


def test_after_an_error_the_next_training_by_transformers_begins_anew(tmp_path):
    expected = by_transformers(tmp_path, [])
    callback = forced(minidl.torch.ForTransformers)
    with pytest.raises(TypeError):
        by_transformers(tmp_path, [callback], fails=True)
    assert same(by_transformers(tmp_path, [callback]), expected)


def by_lightning(callbacks, *, fails=False):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: pip install lightning")
    torch.manual_seed(0)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Dropout(0.1),
                                               torch.nn.Linear(96, 48), torch.nn.Tanh())

        def training_step(self, batch, number):
            if fails and number == 3:
                raise KeyError("in the midst")
            return self.network(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    module = Module()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(320, 48)), 64)
    lightning.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, callbacks=callbacks,
                      enable_progress_bar=False, enable_model_summary=False).fit(module, loader)
    return computed(module)


@pytest.mark.parametrize("how", ["swap", "drop"])
def test_a_training_by_lightning_is_managed_from_its_beginning_to_its_end(how):
    expected = by_lightning([])
    callback = forced(minidl.torch.ForLightning, how)
    assert same(by_lightning([callback]), expected)
    report = callback.memory.report()
    assert report.steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 3} and report.out_bytes > 0
    assert bool(report.replayed_calls) == (how == "drop")  # its optimizer computes the loss itself


def test_a_training_by_lightning_that_ends_with_an_error_is_managed_no_longer():
    by_lightning([])  # skips the test if there is no lightning
    callback = forced(minidl.torch.ForLightning)
    with pytest.raises(KeyError, match="in the midst"):
        by_lightning([callback], fails=True)
    callback.memory.start()  # it is off
    callback.memory.stop()


def by_accelerate(memory=None):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Dropout(0.1),
                                  torch.nn.Linear(96, 48))
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 48)), 64)
    model, optimizer, loader = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), 1e-2), loader)

    def train():
        for batch, in loader:
            with accelerator.accumulate(model):
                loss = model(batch).pow(2).mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    if memory is None:
        train()
    else:
        with memory:
            train()
    return computed(network)


@pytest.mark.parametrize("how", ["swap", "drop"])
def test_a_loop_of_accelerate_keeps_its_bits(how):
    expected = by_accelerate()
    memory = forced(minidl.torch.managed, how)
    assert same(by_accelerate(memory), expected)
    report = memory.report()
    assert report.steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 3} and report.out_bytes > 0


@pytest.mark.parametrize(("make", "library"), [("ForTransformers", "transformers"), ("ForLightning", "lightning")])
def test_a_callback_without_its_library_says_what_it_takes(make, library, monkeypatch):
    for module in [*sys.modules]:
        if module.split(".")[0] == library:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=f"pip install {library}"):
        getattr(minidl.torch, make)(BUDGET)
