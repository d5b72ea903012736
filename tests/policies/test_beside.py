"""The functions of planning are compiled in a process beside the training: once, for the types that planning uses."""

import os
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest
import summing
from numba import typeof
from numba.core.dispatcher import Dispatcher

import minidl.outside.writing
from minidl import policies
from minidl.lab.sources import load
from minidl.outside.numba_cache import compile_for, expect, on_disk
from minidl.outside.stages import COMPILATION
from minidl.plan.costs import Costs, Limits
from minidl.policies import beside
from minidl.policies.auto.parts import Question

ROOT = Path(minidl.__file__).parents[1]
LIMIT = 300  # seconds: nothing here takes as long


def python(program, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def test_the_list_has_every_compiled_function_of_planning_with_the_types_that_planning_uses():
    trace = load("lenet:64", "sim:p100")
    others = {value: set(value.signatures) for value in planners()}  # which tests before this one have called
    costs, limits = Costs(1e-10, 1e-10, 1e-5), Limits(3 << 20, 1 << 30)
    assert policies.create("auto").plan(trace, costs, limits).plan.evictions
    assert Question(trace, costs, limits).by_demand()  # where the plan needs none of these
    listed = {function: tuple(map(typeof, arguments)) for function, arguments in beside.functions()}
    for value in planners():
        assert value in listed, value
        assert set(value.signatures) - others.get(value, set()) <= {listed[value]}, value


def planners():
    """The compiled functions of planning."""
    return {value for package in ("minidl.planning", "minidl.policies")
            for found in walk_packages(import_module(package).__path__, f"{package}.")
            for value in vars(import_module(found.name)).values() if isinstance(value, Dispatcher)}


def test_a_function_that_another_process_compiles_is_waited_for_and_not_compiled_here(tmp_path, monkeypatch):
    (tmp_path / "summed.py").write_text(summing.SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    total = import_module("summed").total
    program = ("import time, numpy, summed\n"
               "from minidl.outside.numba_cache import compile_for\n"
               "sys.stdin.readline(); time.sleep(0.5)\n"
               "compile_for(summed.total, (numpy.ones(0),))")
    with python(f"import sys; sys.path[:] = {sys.path!r}\n{program}") as process:
        expect(total, process)
        process.stdin.write("now\n")
        process.stdin.flush()
        before = COMPILATION.count
        assert total(np.ones(3)) == 6.0
        assert COMPILATION.count == before
        assert process.wait(LIMIT) == 0, process.stdout.read()
    assert on_disk(total, (np.ones(0),))
    assert not on_disk(total, (np.ones(0, np.int64),))


def test_a_process_that_fails_is_not_waited_for(tmp_path):
    summing.write(tmp_path)
    total = summing.load(tmp_path)
    with python("raise SystemExit(1)") as process:
        expect(total, process)
        before = COMPILATION.count
        assert total(np.ones(3)) == 6.0
        assert COMPILATION.count > before


class Started:
    """Instead of ``Popen``: notes what was started, which goes on for ever."""

    def __init__(self, command, **options):
        STARTED.append(command)

    def poll(self):
        return None


STARTED = []


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """As on a machine without compiled functions, for the first runtime of a process; they are one function here."""
    summing.write(tmp_path)
    total, ended = summing.load(tmp_path), []
    STARTED.clear()
    monkeypatch.delenv(beside.VARIABLE)
    monkeypatch.setattr(beside, "_started", None)
    monkeypatch.setattr(beside, "functions", lambda: iter([(total, (np.ones(0),))]))
    monkeypatch.setattr(beside.subprocess, "Popen", Started)
    monkeypatch.setattr(beside, "atexit", SimpleNamespace(register=lambda *end: ended.append(end)))
    yield total
    assert len(ended) == len(STARTED)


def test_one_process_is_started_for_all_runtimes(fresh):
    for _ in range(2):
        with minidl.Runtime("cpu", memory_budget="1MiB", policy="auto"):
            pass
    assert len(STARTED) == 1


def test_none_is_started_without_plans_or_on_a_virtual_clock(fresh):
    for device, policy in (("cpu", "passive"), ("cpu:virtual", "auto"), ("sim:p100", "auto")):
        with minidl.Runtime(device, memory_budget="1MiB", policy=policy):
            pass
    assert not STARTED


def test_none_is_started_if_the_functions_are_on_disk_or_the_variable_forbids_it(fresh, monkeypatch):
    monkeypatch.setenv(beside.VARIABLE, "0")
    beside.begin()
    monkeypatch.delenv(beside.VARIABLE)
    compile_for(fresh, (np.ones(0),))
    beside.begin()
    assert not STARTED


def test_the_process_ends_with_its_parent(tmp_path):
    with python("from minidl.policies.beside import main; main()", env={"NUMBA_CACHE_DIR": str(tmp_path)},
                cwd=ROOT) as process:
        process.stdin.close()
        assert process.wait(LIMIT) == 1


def test_a_locked_folder_is_refused_or_waited_for(tmp_path):
    program = ("import sys, pathlib\nfrom minidl.outside.writing import lock_folder\n"
               "folder = pathlib.Path(sys.argv[1])\n"
               "try:\n    lock_folder(folder, wait=False)\nexcept BlockingIOError:\n    print('held', flush=True)\n"
               "lock_folder(folder, wait=True)\nprint('mine')")
    held = minidl.outside.writing.lock_folder(tmp_path, wait=False)
    assert held is not None
    with python(program, tmp_path, cwd=ROOT) as process:
        assert process.stdout.readline() == "held\n"
        sleep(0.3)  # it waits by now
        os.close(held)
        assert process.stdout.readline() == "mine\n"
        assert process.wait(LIMIT) == 0


PROGRAM = """
from minidl.outside.stages import COMPILATION
from minidl.policies import beside, create
{story}
print(COMPILATION.count)
"""
PLANS = """
from minidl.lab.sources import load
from minidl.plan.costs import Costs, Limits
beside.begin()
plan = create("auto").plan(load("lenet:64", "sim:p100"), Costs(1e-10, 1e-10, 1e-5), Limits(3 << 20, 1 << 30)).plan
assert plan.evictions
"""


@pytest.mark.full
def test_on_a_fresh_machine_two_processes_compile_each_function_once_and_a_training_none(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), beside.VARIABLE: "1"}
    options = {"env": environment, "cwd": ROOT}
    with ExitStack() as ended:
        running = [ended.enter_context(python(PROGRAM.format(story=story), **options))
                   for story in (PLANS, *("beside.NICENESS = 0; beside.main()",) * 2)]
        planned, *counts = [int(process.stdout.read()) for process in running]
    assert planned == 0 and min(counts) == 0  # the first of the others has the lock, until nothing is left to compile
