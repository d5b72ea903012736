"""A managed training shows its plan: in files that other commands read, as a table, and as a page."""

import json
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import NETWORKS, ROOMY, Forced, forced, run  # noqa: E402

import minidl.torch  # noqa: E402
from minidl import policies  # noqa: E402
from minidl.__main__ import main  # noqa: E402
from minidl.errors import UserError  # noqa: E402
from minidl.plan.formats import read_plan  # noqa: E402
from minidl.plan.trace_format import read_trace  # noqa: E402
from minidl.torch.drawing import DRAWN, drawn  # noqa: E402
from minidl.view.packing import values  # noqa: E402
from minidl.view.recorded import read_page  # noqa: E402
from minidl.view.recording import EventKind, Fate, TensorKind  # noqa: E402


@cache
def trained(how="mixed"):
    memory = forced(how)
    memory.deciding.share = 0.0
    run(NETWORKS["transformer"], 4, memory)
    return memory


def test_nothing_is_shown_before_a_step_is_recorded(tmp_path):
    memory = minidl.torch.managed(ROOMY)
    for ask in (memory.fit, memory.explain, lambda: memory.page(str(tmp_path / "m.html")),
                lambda: memory.save_trace(str(tmp_path / "t.json")),
                lambda: memory.save_plan(str(tmp_path / "p.json"))):
        with pytest.raises(UserError, match="second step of a kind: 0 have ended"):
            ask()
    assert "none has ended" in str(memory.report())
    assert not list(tmp_path.iterdir())


def test_a_saved_trace_is_the_recorded_step_for_any_policy(tmp_path):
    memory = trained()
    memory.save_trace(str(tmp_path / "t.json"))
    known = memory.course.known[0]
    trace = read_trace(str(tmp_path / "t.json"))
    assert trace == known.recorded.trace and trace.windows
    limits = memory.limits
    plans = [policies.create("capuchin").plan(each, memory.deciding.costs, limits).plan
             for each in (trace, known.recorded.trace)]
    assert plans[0] == plans[1]


def test_saved_plans_are_compared_by_the_same_command(tmp_path, capsys):
    for how in ("swap", "mixed"):
        trained(how).save_plan(str(tmp_path / f"{how}.json"))
    saved = read_plan(str(tmp_path / "mixed.json"))
    assert saved.plan.evictions == trained().course.known[0].obeyed.plan.evictions
    assert main(["compare", str(tmp_path / "swap.json"), str(tmp_path / "mixed.json")]) == 0
    told = capsys.readouterr().out
    assert "swapped" in told and "dropped" in told and "the same in both" in told


def test_an_explanation_names_layers_and_lines_of_the_program():
    told = trained().explain(200)
    line, = [row for row in told.splitlines() if "gelu" in row and "blocks.1.mlp.1" in row]
    assert "torch_nets.py:" in line and ("swap out" in line or "drop" in line)
    assert "swapped:" in told and "dropped:" in told and "observed" in told
    assert "3 largest of" in trained().explain(3)
    assert trained("keep").explain() == "plan: nothing leaves the device"


def test_the_origin_of_a_gradient_is_that_of_its_forward_call():
    seen = trained().course.known[0].recorded
    by_op = {}
    for call, origin in zip(seen.trace.calls, seen.origins, strict=True):
        by_op.setdefault(call.op, []).append(origin)
    assert [origin.layer for origin in by_op["gelu"]] == [f"blocks.{n}.mlp.1" for n in range(3)]
    assert [origin.layer for origin in by_op["gelu_backward"]] == [f"blocks.{n}.mlp.1" for n in (2, 1, 0)]
    assert all(origin.backward and origin.line.startswith("torch_nets.py:") for origin in by_op["gelu_backward"])


def test_a_drawn_step_has_each_tensor_when_the_plan_has_it_and_no_two_at_one_place():
    for how in ("keep", "swap", "mixed", "drop"):
        memory = trained(how)
        known = memory.course.known[0]
        recording = drawn(known, memory.deciding.costs, memory.budget)
        recording.check()
        most = max(event.used_bytes for event in recording.events)
        if how in ("keep", "swap"):  # the peak of the plan counts what replays take for a moment, too
            assert most == known.obeyed.peak_bytes
        kinds = {event.kind for event in recording.events}
        assert (EventKind.COPY_OUT in kinds) == (EventKind.COPY_IN in kinds) == (how != "keep")
        assert (EventKind.REPLAY in kinds) == (how in ("mixed", "drop"))
        fates = {stay.fate for stay in recording.stays}
        assert (Fate.SWAPPED in fates) == (how != "keep") and (Fate.DROPPED in fates) == (
            how in ("mixed", "drop"))
        copies = [event for event in recording.events if event.kind in (EventKind.COPY_OUT, EventKind.COPY_IN)]
        assert not copies or copies[-1].host_bytes == 0  # all that went has come back
        assert {TensorKind.PARAMETER, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE, TensorKind.ACTIVATION} <= {
            subject.kind for subject in recording.subjects}


def test_a_page_says_that_it_is_drawn_and_shows_layers_and_lines(tmp_path):
    path = str(tmp_path / "m.html")
    trained().page(path)
    page, = read_page(path)
    assert DRAWN in page["title"] and ["addresses", DRAWN] in page["facts"]
    names = {page["words"][n] for n in values(page["subjects"]["name"])}
    assert any(name.startswith("blocks.1.mlp.1, torch_nets.py:") for name in names)
    assert page["remarks"] and np.all(values(page["stays"]["size"]) > 0)
    trained().page(path)  # over its own
    (tmp_path / "other.html").write_text("mine")
    with pytest.raises(UserError):
        trained().page(str(tmp_path / "other.html"))
    assert json.dumps(page)


# Policies ------------------------------------------------------------------------------------------------------------
PLANNING = sorted(name for name in policies.names() if policies.create(name).plans)


@cache
def plain():
    return run(NETWORKS["convolutional"], 4)


@cache
def half():
    known = minidl.torch.managed(ROOMY)
    run(NETWORKS["convolutional"], 2, known)
    return (known.report().floor_bytes + known.report().unmanaged_bytes) // 2


class Own(Forced):
    """A policy of one's own."""

    name = "own"


def named(policy):
    found = policies.create(policy) if isinstance(policy, str) else policy
    if policy == "exact":
        found.seconds = 0.5  # it gives up what it cannot prove, and says so
    return found


@pytest.mark.parametrize("policy", [*PLANNING, Own("some")], ids=lambda policy: getattr(policy, "name", policy))
def test_every_policy_that_plans_trains_within_half_of_what_there_is_with_the_same_bits(policy):
    from torch_nets import peak, same

    assert same(run(NETWORKS["convolutional"], 4, minidl.torch.managed(half(), policy=named(policy))), plain())
    memory = minidl.torch.managed(half(), policy=named(policy))
    assert peak(NETWORKS["convolutional"], memory, 4) <= half()
    assert memory.report().planned_bytes <= half()


def test_a_policy_that_has_no_plan_for_a_network_says_why_and_what_it_leaves_is_swapped():
    known = minidl.torch.managed(ROOMY)
    run(NETWORKS["transformer"], 2, known)
    memory = minidl.torch.managed(known.report().floor_bytes, policy="vdnn-conv")
    run(NETWORKS["transformer"], 3, memory)
    assert memory.report().remark.startswith("policy 'vdnn-conv' ") and memory.report().remark in str(memory.report())
    assert memory.report().planned_bytes <= memory.budget


# Reports -------------------------------------------------------------------------------------------------------------
def test_a_report_has_the_largest_numbers_of_all_kinds_of_steps():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    memory = minidl.torch.managed(ROOMY)
    with memory:
        for rows in 4 * (512, 512, 8, 8):
            optimizer.zero_grad()
            network(torch.randn(rows, 64)).pow(2).mean().backward()
            optimizer.step()
    small, large = sorted(memory.course.known, key=lambda known: known.unmanaged_bytes)
    report = memory.report()
    assert small.used > large.used and 0 < small.floor.nbytes < large.floor.nbytes == report.floor_bytes
    assert (report.unmanaged_bytes, report.planned_bytes) == (large.unmanaged_bytes, large.obeyed.peak_bytes)


def test_a_report_names_no_reason_of_a_plan_that_no_step_follows():
    """``fit`` asks for plans in other budgets, in which this policy has none."""
    class Roomy(Own):
        def plan(self, trace, costs, limits):
            if limits.device_bytes < ROOMY:
                raise UserError("too small")
            return super().plan(trace, costs, limits)
    memory = minidl.torch.managed(ROOMY, policy=Roomy("some"))
    run(NETWORKS["convolutional"], 3, memory)
    memory.fit()
    assert not memory.report().remark
