"""minidl.watch: a step's memory in a notebook, as the recorder sees it, under every kind of name."""

import html

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.view.recorded import read_page
from minidl.view.recording import TensorKind


@pytest.fixture
def training():
    """A runtime, a network of two layers, and its step, which returns the loss; two steps have run."""
    with Runtime("cpu:virtual", policy="passive", memory_budget="1MiB") as runtime:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer, losses = SGD(model.parameters(), lr=0.1, momentum=0.9), []

        def step():
            with runtime.iteration():
                optimizer.zero_grad()
                loss = cross_entropy(model(runtime.tensor(np.ones((32, 8), np.float32))),
                                     runtime.tensor(np.zeros(32, np.int64)))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                return losses[-1]

        step(), step()
        yield runtime, model, step, losses


def test_the_step_runs_once_and_its_bytes_add_up(training):
    runtime, model, step, losses = training
    watched = minidl.watch(step, model)
    watched.recording.check()
    assert len(losses) == 3 and watched.result == losses[2] < losses[1] < losses[0] and step() < watched.result
    assert repr(watched).startswith("WatchedStep(") and "of 1.0 MiB)" in repr(watched)
    names = {subject.name for subject in watched.recording.subjects if subject.kind is TensorKind.PARAMETER}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_without_a_model_operations_name_the_tensors(training):
    runtime, model, step, losses = training
    assert "relu" in {subject.name for subject in minidl.watch(step).recording.subjects}


def test_a_notebook_shows_the_page_that_is_saved(training, tmp_path):
    runtime, model, step, losses = training
    watched = minidl.watch(step, model, title="mine & yours")
    watched.save(str(tmp_path / "page.html"))
    packed, = read_page(str(tmp_path / "page.html"))
    assert packed["title"] == "mine & yours"
    shown = watched._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.count('"') == 4  # the page's own are escaped
    assert html.unescape(shown.split('"')[1]) == (tmp_path / "page.html").read_text()


def test_there_is_nothing_to_watch_without_a_runtime():
    with pytest.raises(minidl.UserError, match="no runtime is active"):
        minidl.watch(lambda: None)
