"""Graphs of cuDNN over a stand-in for its frontend: which plans are listed and built, how one is run, what fails."""

import importlib
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import stub_cudnn

from minidl.device.cuda.seam import Convolution, PlanInfo
from minidl.errors import DeviceError

CONV = Convolution("conv2d", "float32", (2, 3, 5, 4), (4, 3, 3, 3), (2, 4, 5, 4), (1, 1), (1, 1), tf32=True)
OURS = ("minidl.device.cuda.cudnn_graphs", "minidl.device.cuda.libraries")


@pytest.fixture
def graphs(monkeypatch, tmp_path):
    """The module over the stand-in; nothing of it stays."""
    libraries = ModuleType("minidl.device.cuda.libraries")
    libraries.preload = lambda: None
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "cudnn", stub_cudnn)
    monkeypatch.setitem(sys.modules, OURS[1], libraries)
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(stub_cudnn, "built", [])
    module = importlib.import_module(OURS[0])
    yield module.CudnnGraphs()
    monkeypatch.delitem(sys.modules, OURS[0])


def test_engines_that_are_compiled_when_they_are_built_are_not_listed_and_never_built(graphs):
    assert graphs.plans(CONV) == [PlanInfo("cores", 200, True, True), PlanInfo("unordered", 0, False, False),
                                  PlanInfo("plain", 300, True, False), PlanInfo("broken", 0, True, False)]
    assert [p.name for p in graphs.plans(replace(CONV, tf32=False))] == ["unordered", "plain", "broken"]
    assert "runtime" not in stub_cudnn.built


def test_a_plan_is_run_by_its_name_on_its_stream_and_built_once_without_the_others(graphs, tmp_path):
    for address in (1000, 2000):
        graphs.run(CONV, "plain", address, 8, 16, 32, 7)
    graphs.run(CONV, "cores", 1000, 8, 16, 32, 9)
    assert stub_cudnn.built == ["plain", "cores"]
    graphs.close()
    graphs.close()
    assert (tmp_path / "log").read_text().splitlines() == [
        "cudnnCreate", "cudnnExecute stream=7 x=1000 w=8 y=16 workspace=32",
        "cudnnExecute stream=7 x=2000 w=8 y=16 workspace=32", "cudnnExecute stream=9 x=1000 w=8 y=16 workspace=32",
        "cudnnDestroy"]


@pytest.mark.parametrize(("words", "kind"), [("CUDNN_STATUS_ALLOC_FAILED", "DeviceShort"),
                                             ("CUDA_ERROR_OUT_OF_MEMORY", "DeviceShort"),
                                             ("CUDNN_STATUS_EXECUTION_FAILED", "DeviceError")])
@pytest.mark.parametrize("step", ["build_plan_at_index", "execute"])
def test_want_of_device_memory_is_told_apart_from_other_errors(graphs, monkeypatch, words, kind, step):
    def fail(*arguments):
        raise RuntimeError(words)
    monkeypatch.setattr(stub_cudnn.pygraph, step, fail)
    with pytest.raises(DeviceError, match=words) as caught:
        graphs.run(CONV, "plain", 1, 2, 3, 0, 7)
    assert type(caught.value).__name__ == kind


def test_a_graph_that_runs_a_plan_has_no_filters_but_that_of_engines_compiled_when_they_are_built(graphs):
    exact = replace(CONV, tf32=False)
    graphs.run(exact, "plain", 1, 2, 3, 0, 7)
    (execute,) = [run for _, run in graphs._open.values()]
    assert execute.__self__._without == {stub_cudnn.behavior_note.RUNTIME_COMPILATION}


def test_errors_are_device_errors_with_the_plan_and_the_words_of_the_library(graphs):
    with pytest.raises(DeviceError, match=r"^cuDNN 92700, plan broken: CUDNN_STATUS_EXECUTION_FAILED$"):
        graphs.run(CONV, "broken", 1, 2, 3, 0, 7)
    with pytest.raises(DeviceError, match=r"plan runtime for .* could not be built: Deselecting execution plan$"):
        graphs.run(CONV, "runtime", 1, 2, 3, 0, 7)
    with pytest.raises(DeviceError, match="is unknown to it: delete the file of timed plans$"):
        graphs.run(CONV, "another", 1, 2, 3, 0, 7)


def test_the_plans_of_a_convolution_share_a_graph_where_a_plan_is_run_by_its_index(graphs, monkeypatch):
    module = sys.modules[OURS[0]]
    made, ran, make = [], [], graphs._graph
    monkeypatch.setattr(graphs, "_graph", lambda *arguments: made.append(make(*arguments)) or made[-1])
    for name in ("plain", "cores"):
        graphs.run(CONV, name, 1, 2, 3, 0, 7)
    assert len(made) == 2  # this frontend runs the plan that a graph has built last
    monkeypatch.setattr(module, "known_frontend", lambda: True)
    monkeypatch.setattr(module, "runner", lambda graph, index: lambda *arguments: ran.append(index))
    other = replace(CONV, tf32=False)
    for convolution, name in ((other, "plain"), (other, "cores"), (replace(other), "unordered"), (CONV, "unordered")):
        graphs.run(convolution, name, 1, 2, 3, 0, 7)
    assert len(made) == 4 and len(ran) == 4 and len(set(ran[:3])) == 3
