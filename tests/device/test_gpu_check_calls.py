"""The check of a GPU in several calls: how the minutes are divided, and what a later call need not find again."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bench.gpu_check import command as gpu
from bench.gpu_check import models, ops, warm
from bench.gpu_check.setting import Record, Setting
from bench.gpu_check.sizes import NAMED, TINY
from bench.support.kernel_cases import Case


@pytest.fixture
def calls(monkeypatch):
    """The commands of the parts, none of which is run, by part: (seconds, what its file held)."""
    made = {}

    def run(command, *, timeout, check, env):
        option = dict(zip(command[3::2], command[4::2], strict=True))
        path = gpu.part_file(gpu.Path(option["--out"]), option["--one"])
        made[option["--one"]] = float(option["--seconds"]), gpu.read(path)
        if not path.exists():
            path.write_text(json.dumps({"found": {"a": 1}, "failures": [], "left out": LEFT[option["--one"]]}))
        return SimpleNamespace(returncode=0)
    monkeypatch.setattr(gpu.subprocess, "run", run)
    monkeypatch.setattr(gpu, "markdown", str)
    return made


LEFT = {"link": [], "host": ["b"], "models": []}


def test_the_minutes_are_divided_among_the_parts_that_were_asked_for(calls, tmp_path):
    common = ["--device", "sim:p100", "--out", str(tmp_path)]
    gpu.main([*common, "--parts", "models", "--minutes", "9"])
    assert calls["models"][0] == pytest.approx(540, abs=1)
    gpu.main([*common, "--parts", "host", "link", "--minutes", "1"])
    assert calls["link"][0] == pytest.approx(20, abs=1)  # 10 of 10 + 20 shares
    assert calls["host"][0] == pytest.approx(60, abs=1)  # for the link took none of its 20


def test_a_part_that_left_something_out_goes_on_and_one_that_ended_well_begins_anew(calls, tmp_path):
    common = ["--device", "sim:p100", "--out", str(tmp_path), "--parts", "link", "host"]
    gpu.main(common)
    assert calls["link"][1] == calls["host"][1] == {}
    gpu.main(common)
    assert calls["link"][1] == {} and calls["host"][1] == {"found": {"a": 1}, "failures": [], "left out": ["b"]}
    gpu.main([*common, "--anew"])
    assert calls["host"][1] == {}
    gpu.main([*common, "--sizes", "tiny"])  # another check
    assert calls["host"][1] == {}


def test_what_was_found_without_a_failure_is_known_and_what_failed_is_found_again():
    record = Record(before={"found": {"a in fp32": 1, "b in fp32": 2}, "failures": ["b in fp32: off by 1"],
                            "left out": ["c"]})
    assert record.known("a in fp32") and not record.known("b in fp32") and not record.known("c")
    record.put("b in fp32", 3, "")
    assert not record.known("b in fp32")  # of this call itself
    assert record.as_data() == {"found": {"a in fp32": 1, "b in fp32": 3}, "failures": [], "left out": []}


def test_networks_that_were_compared_are_not_compared_again(monkeypatch, tmp_path):
    compared = []
    monkeypatch.setattr(models, "find_spec", lambda name: name)
    monkeypatch.setattr(models, "compare", lambda setting, record, training, precision: compared.append(
        f"{training.model} in {precision}"))
    given = Setting("cpu:virtual", replace(TINY, precisions=("bf16",)), tmp_path)
    models.measure(given, Record(tell=lambda line: None))
    every = list(compared)
    compared.clear()
    models.measure(given, Record(tell=lambda line: None, before={"found": {every[0]: {}}, "failures": []}))
    assert compared == every[1:] and len(every) > 1


def test_a_kernel_that_does_not_compile_is_told_of_and_the_others_are_compiled(monkeypatch):
    def compile_one(source, capability):
        if source.name == "b":
            raise TypeError("no such name")
    monkeypatch.setattr(warm, "_compile", compile_one)
    monkeypatch.setattr(warm, "ProcessPoolExecutor", lambda processes, mp_context: ThreadPoolExecutor(1))
    done, failed = warm.compile_all([SimpleNamespace(name=name) for name in "abc"], (9, 0), 10.0)
    assert done == 2 and failed == ["b does not compile: TypeError: no such name"]


def test_plans_are_timed_ahead_for_every_network_and_precision_of_the_later_parts():
    for sizes in NAMED.values():
        wanted = warm.trained(sizes)
        assert tuple(wanted) == sizes.precisions
        for networks in wanted.values():
            assert all(each in networks for each in (*sizes.identity, *sizes.speed, *sizes.convolutions))
            assert all(networks.count(each) == 1 for each in networks)
        assert all(each in wanted["tf32"] for each in sizes.managed)


def test_after_a_dead_device_a_new_process_goes_on_behind_the_failed_case(monkeypatch, tmp_path):
    alive, tried = [True], []

    def error_of(runtime, case, dtype, seed, *, permuted):
        tried.append((case.name, permuted))
        if case.name == "exp":
            alive[0] = False
        if not alive[0]:
            raise RuntimeError("an illegal address was met")
        return 0.0
    monkeypatch.setattr(ops, "error_of", error_of)
    monkeypatch.setattr(ops, "answers", lambda runtime: alive[0])
    monkeypatch.setattr(ops, "RANDOM", ())
    monkeypatch.setattr(ops, "check_bits", lambda runtime, record: None)
    monkeypatch.setattr(ops, "larger", lambda: iter([]))
    monkeypatch.setattr(ops.kernel_cases, "cases", lambda block: iter(
        [Case(name, ((5,),), np.negative) for name in ("neg", "exp", "abs")]))
    processes = []

    def run(command, *, timeout, check, env):
        alive[0] = True  # a new process has a new context
        processes.append(gpu.main(command[3:]))
        return SimpleNamespace(returncode=processes[-1])
    monkeypatch.setattr(gpu.subprocess, "run", run)
    gpu.main(["--device", "cpu:virtual", "--sizes", "tiny", "--out", str(tmp_path), "--parts", "ops"])
    assert processes == [gpu.DEAD, 1]
    assert tried == [("neg", False), ("neg", True), ("exp", False), ("abs", False), ("abs", True)]
    found = gpu.read(tmp_path / "gpu.json")["parts"]["ops"]
    assert len(found["failures"]) == 1 and "an illegal address was met" in found["failures"][0]
    assert found["found"]["float32 (fp32)"].keys() == {"neg", "abs"} and "resume" not in found


def test_a_host_time_is_taken_of_fewer_calls_than_a_driver_queues():  # about 1,024, after which the host waits
    assert all(sizes.calls <= 400 for sizes in NAMED.values())
