"""The miniature engine of the course decides as the engine does, on the traces of three small networks.

The miniature counts bytes and knows no addresses. So the engine runs where addresses decide nothing: on a simulated GPU
that moves bytes within its memory in no time. There the engine slides free blocks together, and never evicts a tensor
to make one piece of them. (That holds for up to some 250 blocks. With more the engine first looks at the blocks around
the largest hole, and may evict one.) The traces have no workspaces and no outputs that may take over an input's bytes,
as the miniature has neither. Sizes are multiples of the arena's alignment, and host memory is ample.

Two iterations are compared: each copy, each replayed call and each tensor that leaves, at its place between the calls
of the program. Tensors that leave between two pieces of work are compared as a set, since the engine's recorder does
not say in which order they left.
"""

import re
import sys
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from networks import NETWORKS, OPTIMIZERS

import engine
from engine import Call, Engine
from minidl import OutOfMemory, Runtime
from minidl.device import profiles
from minidl.lab.traced import TracedDevice, TracedProgram
from minidl.meta import ALIGNMENT, Algorithm, aligned, int64
from minidl.ops.loss import cross_entropy
from minidl.plan.plan import Action, Eviction
from minidl.plan.trace import Trace
from minidl.policies.passive import Passive
from minidl.view.recorded import Recorded
from minidl.view.recorder import StepRecorder
from minidl.view.recording import EventKind, Fate

AMPLE = 1 << 34  # bytes
ITERATIONS = 2  # the second begins with gradients of the first one, and with parameters on the host
SLIDES_AT_ONCE = replace(profiles.named("p100"), memory_bandwidth=1e24)
CASES = {"vgg": "momentum", "resnet": "momentum", "branching": "momentum"}
VERBS = {EventKind.CALL: "run", EventKind.REPLAY: "replay", EventKind.COPY_OUT: "copy out",
         EventKind.COPY_IN: "copy in"}
LEAVES = {Fate.SWAPPED: "swap", Fate.DROPPED: "drop"}
SOURCE = Path(engine.__file__).read_text(encoding="utf-8")
Log = list[tuple[str, str]]


class Dropping(Passive):
    """Drops from the front of the access list."""

    def victims(self, resident, pressure):
        return [Eviction(tensor_id, Action.DROP) for tensor_id, _ in super().victims(resident, pressure)]


@cache
def trace_of(network: str) -> Trace:
    """The second training step of a network, with no more in it than the miniature has."""
    make, shape = NETWORKS[network]
    with Runtime("sim:p100", policy="none", memory_budget=AMPLE) as runtime:
        model = make()
        optimizer = OPTIMIZERS[CASES[network]](model)
        for _ in range(2):
            with runtime.iteration():
                labels = runtime.tensor(None, shape=shape[:1], dtype=int64)
                loss = cross_entropy(model(runtime.tensor(None, shape=shape)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                trace = runtime.trace()
    used = trace.uses.keys()
    calls = [replace(call, op=f"{call.op} {n}", algorithms=(Algorithm("", call.seconds),), donated=(), may_donate=(),
                     leaves=(), frees=tuple(t for t in call.frees if t in used)) for n, call in enumerate(trace.calls)]
    return Trace(tuple(calls), {t: replace(trace.tensors[t], nbytes=aligned(trace.tensors[t].nbytes)) for t in used})


@cache
def peak(network: str) -> int:
    """Bytes of the device that the miniature has in use at most, if it has all that it wants."""
    trace = trace_of(network)
    alive = sum(t.nbytes for t in trace.tensors.values() if t.persistent)
    most = 0
    for call in trace.calls:
        alive += sum(trace.tensors[t].nbytes for t in call.outputs)
        most = max(most, alive)
        alive -= sum(trace.tensors[t].nbytes for t in call.frees)
    return most


def in_groups(log: Log) -> Log:
    """A log in which what leaves between two pieces of work is sorted."""
    found: Log = []
    leaving: Log = []
    for verb, name in [*log, ("end", "")]:
        if verb in LEAVES.values():
            leaving.append((verb, name))
        else:
            found += [*sorted(leaving), (verb, name)]
            leaving = []
    return found


# The engine ----------------------------------------------------------------------------------------------------------
def decided(recorded: Recorded) -> Log:
    """Return the engine's decisions in an iteration, without moves within the device: the miniature makes none."""
    names, copies, log = [str(seen.tensor_id) for seen in recorded.tensors], (EventKind.COPY_OUT, EventKind.COPY_IN), []
    for n, event in enumerate(recorded.events):
        log += [(LEAVES[stay.fate], names[stay.subject]) for stay in recorded.stays
                if stay.end == n and stay.fate in LEAVES]
        if event.kind in VERBS:
            log.append((VERBS[event.kind], names[event.subject] if event.kind in copies else event.op))
    return log


@cache
def engines(network: str, budget: int, drops: bool) -> Log:
    """Train a network's trace in the engine; return its decisions. Raises OutOfMemory."""
    trace, log = trace_of(network), []
    with Runtime(TracedDevice(SLIDES_AT_ONCE, trace), policy=Dropping() if drops else Passive(), memory_budget=budget,
                 host_memory=AMPLE) as runtime:
        program = TracedProgram(trace)
        for _ in range(ITERATIONS):
            recorder = StepRecorder(runtime)
            with recorder.recording(), runtime.iteration():
                program.step()
            log += decided(recorder.recorded)
    return in_groups(log)


# The miniature -------------------------------------------------------------------------------------------------------
def mixing(position: int, sizes: list[int], written: list[int]):
    """An operation whose outputs, and what it writes in place, depend on every byte of its inputs."""
    def compute(*arrays):
        seed = zlib.crc32(b"".join(array.tobytes() for array in arrays), position)
        for n in written:
            arrays[n][:] += np.uint8(1 + seed % 255)
        return [np.random.default_rng([seed, n]).integers(0, 256, size, np.uint8) for n, size in enumerate(sizes)]
    return compute


def program_of(trace: Trace) -> list[Call]:
    """A trace as calls of the miniature."""
    def names(ids) -> tuple[str, ...]:
        return tuple(map(str, ids))

    program = []
    for n, call in enumerate(trace.calls):
        sizes = [trace.tensors[t].nbytes for t in call.outputs]
        written = [position for position, t in enumerate(call.inputs) if t in call.writes]
        program.append(Call(call.op, names(call.inputs), names(call.outputs), tuple(sizes), mixing(n, sizes, written),
                            names(call.writes), names(call.frees), call.replayable))
    return program


def miniature(network: str, budget: int, drops: bool, kind: type[Engine] = Engine) -> tuple[Log, dict[str, bytes]]:
    """Train a network's trace in the miniature; return its decisions and final values. Raises MemoryError."""
    trace = trace_of(network)
    small, program = kind(budget, drops=drops), program_of(trace)
    for tensor in sorted((t for t in trace.tensors.values() if t.persistent), key=lambda t: -t.tensor_id):
        small.leaf(str(tensor.tensor_id), np.zeros(tensor.nbytes, np.uint8))
    small.log.clear()
    for _ in range(ITERATIONS):
        small.iterate(program)
        assert small.used == sum(t.nbytes for t in small.device) <= budget
    values = {name: small.device.get(tensor, small.host.get(tensor)) for name, tensor in small.known.items()}
    return in_groups(small.log), {name: value.tobytes() for name, value in values.items()}


@cache
def unmanaged(network: str) -> dict[str, bytes]:
    """The values that a network's step ends with where nothing is evicted."""
    log, values = miniature(network, AMPLE, False)
    assert all(verb in ("run", "end") for verb, _ in log)
    return values


def budget_of(network: str, percent: int) -> int:
    return peak(network) * percent // 100 // ALIGNMENT * ALIGNMENT


def least(network: str) -> int:
    """The operands of the largest operation, in bytes."""
    trace = trace_of(network)
    return max(sum(trace.tensors[t].nbytes for t in {*call.inputs, *call.outputs}) for call in trace.calls)


@pytest.mark.parametrize("drops", [False, True], ids=["swaps", "drops"])
@pytest.mark.parametrize("percent", [95, 80, 60, 50])
@pytest.mark.parametrize("network", CASES)
def test_the_miniature_evicts_copies_and_replays_as_the_engine_does_and_changes_no_value(network, percent, drops):
    budget = budget_of(network, percent)
    log, values = miniature(network, budget, drops)
    assert log == engines(network, budget, drops)
    assert {verb for verb, _ in log} >= ({"drop", "replay"} if drops else {"copy out", "swap", "copy in"})
    assert values == unmanaged(network)


@pytest.mark.parametrize("drops", [False, True], ids=["swaps", "drops"])
@pytest.mark.parametrize("network", CASES)
def test_both_run_in_the_bytes_of_the_largest_operation_and_neither_in_less(network, drops):
    needed = least(network)
    log, values = miniature(network, needed, drops)
    assert log == engines(network, needed, drops) and values == unmanaged(network)
    with pytest.raises(MemoryError, match=f"and {needed - ALIGNMENT} in all"):
        miniature(network, needed - ALIGNMENT, drops)
    with pytest.raises(OutOfMemory):
        engines(network, needed - ALIGNMENT, drops)


# Planted bugs --------------------------------------------------------------------------------------------------------
MUTANTS = {
    "the tensor that was accessed last leaves first": ("tensor.first_access or 0\n", "-(tensor.first_access or 0)\n"),
    "sizes do not matter": ("size = 0 if nbytes <= tensor.nbytes <= 2 * nbytes else", "size = 0 if True else"),
    "what the iteration has not used leaves first": ("return tensor.first_access is None,",
                                                     "return tensor.first_access is not None,"),
    "the copy on the host is forgotten": ("if tensor not in self.host:", "if True:"),
    "a write leaves the copy on the host": ("            self.host.pop(tensor, None)\n        self.writing",
                                            "        self.writing"),
    "a replay keeps nothing": ("                    self.free(read)\n",
                               "                    self.free(read)\n"
                               "        for tensor in [t for t in self.kept.keys() - {*targets} if self.may_drop(t)]:\n"
                               "            self.drop(tensor)\n"),
    "what a replay has kept is not the first to go": ("                self.kept[output] = None\n", ""),
    "what a replay has kept goes first, used or not": ("            self.kept.pop(tensor, None)\n            if",
                                                       "            if"),
    "a replay drops what it starts from": ("        self.protected |= fresh\n        for read in left",
                                           "        for read in left"),
    "operands leave": ("if tensor in self.device and tensor not in stay)", "if tensor in self.device)"),
    "what needs the old bytes is lost": ("while targets and", "while False and"),
    "a freed tensor stays": ("        if not tensor.users and", "        if False and"),
    "an iteration goes on with the access list of the last one": ("            tensor.first_access = None\n",
                                                                  "            pass\n"),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_bug_in_the_miniature_is_found(bug):
    right, wrong = MUTANTS[bug]
    assert SOURCE.count(right) == 1
    module = ModuleType("mutant")
    exec(compile(SOURCE.replace(right, wrong), "mutant", "exec"), vars(module))
    assert any(differs(network, percent, drops, module.Engine) for network, percent, drops in
               (("branching", 60, False), ("vgg", 50, True), ("resnet", 50, True), ("branching", 45, True)))


def differs(network: str, percent: int, drops: bool, kind: type[Engine]) -> bool:
    """True if a miniature's decisions or final values differ from the engine's, or if the miniature fails."""
    budget = budget_of(network, percent)
    try:
        log, values = miniature(network, budget, drops, kind)
    except (AssertionError, KeyError, MemoryError, RecursionError):
        return True
    return log != engines(network, budget, drops) or values != unmanaged(network)


def test_the_comparison_finds_nothing_in_the_miniature_itself():
    assert not differs("branching", 60, True, Engine)


def test_the_example_of_the_courses_page_prints_what_stands_below_it(capsys):
    page = (Path(engine.__file__).parent / "README.md").read_text(encoding="utf-8")
    program, printed = re.findall(r"^```(?:python)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_miniature_is_one_file_of_at_most_300_lines_and_needs_numpy_alone():
    assert len(SOURCE.splitlines()) <= 300
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", SOURCE, re.MULTILINE))
    assert imported - sys.stdlib_module_names == {"numpy"}
