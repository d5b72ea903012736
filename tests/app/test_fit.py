"""Searches for what fits: their answers work, the neighbours do not, and the device itself is left alone."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest
from fake_cuda import JudgedCuda
from hypothesis import given
from hypothesis import strategies as st

import train
from minidl import OutOfMemory, Runtime, current_runtime, device, models
from minidl.cli.app import default_memory, fit, largest, slices
from minidl.cli.app.bisection import largest_number
from minidl.cli.app.fit import Setup, TrainingParts, smallest_budget
from minidl.cli.app.largest import largest_batch, largest_batch_cut
from minidl.cli.app.slices import Cut, faster
from minidl.cli.app.trials import Shortage
from minidl.data import Batch
from minidl.device import profiles
from minidl.meta import ALIGNMENT
from minidl.ops import cross_entropy
from minidl.optim import SGD
from minidl.policies.passive import Passive

ROOT = Path(__file__).parents[2]
P100_BYTES = 15_127 * 2**20
KIB = 2**10


def setup(model, policy="passive", *, shape=(3, 224, 224), host=256 * 10**9, on="sim:p100"):
    """Training with momentum, as train.py does it."""
    def program(batch):
        network = models.create(model)
        optimizer = SGD(network.parameters(), lr=0.1, momentum=0.9)
        return TrainingParts(partial(step, network, optimizer, Batch(batch, shape)))
    return Setup(program, device.create(on), policy, host)


def step(network, optimizer, batch):
    runtime = current_runtime()
    with runtime.iteration():
        optimizer.zero_grad()
        images, labels = batch.upload(runtime)
        logits = network(images)
        del images
        cross_entropy(logits, labels).backward()
        optimizer.step()


LENET = {"model": "lenet", "shape": (1, 32, 32)}


def fits(what, batch, budget):
    return what.trial(batch, budget).shortage is None


@given(answer=st.integers(0, 5000), guess=st.integers(-10, 9000), most=st.integers(1, 6000))
def test_the_search_finds_the_threshold_from_any_guess(answer, guess, most):
    asked = []

    def holds(number):
        assert 1 <= number <= most
        asked.append(number)
        return number <= answer

    assert largest_number(holds, guess=guess, most=most) == min(answer, most)
    assert len(asked) == len(set(asked))  # a trial may take a second: none twice


@given(answer=st.integers(0, 5000), guess=st.integers(1, 9000), parts=st.integers(1, 60))
def test_a_search_to_a_part_ends_below_the_threshold_and_within_that_part_of_it(answer, guess, parts):
    found = largest_number(lambda n: n <= answer, guess=guess, most=6000, parts=parts)
    assert found <= answer < found + max(1, found // parts)


@pytest.mark.parametrize(("guess", "trials"), [(1000, 2), (1001, 2), (996, 6), (1010, 8)])
def test_a_good_guess_makes_the_search_short(guess, trials):  # 1000 holds, 1001 does not
    asked = []
    assert largest_number(lambda n: bool(asked.append(n)) or n <= 1000, guess=guess, most=10**9) == 1000
    assert len(asked) <= trials


# What fits 15,127 MiB unmanaged with saved tensors only: arithmetic gives 227, 182 and 85; a fused batch norm does not
# keep the output of ResNet's first ReLU, 3.21 of 85.1 and 179 MB an image.
@pytest.mark.parametrize(("model", "batch"), [("vgg16", 227), ("resnet50", 189), ("resnet152", 87)])
def test_the_largest_unmanaged_batch_on_a_p100_is_within_3_percent_of_the_arithmetic(model, batch):
    found = largest_batch(setup(model, "none"), P100_BYTES)
    assert abs(found.batch - batch) <= 0.03 * batch
    assert "policy 'none' evicts nothing" in found.limit and str(found.batch + 1) in found.limit


@pytest.mark.parametrize(("model", "batch"), [("vgg16", 500), ("resnet50", 2180)])
def test_passive_mode_reaches_90_percent_of_what_whole_operations_allow(model, batch):
    found = largest_batch(setup(model), P100_BYTES)
    assert found.batch >= batch
    assert "alone needs" in found.limit


@pytest.mark.parametrize("policy", ["none", "passive", "recompute"])
@pytest.mark.parametrize("budget", [900 * KIB, 3000 * KIB])
def test_the_largest_batch_fits_and_one_more_does_not(policy, budget):
    what = setup(**LENET, policy=policy)
    found = largest_batch(what, budget).batch
    assert fits(what, found, budget) and not fits(what, found + 1, budget)


@pytest.mark.parametrize(("policy", "host"), [("none", 0), ("passive", 10**9), ("passive", 0), ("recompute", 10**9)])
@pytest.mark.parametrize("batch", [1, 24, 100])
def test_the_smallest_budget_is_enough_and_one_alignment_less_is_not(policy, host, batch):
    what = setup(**LENET, policy=policy, host=host)
    least = smallest_budget(what, batch)
    assert least % ALIGNMENT == 0
    assert fits(what, batch, least) and not fits(what, batch, least - ALIGNMENT)


def test_the_smallest_budget_of_a_managed_run_is_its_largest_operation():
    what = setup(**LENET)
    # 24 x 6 x 28 x 28 floats are 451,584 bytes: tanh's gradient reads two of these and writes over one of them.
    demand = what.demand(24)
    assert (demand.largest_op, demand.largest_op_bytes) == ("tanh_grad", 2 * 451_584)
    assert smallest_budget(what, 24) == 2 * 451_584


def test_host_memory_is_named_where_it_is_the_limit_and_recomputation_does_not_count():
    budget = 3000 * KIB
    plenty = largest_batch(setup(**LENET), budget)
    assert plenty.batch > 64 and "alone needs" in plenty.limit
    scarce = setup(**LENET, host=700 * KIB)
    found = largest_batch(scarce, budget)
    assert 0 < found.batch < plenty.batch
    assert "700.0 KiB of host memory" in found.limit
    assert scarce.trial(found.batch, budget).recomputed_bytes == 0
    beyond = scarce.trial(found.batch + 1, budget)
    assert beyond.shortage is not None or beyond.recomputed_bytes > 0


def test_a_shortage_is_read_from_the_errors_fields_and_not_from_its_words():
    def program(batch):
        raise OutOfMemory("host memory is full", op="relu", host_full=batch > 1)

    what = Setup(program, device.create("sim:p100"), "passive", 0)
    assert what.trial(1, KIB).shortage == Shortage("relu", host_full=False)
    assert what.trial(2, KIB).shortage == Shortage("relu", host_full=True)


# Of the 1024 bytes, 512 are a leaf's, which only the host can take. If it does, the arena itself is what is too small.
@pytest.mark.parametrize(("policy", "host", "nbytes", "full"), [
    ("passive", 0, 768, True), ("passive", 4096, 1280, False), ("none", 0, 768, False)])
def test_an_operation_that_does_not_fit_carries_its_numbers_and_whether_the_host_was_full(policy, host, nbytes, full):
    with Runtime("sim:p100", memory_budget=1024, host_memory=host, policy=policy) as runtime:
        leaf = runtime.tensor(None, shape=(128,))
        with pytest.raises(OutOfMemory) as error:
            runtime.tensor(None, shape=(nbytes // 4,))
        refused = error.value
        assert (refused.op, refused.need_bytes, refused.budget_bytes) == ("upload", nbytes, 1024)
        assert refused.host_full is full and ("host memory is full" in str(refused)) is full
        del leaf


def test_a_policy_that_recomputes_is_not_limited_by_recomputing():
    what = setup(**LENET, policy="recompute", host=10**6)
    assert largest_batch(what, 3000 * KIB).batch >= largest_batch(replace(what, policy="none"), 3000 * KIB).batch


def test_the_search_stops_at_the_number_of_images_there_are():
    found = largest_batch(setup(**LENET), 2**30, most=100)
    assert (found.batch, found.limit) == (100, "there is no more than 100")


def test_a_search_that_comes_by_a_batch_that_the_network_refuses_goes_on(capsys):
    """From far above, where the host would hold it, down to one: ResNet-18's last maps are 1x1, and batch norm then
    refuses a single image."""
    flags = ["--model", "resnet18", "--image-size", "32", "--no-fused", "--memory-budget", "300MiB", "--slices", "1"]
    assert train.main([*flags, "--policy", "passive", "--device", "sim:p100", "--steps", "2", "--batch", "max"]) == 0
    assert int(re.search(r"the largest batch is (\d+)", capsys.readouterr().out)[1]) > 1000


def test_no_batch_fits_a_budget_below_the_parameters_update():
    found = largest_batch(setup(**LENET), 100 * KIB)
    assert found.batch == 0 and "sgd_momentum_" in found.limit


@pytest.mark.parametrize("on", ["cpu:virtual", "sim:p100"])
def test_nothing_is_launched_on_the_device_itself(on):
    what = setup(**LENET, on=on)
    largest_batch(what, 3000 * KIB)
    smallest_budget(what, 24)
    assert what.device.positions == [0, 0, 0] and what.device.now() == 0.0


def test_cpu_and_a_simulator_agree_on_demand():
    assert setup(**LENET, on="cpu").demand(24) == setup(**LENET).demand(24)


def test_the_unmanaged_speed_is_modelled_on_a_simulator_only():
    assert setup(**LENET, on="cpu").unmanaged_seconds(24) is None
    seconds = setup("resnet50").unmanaged_seconds(64)
    assert seconds == pytest.approx(64 / 219, rel=0.1)  # the profile's calibration: 219 images/s


def test_a_step_is_tried_under_its_first_plan_where_there_are_plans_and_a_model_of_time():
    """A ResNet-20 in three quarters of its peak loses little once it is planned, and much before."""
    tried = {policy: setup("resnet20", policy, shape=(3, 32, 32)) for policy in ("auto", "capuchin", "passive")}
    budget = tried["auto"].demand(512).unmanaged_peak_bytes * 3 // 4
    unmanaged = tried["auto"].unmanaged_seconds(512)
    assert unmanaged <= tried["auto"].planned_seconds(512, budget) < 1.05 * unmanaged
    assert unmanaged < tried["capuchin"].planned_seconds(512, budget) < 1.5 * unmanaged
    assert tried["auto"].planned_seconds(512, budget // 20) == inf
    assert tried["passive"].planned_seconds(512, budget) is None
    assert setup("resnet20", "auto", on="cpu:virtual").planned_seconds(512, budget) is None


@pytest.mark.parametrize(("seconds", "chosen"), [
    ({4: 2.0, 8: 1.5}, 8), ({4: 1.5, 8: 2.0}, 4), ({4: 2.0, 8: 2.0}, 4), ({4: inf, 8: 3.0}, 8),
    ({4: None, 8: None}, 4)])
def test_twice_as_many_slices_are_taken_if_a_planned_step_is_faster(seconds, chosen, monkeypatch):
    monkeypatch.setattr(Setup, "planned_seconds", lambda self, batch, budget: seconds[self.slices])
    cut = faster(setup("lenet", shape=(1, 32, 32)), Cut(4, "large"), 100, 1 << 30)
    assert cut.slices == chosen and cut.why.startswith("large")
    assert ("a step takes" in cut.why) == (chosen == 8)


def test_slices_are_compared_with_limited_work_and_left_as_they_are_without_an_answer(monkeypatch):
    """Whichever of the two plans the limit ends counts as infinitely slow, and says nothing of the other."""
    def told(self, batch, budget):
        self.work.spent += slices.COMPARING * 0.6
        return inf if self.work.over else 1.0

    monkeypatch.setattr(Setup, "planned_seconds", told)
    cut = Cut(4, "large")
    assert faster(setup("lenet", shape=(1, 32, 32)), cut, 100, 1 << 30) is cut


@pytest.mark.parametrize(("slices", "batch"), [(1, 100), (4, 4)])
def test_what_is_whole_or_cannot_be_cut_further_is_not_tried(slices, batch, monkeypatch):
    monkeypatch.delattr(Setup, "planned_seconds")
    cut = Cut(slices, "as it is")
    assert faster(setup("lenet"), cut, batch, 1 << 30) is cut


def test_a_simulator_has_its_profiles_memory_and_cpu_shares_of_what_is_free(monkeypatch):
    monkeypatch.setattr(default_memory, "free_memory", lambda: 10**9)
    assert default_memory.default_memory(device.create("sim:p100")) == (P100_BYTES, 256 * 10**9)
    assert default_memory.default_memory(device.create("cpu")) == (6 * 10**8, 3 * 10**8)
    monkeypatch.setattr(default_memory, "free_memory", lambda: None)
    assert default_memory.default_memory(device.create("cpu")) == (16 * 2**30, 16 * 2**30)


def test_a_gpu_has_a_budget_of_its_own_memory_whatever_is_free_on_the_host(monkeypatch):
    profile = replace(profiles.get("h100"), memory_bytes=78 << 30, host_memory_bytes=16 << 30)
    gpu = JudgedCuda(profile)
    for free in (32 << 30, 256 << 30):  # 0.6 of 32 GiB would be 19.2
        monkeypatch.setattr(default_memory, "free_memory", lambda free=free: free)
        assert default_memory.default_memory(gpu) == (78 << 30, 16 << 30)
    gpu.close()


@pytest.mark.parametrize("policy", ["none", "passive"])
def test_what_a_gpu_keeps_of_a_budget_for_itself_is_counted(policy):
    def gpu():
        return JudgedCuda(profiles.get("cpu"), reserve_bytes=1 << 20)

    what = replace(setup(**LENET, policy=policy, host=1 << 30), device=gpu())
    least = smallest_budget(what, 8)
    assert least >= what.needed_bytes(what.demand(8)) > 1 << 20
    assert fits(what, 8, least) and not fits(what, 8, least - ALIGNMENT)
    for budget, enough in ((least, True), (least - ALIGNMENT, False)):
        with Runtime(gpu(), memory_budget=budget, host_memory="64MiB", policy=policy) as runtime:
            program = what.program(8)
            try:
                program.step()
                assert enough and runtime.stats().calls > 20
            except OutOfMemory:
                assert not enough


# What is announced holds for what runs -------------------------------------------------------------------------------
ON_SIM = ["--device", "sim:p100", "--steps", "12"]
ON_CPU = ["--data", "digits", "--device", "cpu:virtual", "--host-memory", "64MiB"]


@pytest.mark.parametrize("flags", [
    ["--model", "resnet20", "--no-fused", "--policy", "none", "--memory-budget", "100MiB", *ON_SIM],
    ["--model", "bert-tiny", "--attention", "fused", "--policy", "none", "--memory-budget", "200MiB", *ON_SIM],
    pytest.param(["--model", "lenet", "--policy", "auto", "--placement", "bfc", "--memory-budget", "3MiB", *ON_SIM],
                 marks=pytest.mark.full),
    ["--model", "lenet", "--policy", "passive", "--placement", "caching", "--memory-budget", "8MiB", *ON_SIM],
    ["--model", "mlp", "--policy", "none", "--memory-budget", "7MiB", *ON_CPU, "--epochs", "1"],
])
def test_the_largest_batch_trains_as_the_flags_say(flags, capsys):
    assert train.main([*flags, "--batch", "max"]) == 0
    assert "the largest batch is" in capsys.readouterr().out


@pytest.mark.parametrize("steps", [2, 7])
def test_where_memory_drifts_no_more_steps_are_tried_than_will_be_trained(steps):
    made = []

    def program(batch):
        """Each step makes another tensor that stays, so that no two leave the same holes."""
        runtime, kept = current_runtime(), []

        def one():
            with runtime.iteration():
                kept.append(runtime.tensor(None, shape=(64,)))
            made.append(len(kept))
        return TrainingParts(one)

    what = Setup(program, device.create("sim:p100"), "none", 0, placement="caching", steps=steps)
    assert fits(what, 1, 1 << 20) and max(made) == 2 + steps  # two without drift come first


@pytest.mark.parametrize(("host", "steps", "tried"), [(1.0, 200, 8), (1.0, 5, 5), (2.0, 200, 2)])
def test_where_the_host_is_nearly_full_more_iterations_are_tried(host, steps, tried):
    """What the host holds differs from iteration to iteration: the third may fail where two have run."""
    what, count = setup(**LENET), []
    budget = what.demand(100).largest_op_bytes
    held = _host_peak(what, 100, budget)

    def program(batch):
        inner = what.program(batch)
        return TrainingParts(lambda: (count.append(batch), inner.step()))

    trial = replace(what, program=program, host_memory=int(host * held), steps=steps).trial(100, budget)
    assert trial.shortage is None and len(count) == tried
    assert trial.swapped_out_bytes == what.trial(100, budget).swapped_out_bytes  # of the first two


@pytest.mark.parametrize("policy", ["capuchin", "passive"])
def test_where_the_host_is_nearly_full_plans_are_tried_too(policy):
    """A plan keeps other tensors there than paging on demand: this batch trains without one, and died in its third
    step with one."""
    what, devices = replace(setup(**LENET, policy=policy, host=481_908), slices=4), []
    budget = 3_751_194

    def program(batch):
        inner = what.program(batch)
        return TrainingParts(lambda: (devices.append(current_runtime().device.name), inner.step()))

    def trained():
        try:
            with what._twin(device.create("sim:p100"), 256, budget):
                inner = what.program(256)
                for _ in range(12):
                    inner.step()
        except OutOfMemory:
            return False
        return True

    assert fits(replace(what, program=program), 256, budget) == trained()
    assert set(devices) == {"dry sim:p100"} | ({"sim:p100"} if policy == "capuchin" else set())
    assert devices.count("dry sim:p100") == 8


def runs(monkeypatch, nearly_full, *, two, eight):
    """Let trials of two and of eight iterations find room for so many examples in each slice."""
    def trial(self, batch, budget, *, thorough=False, planned=False):
        most = (eight if thorough else two) * self.slices
        return fit.Trial(Shortage("add", True) if batch > most else None, 0, 0, nearly_full)

    monkeypatch.setattr(Setup, "trial", trial)


@pytest.mark.parametrize(("nearly_full", "answer"), [(True, 80), (False, 100)])
def test_what_only_two_iterations_have_run_is_not_the_largest_batch_if_the_host_was_nearly_full(nearly_full, answer,
                                                                                               monkeypatch):
    runs(monkeypatch, nearly_full, two=100, eight=80)
    assert largest_batch(setup(**LENET), 1 << 30, full_host=True).batch == answer


@pytest.mark.parametrize("nearly_full", [True, False])
def test_nor_is_it_in_slices(nearly_full, monkeypatch):
    """Found to a 32nd."""
    runs(monkeypatch, nearly_full, two=100, eight=80)
    monkeypatch.setattr(largest, "cut_that_holds", lambda setup, batch, budget: replace(setup, slices=min(batch, 10)))
    found, least = largest_batch_cut(setup(**LENET), 1 << 30), 800 if nearly_full else 1000
    assert found.slices == 10 and least - least // 32 <= found.batch <= least
    assert "add finds no room on the device, and none on the host" in found.limit


def _host_peak(what, batch, budget):
    with Runtime("sim:p100", memory_budget=budget, policy="passive") as runtime:
        inner = what.program(batch)
        for _ in range(2):
            inner.step()
        return runtime.stats().host_peak_bytes


@pytest.mark.full
def test_what_the_compiler_leaves_behind_holds_no_memory_of_a_run_that_just_fits(tmp_path):
    """In a process that compiles all kernels, and in which Python looks for no cycles."""
    program = ("import gc, train; gc.collect(); gc.disable()\n"
               f"raise SystemExit(train.main({['--model', 'mlp', *ON_CPU, '--policy', 'none', '--epochs', '1']!r}\n"
               "                            + ['--memory-budget', '7MiB', '--batch', 'max']))")
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
                           cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-300:]


def test_unfused_operations_need_more_and_that_is_known(capsys):
    found = []
    for flags in ([], ["--no-fused"]):
        assert train.main(["--model", "resnet18", "--image-size", "32", "--policy", "none", "--memory-budget", "400MiB",
                           "--device", "sim:p100", "--steps", "3", "--batch", "max", *flags]) == 0
        found.append(int(re.search(r"the largest batch is (\d+)", capsys.readouterr().out)[1]))
    assert found[1] < found[0]


@pytest.mark.default(policy=["passive"])
@pytest.mark.parametrize("policy", ["none", "passive"])
def test_the_look_at_test_data_fits_what_the_steps_fit(capsys, policy):
    flags = ["--model", "mlp", *ON_CPU, "--policy", policy, "--batch", "24", "--steps", "3"]
    assert train.main([*flags, "--memory-budget", "100%"]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert train.main([*flags, "--memory-budget", "1MiB"]) == 2
    least = int(re.search(r"smallest budget that would do is (\d+) bytes", capsys.readouterr().err)[1])
    assert train.main([*flags, "--memory-budget", str(least)]) == 0
    assert train.main([*flags, "--memory-budget", str(least - ALIGNMENT)]) == 2


def test_advice_is_given_in_sizes_that_flags_take(capsys):
    flags = ["--model", "lenet", "--batch", "64", "--slices", "1", "--steps", "2"]
    assert train.main([*flags, "--memory-budget", "80%"]) == 0
    advised = re.search(r"--memory-budget (\S+): in that nothing", capsys.readouterr().out)[1]
    assert advised.endswith("MiB")
    assert train.main([*flags, "--memory-budget", advised]) == 0
    assert "0 B out, 0 B in, 0 B recomputed" in capsys.readouterr().out


def test_a_policy_that_lets_nothing_go_is_named_and_not_the_host():
    class Miser(Passive):
        name = "miser"

        def victims(self, resident, pressure):
            return ()

    with Runtime("sim:p100", memory_budget=1024, host_memory=1 << 20, policy=Miser()) as runtime:
        leaf = runtime.tensor(None, shape=(128,))
        with pytest.raises(OutOfMemory, match="1 tensors resident; policy 'miser' let none of them go$") as error:
            runtime.tensor(None, shape=(192,))
        assert not error.value.host_full
        del leaf
