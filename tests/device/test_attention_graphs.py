"""Graphs of attention over a stand-in for cuDNN's frontend: which plan is taken, how often it is built, what fails."""

import importlib
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import stub_cudnn

from minidl.device.cuda.seam import Attention, PlanInfo
from minidl.errors import DeviceError

ATTENTION = Attention(False, "bfloat16", 2, 3, 5, 5, 8, False, 0.0)
NVRTC = ("cudnnFinalize Descriptor FailedEncountered runtime kernel compilation failure at: compilationResult != "
         "NVRTC_SUCCESS cudnn_status: CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED")
UNSUPPORTED = "cudnnFinalize Descriptor Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"
OURS = ("minidl.device.cuda.attention_graphs", "minidl.device.cuda.cudnn_graphs", "minidl.device.cuda.libraries")


@pytest.fixture
def graphs(monkeypatch, tmp_path):
    """The module over the stand-in, whose first plan adds in no fixed order; nothing of it stays."""
    libraries = ModuleType(OURS[2])
    libraries.preload = lambda: None
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "cudnn", stub_cudnn)
    monkeypatch.setitem(sys.modules, OURS[2], libraries)
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(stub_cudnn, "built", [])
    monkeypatch.setattr(stub_cudnn, "fails", {})
    monkeypatch.setattr(stub_cudnn, "PLANS", (("unordered", 0, {"no order"}), ("first", 200, set()),
                                               ("next", 0, set())))
    module = importlib.import_module(OURS[0])
    handle = stub_cudnn.create_handle()
    yield module.AttentionGraphs(handle)
    for name in OURS[:2]:
        monkeypatch.delitem(sys.modules, name)


def test_the_first_plan_with_a_fixed_order_is_built_once_alone_and_runs(graphs):
    assert graphs.plan(ATTENTION) == PlanInfo("first", 200, True)
    same = replace(ATTENTION)  # as each call describes it anew
    for attention in (ATTENTION, same):
        graphs.run(attention, "first", range(1, 6), 0, 64, 7)
    assert stub_cudnn.built == ["first"]


def test_a_plan_that_was_kept_is_built_by_its_name_and_no_other(graphs):
    graphs.run(ATTENTION, "next", range(1, 6), 0, 64, 7)
    graphs.run(ATTENTION, "next", range(1, 6), 0, 64, 7)
    assert stub_cudnn.built == ["next"]


@pytest.mark.parametrize("gradient", [False, True])
def test_a_plan_whose_compilation_fails_is_an_error_and_no_other_plan_takes_its_place(graphs, gradient):
    stub_cudnn.fails["first"] = NVRTC
    attention = replace(ATTENTION, gradient=gradient)
    for call in (lambda: graphs.plan(attention), lambda: graphs.run(attention, "first", range(1, 6), 0, 64, 7)):
        with pytest.raises(DeviceError, match=r"cuDNN 92700 failed to build a plan .* NVRTC_SUCCESS .* --attention "
                                              "composed"):
            call()
    assert stub_cudnn.built == []


def test_a_plan_that_does_not_fit_the_shape_is_passed_over_and_without_another_there_is_none(graphs):
    stub_cudnn.fails["first"] = UNSUPPORTED
    assert graphs.plan(ATTENTION) == PlanInfo("next", 0, True)
    stub_cudnn.fails["next"] = UNSUPPORTED
    assert graphs.plan(ATTENTION) is None


def test_what_fails_otherwise_is_an_error_where_no_other_plan_can_be_built(graphs):
    stub_cudnn.fails["first"] = "CUDNN_STATUS_INTERNAL_ERROR"
    assert graphs.plan(ATTENTION) == PlanInfo("next", 0, True)
    stub_cudnn.fails["next"] = UNSUPPORTED
    with pytest.raises(DeviceError, match="CUDNN_STATUS_INTERNAL_ERROR;"):
        graphs.plan(ATTENTION)


@pytest.mark.parametrize(("words", "kind", "raises"), [
    ("head_dim should be a multiple of 8", "cudnnGraphNotSupportedError", False),
    (NVRTC, "cudnnGraphNotSupportedError", True), ("CUDNN_STATUS_NOT_INITIALIZED", "RuntimeError", True)])
def test_a_graph_that_cudnn_does_not_support_has_no_plan_and_one_that_it_fails_at_is_an_error(
        graphs, monkeypatch, words, kind, raises):
    def refuse(self):
        raise getattr(stub_cudnn, kind, RuntimeError)(words)
    monkeypatch.setattr(stub_cudnn.pygraph, "validate", refuse)
    if raises:
        with pytest.raises(DeviceError, match=words[:20]):
            graphs.plan(ATTENTION)
    else:
        assert graphs.plan(ATTENTION) is None


def test_a_kept_plan_that_this_version_does_not_know_is_an_error_that_says_what_to_remove(graphs):
    with pytest.raises(DeviceError, match="no plan other for .* delete the file of attention's plans"):
        graphs.run(ATTENTION, "other", range(1, 6), 0, 64, 7)
