"""A plan goes into a file and comes back: followed as it is, refused where it does not fit, compared with another."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from flags import NET

import train
from minidl import Runtime
from minidl.cli import compare
from minidl.lab import cell
from minidl.memory.switches import Switches
from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import SavedPlan, plan_from_json, plan_to_json
from minidl.plan.plan import NO_PLAN, Action, Eviction, Move, Plan
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.plan.trace_format import trace_from_json
from minidl.policies.saved import SavedPlanPolicy, misfit

OUT, DROP = Action.SWAP_OUT, Action.DROP
COSTS, LIMITS = Costs(1.0, 1.0, 0.0), Limits(1, 1)
ROOT = Path(__file__).parents[2]


def trace(*, ops: tuple[str, ...] = ("conv", "relu", "loss"), nbytes: int = 8) -> Trace:
    """0 -> 1 -> 2 -> 3: each call reads the tensor before; the last one reads 1 too."""
    calls = [TraceCall(op, (n, 1) if n == 2 else (n,), (n + 1,), 1.0, (), ()) for n, op in enumerate(ops)]
    return Trace(tuple(calls), {t: TraceTensor(t, nbytes, False) for t in range(len(ops) + 1)})


WRITE = "write Action.SWAP_OUT or Action.DROP, of minidl.plan.plan"
TYPES = "a part of it is not of the type that plan.plan.Plan names: "
PLAN = Plan({(1, 2): OUT, (0, 1): DROP}, {(2, 1): (1,)}, offsets={(1, 0): 512}, predicted_seconds=4.0)
SAVED = SavedPlan.of(PLAN, trace())


# Following -----------------------------------------------------------------------------------------------------------
def test_the_plan_of_a_file_is_followed_where_it_fits_and_never_corrected():
    policy = SavedPlanPolicy(plan_from_json(plan_to_json(SAVED)))
    proposal = policy.plan(trace(), COSTS, LIMITS)
    assert proposal.plan == PLAN and policy.feedback(proposal, None) is proposal


@pytest.mark.parametrize(("other", "message"), [
    (trace(ops=("conv", "relu")), "its iteration has 3 calls, and this one 2"),
    (trace(nbytes=12), "tensor 1 is 8 bytes of conv in the plan, and 12 bytes of conv here"),
    (trace(ops=("pool", "relu", "loss")), "tensor 1 is 8 bytes of conv in the plan, and 8 bytes of pool here"),
])
def test_a_plan_for_another_iteration_does_not_fit_for_what_differs(other, message):
    assert misfit(SAVED, other) == message and misfit(SAVED, trace()) is None


@pytest.mark.parametrize(("plan", "message"), [
    (Plan({(9, 1): OUT}), "it evicts tensor 9, unused in this iteration"),
    (Plan({(1, 4): OUT}), "it names access 4 of tensor 1, which has 3"),
    (Plan({}, {(3, 2): ()}), "it names access 2 of tensor 3, which has 1"),
    (Plan({}, {(2, 1): (1,)}), "it swaps in tensor 1, which it does not evict"),
    (Plan(moves={(2, 3): (Move(1, 0),)}), "it names access 3 of tensor 2, which has 2"),
    (Plan(moves={(2, 1): (Move(1, 0), Move(9, 0))}), "it gives an address to tensor 9, unused in this iteration"),
    (Plan({(1, 0): OUT}), "it names access 0 of tensor 1, which has 3"),
    (Plan({(1, 1): "drop"}), f"it gives tensor 1 the action 'drop': {WRITE}"),
    (Plan(spent={(1, 1): (Eviction(2, 42),)}), f"it gives tensor 2 the action 42: {WRITE}"),
    (Plan({(1, 2): OUT}, {(2, 1): 1}), "its prefetches after access (2, 1) are 1, which is no tuple"),
    (Plan(replays={(1, 1): [1]}), "its replays after access (1, 1) are [1], which is no tuple"),
    (Plan(offsets={(1, 0): 3}), "it gives tensor 1 the address 3, which is no multiple of 256 from 0 on"),
    (Plan(moves={(2, 1): (Move(1, -256),)}), "it gives tensor 1 the address -256, which is no multiple of 256 from 0 "
     "on"),
    (Plan(offsets={(1, 0): 256.0}), f"{TYPES}'float' object cannot be interpreted as an integer"),
    (Plan(waits=frozenset({3})), f"{TYPES}cannot unpack non-iterable int object"),
    (Plan(algorithms={-1: "slow"}), "it chooses algorithm 'slow' for call -1, which does not have it here"),
])
def test_a_plan_that_names_what_is_not_there_is_refused(plan, message):
    saved = SavedPlan(plan, 3, {t: ("conv", 8) for t, _ in plan.evictions})
    assert misfit(saved, trace()) == message


def test_sequences_that_the_plan_of_a_file_does_not_fit_run_in_passive_mode_whenever_they_come():
    policy = SavedPlanPolicy(SAVED)
    for _ in range(2):
        assert policy.plan(trace(ops=("conv",)), COSTS, LIMITS) is NO_PLAN
        assert policy.plan(trace(), COSTS, LIMITS).plan == PLAN


# train.py ------------------------------------------------------------------------------------------------------------
def result(tmp_path: Path, *flags: str) -> dict:
    path = tmp_path / "result.json"
    assert train.main([*NET, *flags, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_a_saved_plan_gives_the_same_step_again(tmp_path, capsys):
    plan, copied, traced = (str(tmp_path / name) for name in ("a.plan", "b.plan", "a.trace"))
    first = result(tmp_path, "--policy", "capuchin", "--no-feedback", "--steps", "9", "--save-plan", plan,
                   "--save-trace", traced)
    again = result(tmp_path, "--plan", plan, "--steps", "9", "--save-plan", copied)
    assert again.pop("policy") == "saved" and first.pop("policy") == "capuchin"
    assert again == first and first["swapped_out_bytes"] + first["recomputed_bytes"] > 0
    assert Path(plan).read_text() == Path(copied).read_text()
    saved, step = plan_from_json(Path(plan).read_text()), trace_from_json(Path(traced).read_text())
    assert saved.plan.evictions and misfit(saved, step) is None
    # Beneath the plan there is nothing but passive mode.
    assert again["swapped_out_bytes"] != result(tmp_path, "--policy", "passive")["swapped_out_bytes"]


def refusal(capsys, *flags: str) -> str:
    assert train.main([*NET, *flags]) == 2
    error, = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: error: ")]
    return error.removeprefix("train.py: error: ")


@pytest.mark.parametrize(("flags", "message"), [
    (["--plan", "nowhere.json"], "cannot read nowhere.json: No such file or directory"),
    (["--plan", "a.json", "--policy", "capuchin"], "argument --policy: not allowed with argument --plan"),
    (["--policy", "passive", "--save-plan", "a.json"], "--save-plan: policy passive makes no plans"),
    (["--policy", "none", "--explain"], "--explain: policy none makes no plans"),
    (["--save-plan", "/nowhere/a.json"], "cannot write /nowhere/a.json: No such file or directory"),
    (["--save-trace", "/nowhere/a.json"], "cannot write /nowhere/a.json: No such file or directory"),
    (["--explain", "0"], "--explain: must be a whole number of at least 1, not 0"),
])
def test_what_cannot_be_done_with_plans_is_refused_with_one_message(capsys, flags, message):
    assert message in refusal(capsys, *flags)


def test_a_file_that_does_not_fit_is_named(tmp_path, capsys):
    path = tmp_path / "other.plan"
    path.write_text("{}")
    assert refusal(capsys, "--plan", str(path))== f"{path}: minidl-plan: Object missing required field `format`"
    path.write_text(plan_to_json(SAVED))
    assert refusal(capsys, "--plan", str(path)).startswith(f"{path} holds a plan for another iteration: its iteration")


@pytest.mark.parametrize("flags", [["--save-plan", "a.plan"], ["--explain"]])
def test_a_run_too_short_for_a_plan_says_so_before_its_first_step(tmp_path, capsys, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    small = ["--model", "lenet", "--batch", "64", "--memory-budget", "80%"]
    assert train.main([*small, "--steps", "3", *flags]) == 2  # a first one, one like it, one that is measured
    told = capsys.readouterr()
    assert f"{flags[0]}: a plan is followed when" in told.err and "it takes 4 steps, and there are 3" in told.err
    assert "images/s" not in told.out and not list(tmp_path.iterdir())
    assert train.main([*small, "--steps", "4", *flags]) == 0


def test_a_run_too_short_to_follow_the_plan_of_a_file_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main([*NET, "--steps", "4", "--policy", "capuchin", "--save-plan", "a.plan"]) == 0
    assert "--plan: a plan is followed when" in (line := refusal(capsys, "--plan", "a.plan", "--steps", "1"))
    assert "it takes 4 steps, and there are 1" in line
    assert train.main([*NET, "--plan", "a.plan", "--steps", "4"]) == 0


@pytest.mark.parametrize(("flag", "code"), [("--save-plan", 2), ("--plan", 0)])
def test_a_run_that_goes_on_comes_to_its_end_though_too_few_steps_are_left_for_a_plan(tmp_path, capsys, flag, code):
    plan, run = str(tmp_path / "plan"), str(tmp_path / "run")
    flags = ["--model", "mlp", "--data", "digits", "--device", "cpu:virtual", "--memory-budget", "80%", "-b", "400",
             "--policy", "capuchin"]
    assert train.main([*flags, "--steps", "9", "--save-plan", plan]) == 0
    Path(plan).rename(other := tmp_path / "other")
    assert train.main([*flags, "--steps", "8", "--run-dir", run]) == 0
    assert train.main(["--resume", run, "--steps", "9", flag, str(other if flag == "--plan" else plan)]) == code
    told = capsys.readouterr()
    assert f"{flag}: a plan is followed when the same calls have come twice" in told.out
    assert "it takes 4 steps, and there are 1" in told.out or "it takes 2 steps, and there are 1" in told.out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 9


def test_what_is_planned_between_the_steps_is_not_taken_for_one(tmp_path, capsys):
    """An epoch of one step: the look at test data, with its two equal batches, is planned before the step is."""
    flags = ["--model", "mlp", "--data", "digits", "--device", "cpu:virtual", "--memory-budget", "80%", "--batch",
             "150", "--grad-accum-steps", "9", "--steps", "4"]
    kept = [tmp_path / "a", tmp_path / "b"]
    assert train.main([*flags, "--policy", "capuchin", "--save-plan", str(kept[0])]) == 0
    assert plan_from_json(kept[0].read_text()).calls > 200  # forward and backward, nine times
    assert train.main([*flags, "--plan", str(kept[0]), "--save-plan", str(kept[1])]) == 0
    assert kept[0].read_text() == kept[1].read_text()


def test_every_policy_s_last_step_can_be_saved_as_a_trace(tmp_path):
    path = tmp_path / "a.trace"
    assert train.main([*NET, "--policy", "passive", "--steps", "2", "--save-trace", str(path)]) == 0
    saved = trace_from_json(path.read_text())
    calls = [call.op for call in saved.calls]
    assert calls[0] == "upload" and calls[-1] == "read"  # from the batch to the loss
    assert any(call.saves for call in saved.calls) and any(call.leaves for call in saved.calls)
    row = cell.run("saved", saved, cell.Machine(), "passive", 0.9, steps=2)
    assert row.status == "ok" and row.unmanaged_s > 0


def test_a_runtime_keeps_traces_only_when_asked():
    with Runtime("sim:p100", policy="passive", switches=Switches()) as runtime:
        for keeps in (False, True):
            runtime.keeps_trace = keeps
            with runtime.iteration():
                runtime.tensor(None, shape=(4,))
            assert (runtime.last_trace is not None) is keeps


# Comparing -----------------------------------------------------------------------------------------------------------
def test_two_plans_are_compared_by_decision_and_bytes(tmp_path, capsys):
    # Both drop 0; A swaps 1 after access 2, B drops it; 2 leaves in B alone. 8 bytes each.
    other = SavedPlan.of(Plan({(1, 2): DROP, (0, 1): DROP, (2, 1): OUT}, {(3, 1): (2,)}), trace())
    paths = []
    for name, saved in (("a", SAVED), ("b", other)):
        paths.append(str(tmp_path / name))
        Path(paths[-1]).write_text(plan_to_json(saved))
    assert compare.main(paths) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[:5] == [
        "A: 1 swapped (8 B), 1 dropped (8 B), predicted 4 s", "B: 1 swapped (8 B), 2 dropped (16 B)",
        "the same in both: 1 decisions, 8 B", "swapped in ahead by both: 0 tensors, 0 of them from the same accesses",
        "different: 2 decisions, 16 B:"]
    assert [" ".join(line.split()) for line in told.splitlines()[5:]] == [
        "tensor made by bytes after access A B", "1 conv 8 B 2 swap out drop", "2 relu 8 B 1 stays swap out"]
    assert compare.main([*paths, "--rows", "1"]) == 0
    assert "; the 1 largest:" in capsys.readouterr().out


def test_plans_for_different_iterations_are_not_compared(tmp_path, capsys):
    for other, message in ((replace(SAVED, calls=4), "of 3 calls and of 4"),
                           (SavedPlan.of(PLAN, trace(nbytes=9)), "tensor 0 is 8 bytes and 9 bytes")):
        paths = []
        for name, saved in (("a", SAVED), ("b", other)):
            paths.append(str(tmp_path / name))
            Path(paths[-1]).write_text(plan_to_json(saved))
        assert compare.main(paths) == 2
        assert message in capsys.readouterr().err
