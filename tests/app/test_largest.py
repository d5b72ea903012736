"""The largest batch, whole and in slices: what is announced runs, and what forbids the next one is said."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_fit import setup

import train
from minidl.cli.app import advice, sizes, slices, trials
from minidl.cli.app.fit import Setup, smallest_budget
from minidl.cli.app.largest import largest_batch, largest_batch_cut
from minidl.cli.app.trials import PLAN, Shortage, Work
from minidl.policies import create, hurried
from minidl.policies.auto.policy import Auto

LENET = ["--model", "lenet", "--device", "sim:p100", "--steps", "2"]


@pytest.fixture(autouse=True)
def few_slices(monkeypatch):
    """In 64 slices a step of LeNet takes half a second."""
    monkeypatch.setattr(slices, "MOST", 8)


def announced(capsys, *flags):
    """(batch, slices, what forbids the next, what else was printed) of a run with ``--batch max``."""
    assert train.main([*LENET, *flags, "--batch", "max"]) == 0
    out = capsys.readouterr().out
    found = re.search(r"the largest batch is (\d+)(?: in (\d+) slices)?: (.*)", out)
    return int(found[1]), int(found[2] or 1), found[3], out


@pytest.mark.parametrize("policy", [pytest.param("auto", marks=pytest.mark.slow), "passive"])
def test_beyond_the_largest_whole_batch_it_is_in_slices_and_runs_in_these(capsys, policy):
    flags = ["--memory-budget", "3MiB", "--policy", policy]
    whole, one, limit, _ = announced(capsys, *flags, "--slices", "1")
    assert (whole, one) == (83, 1) and limit == "at 84 tanh_grad alone needs 3.0 MiB of the 3.0 MiB"
    batch, count, limit, out = announced(capsys, *flags)
    assert batch > 7 * whole and count == 8  # 8 slices of 83 each at most, found to a 32nd
    assert re.fullmatch(r"at \d+ tanh_grad alone needs 3.\d MiB of the 3.0 MiB in 8 slices", limit)
    assert "in 8 slices: whole 83 is the largest" in out


def test_in_slices_asked_for_it_is_for_these(capsys):
    batch, count, limit, _ = announced(capsys, "--memory-budget", "3MiB", "--policy", "passive", "--slices", "2")
    assert 2 * 80 < batch <= 2 * 84 and count == 2
    assert limit == f"at {batch + 1} tanh_grad alone needs 3.0 MiB of the 3.0 MiB in 2 slices"


def test_where_the_host_is_the_limit_it_is_said_what_more_of_it_would_do(capsys):
    flags = ["--memory-budget", "1536KiB", "--policy", "passive", "--slices", "1"]
    batch, _, limit, _ = announced(capsys, *flags, "--host-memory", "768KiB")
    said = re.fullmatch(r"a batch of (\d+) needs more than the 768.0 KiB of host memory; "
                        r"with 768.0 KiB more of it (\d+) would do", limit)
    assert batch < int(said[1]) <= int(said[2])
    assert train.main([*LENET, *flags, "--host-memory", "1536KiB", "--batch", said[2]]) == 0


@pytest.mark.slow
def test_in_slices_device_and_host_hold_what_a_step_keeps(capsys):
    """ResNet-20 keeps what it keeps in as many slices as one likes."""
    flags = ["--model", "resnet20", "--memory-budget", "4MiB", "--host-memory", "200MiB", "--policy", "passive"]
    batch, count, limit, _ = announced(capsys, *flags)
    said = re.fullmatch(r"a step of (\d+) keeps (\S+) MiB, and the device has 4.0 MiB, the host 200.0 MiB; "
                        r"with 200.0 MiB more of it (\d+) would do", limit)
    assert count > 1 and batch < int(said[1]) < int(said[3]) and float(said[2]) > 204


@pytest.mark.full
def test_the_largest_whole_batch_that_the_host_allows_runs_in_slices_where_one_operation_takes_most(capsys):
    """It is found whole; then it is cut, for one operation takes most of the budget, and slices have room, too."""
    flags = ["--model", "resnet20", "--memory-budget", "4MiB", "--host-memory", "10MiB"]
    batch, _, limit, out = announced(capsys, *flags)
    assert batch == 30
    assert limit == "a batch of 31 needs more than the 10.0 MiB of host memory; with 10.0 MiB more of it 31 would do"
    assert "in 8 slices: conv2d alone takes 3.8 MiB of 4.0 MiB" in out


@pytest.mark.full
def test_where_slices_leave_no_room_and_the_whole_does_it_runs_whole(capsys, monkeypatch):
    """One operation takes most of the budget, so the batch would be cut; then, as trials in slices tell, the host is
    full."""
    tried = Setup.trial

    def trial(setup, batch, budget_bytes, **options):
        found = tried(setup, batch, budget_bytes, **options)
        return found if setup.slices == 1 else replace(found, shortage=Shortage("conv2d", host_full=True))

    monkeypatch.setattr(Setup, "trial", trial)
    flags = ["--model", "resnet20", "--memory-budget", "4MiB", "--host-memory", "10MiB"]
    batch, count, limit, out = announced(capsys, *flags)
    assert (batch, count) == (30, 1)
    assert limit == "a batch of 31 needs more than the 10.0 MiB of host memory; with 10.0 MiB more of it 31 would do"
    assert "slices" not in out


def test_a_batch_that_fits_in_no_slices_is_refused_with_what_would_do_in_them(capsys):
    flags = [*LENET, "--memory-budget", "1MiB"]
    assert train.main([*flags, "--batch", "4000"]) == 2
    said = re.search(r"under policy auto in 8 slices\. .* tanh_grad, needs .* smallest budget that would do is (\d+) "
                     r"bytes \(.*\); the largest batch that would do in this budget is (\d+)", capsys.readouterr().err)
    assert train.main([*flags, "--batch", said[2]]) == 0
    assert train.main([*flags, "--batch", "4000", "--memory-budget", said[1]]) == 0


def test_a_batch_has_an_example_for_each_slice(capsys):
    assert train.main([*LENET, "--memory-budget", "600KiB", "--batch", "6", "--host-memory", "0"]) in (0, 2)
    out = capsys.readouterr()
    assert "in 8 slices" not in out.out + out.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_benchmark_of_largest_batches_ends_with_its_run_when_it_is_told_to(tmp_path, number):
    command = [sys.executable, "-m", "bench.batch_max", "--networks", "mlp", "--devices", "sim:p100", "--steps",
               "1000000", "--rows", str(tmp_path / "rows")]
    bench = subprocess.Popen(command, cwd=Path(train.__file__).parent, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert bench.stderr is not None
    with bench.stderr as told:
        assert told.readline() == "mlp on sim:p100 under auto\n"
        bench.send_signal(number)
        assert bench.wait() == 128 + number and told.read() == ""
    with pytest.raises(ProcessLookupError):
        os.killpg(bench.pid, 0)  # nothing is left of its session
    assert not (tmp_path / "rows").exists()


def test_a_search_with_a_limit_ends_with_a_batch_that_runs_and_says_what_it_left_untried():
    """LeNet has 30 calls or so a step: a limit of 60 allows a dry run or two and no trial."""
    unlimited = setup("lenet", shape=(1, 32, 32))
    exact = largest_batch(unlimited, 3 << 20)
    assert exact.untried == 0
    for limit in (60, 200, 400, 10**6):
        limited = replace(unlimited, work=Work(limit))
        found = largest_batch(limited, 3 << 20)
        assert found.batch <= exact.batch and (found.batch == exact.batch or found.untried > found.batch)
        assert limit != 60 or found.untried
        assert not found.batch or unlimited.trial(found.batch, 3 << 20).shortage is None
        assert ("not tried" in found.limit) == bool(found.untried) and limited.work.spent < limit + 200
    assert found.batch == exact.batch and found.untried == 0


@pytest.mark.parametrize(("moved", "most", "hints"), [(1, 500, 2), (0, 500, 1), (0, 100, 1)])
def test_advice_has_a_limit_of_work_even_within_a_trial(monkeypatch, moved, most, hints):
    """The hints found before the limit are true. LeNet has some 30 calls a step, and a trial at least two steps."""
    budget, what = 3 << 20, setup("lenet", "passive", shape=(1, 32, 32))
    result, works = SimpleNamespace(batch=80, budget_bytes=budget, swapped_out_bytes=moved, swapped_in_bytes=0,
                                    recomputed_bytes=0), []
    monkeypatch.setattr(advice, "Work", lambda *limits, **how: works.append(Work(*limits, **how)) or works[-1])
    told = []
    for limit in (1, 40, 70, 100, 200, 400, 10**6):
        monkeypatch.setattr(advice, "WORK", limit)
        told.append(advice.advice(what, result, most=most))
        assert works[-1].spent <= limit + 50  # one dry run is not interrupted
        for batch, more in re.findall(r"--batch (\d+)( fits)?", "".join(told[-1])):
            trial = replace(what, policy="passive" if more else "none").trial(int(batch), budget)
            assert trial.shortage is None
    assert len(told[0]) == 0 and len(told[-1]) == hints


def test_a_trial_ends_when_a_step_replays_too_much():
    """Under dtr at its largest batch a step of ResNet-20 replays: it launches more than nine tenths of its calls."""
    budget, what = 8 << 20, setup("resnet20", "dtr", shape=(3, 32, 32))
    most = largest_batch(what, budget).batch
    assert what.trial(most, budget).shortage is None
    limited = replace(what, work=Work(10**9, 0.9))
    limited.demand(most)
    assert limited.trial(most, budget).shortage == Shortage("", host_full=False, slow=True)
    found = largest_batch(replace(what, work=Work(10**9, 0.9)), budget)
    assert found.batch < most and "replays so much that it launches more than 0.9 times its calls" in found.limit


@pytest.mark.slow
def test_what_exact_prices_look_at_counts_as_work_and_ends_a_trial_at_the_limit(monkeypatch):
    """The prices of recompute are sums by regions, which look at few calls."""
    budget, exact = 8 << 20, setup("resnet20", "dtr", shape=(3, 32, 32))
    batch = largest_batch(exact, budget).batch

    def tried(policy, walked, limit=10**9):
        """(the work of a trial, its shortage) if ``walked`` calls that prices look at count as one launch."""
        monkeypatch.setattr(trials, "WALKED", walked)
        limited = replace(exact, policy=policy, work=Work(limit))
        limited.demand(batch)
        before = limited.work.spent
        shortage = limited.trial(batch, budget).shortage
        return limited.work.spent - before, shortage

    (launches, _), (work, shortage) = tried("dtr", 10**9), tried("dtr", 1)
    assert work > 5 * launches and shortage is None
    (launches, _), (by_regions, shortage) = tried("recompute", 10**9), tried("recompute", 1)
    assert launches <= by_regions < 2 * launches and shortage is None
    ended, shortage = tried("dtr", 1, work // 2)
    assert ended < work and shortage == Shortage("", host_full=False, slow=True)
    whole = replace(exact, work=Work())
    largest_batch(whole, budget)
    limited = replace(exact, work=Work(whole.work.spent // 2))
    found = largest_batch(limited, budget)  # which ends in a trial, or after one
    assert found.untried > found.batch and "not tried" in found.limit
    assert limited.work.spent < limited.work.limit + work // 2


def test_a_search_that_leaves_slices_untried_says_so():
    what = replace(setup("resnet20", "dtr", shape=(3, 32, 32)), work=Work())
    whole = largest_batch(what, 8 << 20)
    found = largest_batch_cut(replace(what, work=Work(what.work.spent + 1)), 8 << 20)
    assert found.batch == whole.batch and found.untried > whole.batch
    assert found.limit == (f"{whole.limit}; in slices {found.untried} and more were not tried, because the search has "
                           "a limit; --thorough goes on")


def test_without_swapping_slices_are_tried_from_the_largest_whole_batch_on():
    what = setup("lenet", "dtr", shape=(1, 32, 32))
    found = largest_batch_cut(what, 3 << 20)
    assert found.batch > found.whole and found.slices > 1 and found.untried == 0
    assert replace(what, slices=found.slices).trial(found.batch, 3 << 20).shortage is None


@pytest.mark.parametrize("policy", ["vdnn-dyn", "chen-sqrt"])
def test_of_a_policy_that_refuses_it_is_a_batch_that_its_plan_can_train(capsys, policy):
    flags = ["--memory-budget", "3MiB", "--policy", policy, "--slices", "1", "--steps", "5"]
    batch, _, limit, _ = announced(capsys, *flags)
    assert re.fullmatch(rf"at {batch + 1} policy '{policy}' cannot run this in 3.0 MiB: .* needs 3.\d MiB.*", limit)
    assert train.main([*LENET, *flags, "--batch", str(batch)]) == 0
    assert train.main([*LENET, *flags, "--batch", str(batch + 1)]) == 2
    assert f"policy '{policy}' cannot run this in 3.0 MiB" in capsys.readouterr().err


def test_in_slices_a_policy_that_refuses_plans_too(capsys):
    flags = ["--memory-budget", "3MiB", "--policy", "vdnn-dyn", "--steps", "5"]
    batch, count, limit, _ = announced(capsys, *flags)
    assert count > 1 and re.search(r"in \d slices policy 'vdnn-dyn' cannot run this in 3.0 MiB: under its plan", limit)


def test_where_a_policy_refuses_every_batch_its_reason_is_the_error(capsys):
    assert train.main(["--model", "mlp", "--device", "sim:p100", "--policy", "vdnn-dyn", "--batch", "max"]) == 2
    assert re.search(r"not even a batch of 1 fits .*: at 1 policy 'vdnn-dyn' offloads the feature maps of "
                     r"convolutional networks; none of this one's \d+ calls is a convolution", capsys.readouterr().err)


def test_the_answer_says_what_larger_batches_cost(capsys):
    """Nothing moves at the first batch, and each further one is slower."""
    flags = ["--memory-budget", "3MiB", "--slices", "1", "--policy", "passive"]
    _, _, _, out = announced(capsys, *flags)
    told = re.search(r"of the unmanaged speed: (.*)", out)[1].split(", ")
    shares = {int(word.split(" at ")[0]): int(word.split(" at ")[1].rstrip("%")) for word in told}
    assert list(shares) == sorted(shares) and max(shares) == 83 and len(shares) == 4
    assert list(shares.values()) == sorted(shares.values(), reverse=True) and shares[min(shares)] == 100
    assert train.main([*LENET, *flags, "--policy", "none", "--batch", str(min(shares))]) == 0


@pytest.mark.parametrize(("slices", "budget", "ends"), [("1", "3900KiB", "moved"),
                                                     ("2", "3MiB", "moved in 2 slices")])
def test_a_budget_in_which_nothing_moves_says_in_how_many_slices_that_is(slices, budget, ends, capsys):
    """Beside it stands what the whole step needs, which is more."""
    assert train.main([*LENET, "--batch", "100", "--memory-budget", budget, "--policy", "passive", "--slices", slices,
                       "--steps", "3"]) == 0
    assert re.search(rf"--memory-budget \S+: in that nothing has to be {ends}$", capsys.readouterr().out, re.M)


def test_a_search_that_uses_up_its_work_leaves_some_for_what_batches_cost(monkeypatch, capsys):
    """Beside the first batch, at which nothing moves, there is the largest."""
    def used_up(setup, *arguments, **named):
        found = largest_batch(setup, *arguments, **named)
        setup.work.spent = 10 * setup.work.limit  # its last trial may have been so long
        return found

    monkeypatch.setattr(sizes, "largest_batch", used_up)
    *_, out = announced(capsys, "--memory-budget", "3MiB", "--slices", "1", "--policy", "passive")
    told = re.search(r"of the unmanaged speed: (.*)", out)[1].split(", ")
    assert len(told) >= 2 and told[0].endswith(" at 100%")


def test_a_question_about_speed_makes_one_short_search_and_counts_it_as_work(monkeypatch):
    """At the floor no search finds a plan that helps; a training would search on, with more work."""
    searched = []
    search = Auto._search
    monkeypatch.setattr(Auto, "_search", lambda *words: searched.append(words[2]) or search(*words))
    what = replace(setup("lenet", "auto", shape=(1, 32, 32)), work=Work(1e9))
    floor = smallest_budget(what, 64)
    what.work.spent = 0
    with_plan, without = what.managed_seconds(64, int(1.2 * floor)), what.managed_seconds(64, floor)
    assert searched == [0, 0] and what.work.spent // PLAN == 2
    assert what.unmanaged_seconds(64) <= with_plan <= without < inf
    assert Auto().rounds > hurried("auto").rounds == 0 and type(hurried("capuchin")) is type(create("capuchin"))
