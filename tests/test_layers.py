"""Layers point one way; CUDA stays in its corner; the executor names nobody; a simulation loads no numerics.

Imports are read from the source: those inside functions count, and those under TYPE_CHECKING too.
"""

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import minidl.ops
from minidl import device
from minidl.device.profiles import PROFILES
from minidl.kernels.cpu import KERNELS
from minidl.op import READ, Op
from minidl.policies import POLICIES

ROOT = Path(__file__).resolve().parent.parent

# Right may import left, never the other way; what shares a line may import each other. A module belongs to the longest
# name here that it starts with; ``minidl`` itself is what a user imports: all up to the runtime.
LAYERS: list[tuple[str, ...]] = [
    ("minidl.meta", "minidl.errors", "minidl.outside", "minidl.ranks", "minidl.cli.console", "minidl.cli.command"),
    ("minidl.plan",),
    ("minidl.planning",),
    ("minidl.policies", "minidl.placements"),
    ("minidl.report.decisions", "minidl.view.recording", "minidl.view.packing", "minidl.view.page"),
    ("minidl.torch",),
    ("minidl.op", "minidl.parts.slice_rules"),
    ("minidl.kernels",),
    ("minidl.device",),
    ("minidl.memory",),
    ("minidl.executor", "minidl.context", "minidl.parts.keeper"),
    ("minidl.tensor", "minidl.surface", "minidl.dispatch"),
    ("minidl.ops",),
    ("minidl.autograd", "minidl.ops.custom", "minidl.ops.grad_modes", "minidl.ops.gradients", "minidl.parts"),
    ("minidl.runtime", "minidl.ops.creation", "minidl.ops.more_creation", "minidl.ops.interop", "minidl.cuda",
     "minidl"),
    ("minidl.nn", "minidl.optim", "minidl.data", "minidl.checkpoint", "minidl.training", "minidl.report",
     "minidl.view"),
    ("minidl.as_torch",),
    ("minidl.models",),
    ("minidl.cli.app", "minidl.calibrate"),
    ("minidl.lab",),
    ("train", "minidl.cli", "minidl.__main__", "minidl.lab.__main__", "minidl.calibrate.__main__"),
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# All that a policy may know: decisions are made from frozen data.
POLICIES_KNOW = ("minidl.policies", "minidl.plan", "minidl.planning", "minidl.outside.registry", "minidl.errors",
                 "minidl.meta", "minidl.outside.units", "minidl.outside.numba_cache")

CUDA_PACKAGES = {"cupy", "cupyx", "cudnn", "cupti", "cuda", "nvidia", "numba_cuda", "pycuda"}
CUDA_PLACES = ("minidl/kernels/cuda", "minidl/device/cuda", "bench/gpu_check")


def sources(*folders: str) -> dict[str, Path]:
    """Every module in these folders by its dotted name."""
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    names = {}
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


MODULES = {**sources("minidl", "minidl/models"), "train": ROOT / "train.py"}  # rglob does not follow the link
BENCH = sources("bench")


def layer(module: str) -> str:
    """The entry of LAYERS that a module belongs to."""
    while module not in RANK:
        module, _, last = module.rpartition(".")
        assert last, "a module outside of all layers"
    return module


def imports(tree: ast.AST, known: Mapping[str, Path] = MODULES) -> set[str]:
    """Dotted names that a source imports; ``from a import b`` is a.b if that is a module of ours, else a."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found


@cache
def imported(source: str) -> frozenset[str]:
    """Dotted names that a source imports; of each it is found out once."""
    return frozenset(imports(ast.parse(source)))


def below(name: str, places: tuple[str, ...]) -> bool:
    """Whether a module is one of these or lies in one."""
    return any(name == place or name.startswith(place + ".") for place in places)


def wrong_imports(module: str, source: str) -> list[str]:
    """What a module imports from a layer above its own; a policy, anything but what policies may know."""
    mine = RANK[layer(module)]
    ours = {name for name in imported(source) if name.split(".")[0] in ("minidl", "train", "bench")}
    closed = below(module, ("minidl.policies",))
    return sorted(name for name in ours if below(name, ("bench",)) or RANK[layer(name)] > mine
                  or closed and not below(name, POLICIES_KNOW))


def test_imports_point_one_way_and_policies_know_plans_alone():
    assert len(MODULES) > 50 and {"minidl", "minidl.op", "minidl.policies.none", "train"} <= MODULES.keys()
    assert {(module, name) for module, path in MODULES.items()
            for name in wrong_imports(module, path.read_text(encoding="utf-8"))} == set()


def test_the_check_of_imports_sees_every_kind_of_wrong_import():
    assert wrong_imports("minidl.memory.bytes.arena", "import minidl.executor") == ["minidl.executor"]
    assert wrong_imports("minidl.memory.bytes.arena", "from minidl import nn") == ["minidl.nn"]
    assert wrong_imports("minidl.memory.bytes.arena", "def f():\n    from minidl.tensor import Tensor"
                         ) == ["minidl.tensor"]
    assert wrong_imports("minidl.ops.conv", "from minidl import parameter") == ["minidl"]
    assert wrong_imports("minidl.op", "try:\n    import minidl.kernels.cpu\nexcept ImportError:\n    pass") != []
    assert wrong_imports("minidl.nn.layers", "from minidl.models.vgg import vgg16") == ["minidl.models.vgg"]
    assert wrong_imports("minidl.nn.layers", "from bench.support.steps import run") == ["bench.support.steps"]
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from minidl.executor import Executor\n"
    assert wrong_imports("minidl.memory.bytes.arena", hidden) == ["minidl.executor"]
    assert wrong_imports("minidl.memory.bytes.arena", "from minidl.device.clock import COMPUTE\nimport numpy") == []
    for name in ("minidl", "minidl.memory.switches", "minidl.op", "minidl.device", "minidl.executor", "minidl.runtime"):
        assert wrong_imports("minidl.policies.none", f"import {name}") == [name]
    right = ("from minidl.plan.trace import Trace\nimport minidl.policies.lru\n"
             "from minidl.outside.units import format_bytes")
    assert wrong_imports("minidl.policies.none", right) == []


def test_the_package_imports_nothing_of_tests_and_benchmarks():
    for module, path in MODULES.items():
        assert not any(below(name, ("bench", "tests")) for name in imported(path.read_text(encoding="utf-8"))), module


SHARED = ("bench.support", "bench.gpu_check", "bench.papers")  # which tests may import; not the benchmarks themselves


def test_no_test_imports_from_the_benchmarks():
    files = list((ROOT / "tests").rglob("*.py"))
    assert len(files) > 80
    for file in files:
        names = imported(file.read_text(encoding="utf-8"))
        assert not any(below(name, ("bench",)) and not below(name, SHARED) for name in names - {"bench"}), file


def circle(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a ring, imports inside functions counted; empty if there is no ring."""
    known = dict.fromkeys(sources, Path())
    graph = {module: imports(ast.parse(source), known) & known.keys() for module, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_the_benchmarks_do_not_import_each_other_in_a_circle():
    assert len(BENCH) > 10
    assert circle({module: path.read_text(encoding="utf-8") for module, path in BENCH.items()}) == []
    ring = {"bench.a": "import bench.b", "bench.b": "def f():\n    from bench import c",
            "bench.c": "from bench.a import x"}
    assert set(circle(ring)) == set(ring)  # it would have been seen


def test_the_rooms_of_the_program_and_of_its_reports_import_each_other_in_no_circle():
    for room in ("minidl.cli.app.", "minidl.report."):
        texts = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items() if name.startswith(room)}
        assert len(texts) > 5 and circle(texts) == []


READERS = ("minidl.plan", "minidl.policies", "minidl.device", "minidl.checkpoint", "minidl.data", "minidl.report",
           "minidl.lab", "minidl.cli.app.run_folder", "minidl.models", "minidl.view",
           "minidl.cli")  # of what others have written
# These come with the package.
OWN_FILES = {"minidl.view.page", "minidl.device.cuda.listed", "minidl.device.cuda.attention_graphs"}


def reads(source: str) -> set[str]:
    """The calls of a source that open a file to be read, or take JSON apart, by themselves."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        modes = [value.value for value in (*node.args, *(k.value for k in node.keywords if k.arg == "mode"))
                 if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        writes = any(letter in mode for mode in modes for letter in "wax+")
        if (name in ("open", "json.loads", "json.load") or name.endswith((".read_text", ".read_bytes"))) and not writes:
            found.add(name)
    return found


def test_what_others_have_written_is_opened_in_one_place():
    """``open`` waits for a pipe that nobody writes to, and ``json`` raises what no caller expects."""
    readers = [module for module in MODULES if below(module, READERS) and module not in OWN_FILES]
    assert len(readers) > 50
    assert {module: found for module in readers if (found := reads(MODULES[module].read_text(encoding="utf-8")))} == {}
    assert reads("open(a)\nopen(b, 'rb')\np.read_text()\njson.loads(x)") == {"open", "p.read_text", "json.loads"}
    assert reads("open(a, 'w')\nopen(b, mode='ab')\nopen_file(c)\nread_text(d, most=1)") == set()


def test_all_that_is_compiled_for_the_cpu_is_compiled_in_one_place():
    """Numba's own cache runs whatever is in a damaged file."""
    for module, path in MODULES.items():
        if module != "minidl.outside.numba_cache" and not below(module, ("minidl.kernels.cuda",)):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            names = {f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom)
                     for alias in node.names} | {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
            assert not names & {"numba.njit", "numba.jit", "numba.vectorize"}, module


def test_the_lowest_modules_know_nothing_of_minidl():
    for module in ("minidl.meta", "minidl.errors"):
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        assert not any(name.startswith("minidl") for name in imports(tree)), module


def test_placing_offsets_needs_to_know_nothing_but_the_alignment_marks_and_what_a_placement_is():
    places = {"minidl.placements.placement", "minidl.placements.best_fit"}
    blocks = {f"minidl.memory.bytes.{name}" for name in ("arena", "block", "compaction", "copies", "tiling")}
    for module, allowed in (*[(module, {"minidl.meta", "minidl.device.clock", *places, *blocks}) for module in blocks],
                            ("minidl.memory.bytes.host_pool", {"minidl.device.clock"}),
                            ("minidl.placements.placement", set()),
                            ("minidl.placements.caching", places), ("minidl.placements.best_fit", places)):
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        assert {name for name in imports(tree) if name.startswith("minidl")} <= allowed, module


def test_memory_and_what_is_above_it_know_no_kernels():
    """Which kernel runs an operation is between it and the device: they share nothing but a name."""
    for module, path in MODULES.items():
        if RANK[layer(module)] > RANK["minidl.device"]:
            names = imported(path.read_text(encoding="utf-8"))
            assert not any(name.startswith("minidl.kernels") for name in names), module


def cuda_names(source: str) -> set[str]:
    """Packages of the CUDA stack that a source imports, or names in a string (as import_module would)."""
    tree = ast.parse(source)
    found = {name for name in imports(tree)
             if name.split(".")[0] in CUDA_PACKAGES or name.startswith("numba.cuda")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in CUDA_PACKAGES - {"cuda"}:
            found.add(node.value)
        if isinstance(node, ast.ImportFrom) and node.module == "numba":
            found.update("numba.cuda" for alias in node.names if alias.name == "cuda")
    return found


def test_cuda_is_imported_in_its_own_places_only():
    for module, path in MODULES.items():
        if not path.relative_to(ROOT).as_posix().startswith(CUDA_PLACES):
            assert cuda_names(path.read_text(encoding="utf-8")) == set(), module
    for source in ("import cupy as cp", "from cuda.core import Device", "def f():\n    import cudnn",
                   "from numba import cuda", "import importlib\nimportlib.import_module('cupy')"):
        assert cuda_names(source) != set(), source


def test_numba_cuda_is_imported_in_one_place_only():  # which makes it run with NumPy 2.5
    named = {module for module, path in MODULES.items()
             if any(name.startswith("numba.cuda")
                    for name in cuda_names(path.read_text(encoding="utf-8"))
                    | strings(ast.parse(path.read_text(encoding="utf-8"))))}
    assert named == {"minidl.kernels.cuda.numba_cuda"}


def all_ops() -> dict[str, Op]:
    """Every operation that a module of minidl.ops defines."""
    ops: dict[str, Op] = {}
    for info in pkgutil.iter_modules(minidl.ops.__path__):
        for value in vars(importlib.import_module(f"minidl.ops.{info.name}")).values():
            if isinstance(value, Op):
                assert ops.setdefault(value.name, value) is value, f"two operations are called {value.name}"
    return ops


def strings(tree: ast.Module) -> set[str]:
    """String literals that are not docstrings, pieces of f-strings included."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings}


def without_types(tree: ast.AST) -> ast.AST:
    """The same without what stands under TYPE_CHECKING."""
    class Remove(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            return node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else node

    return Remove().visit(tree)


def test_the_executor_names_no_device_no_policy_and_no_operation():
    tree = ast.parse(MODULES["minidl.executor"].read_text(encoding="utf-8"))
    names = {*all_ops(), *POLICIES, *PROFILES, "cpu", "sim", "cuda"}
    assert not names & strings(tree)
    assert names & strings(ast.parse('if op.name == "relu":\n    pass'))  # it would have been seen
    used = imports(without_types(tree))  # as types it may have them: the contract of a device, its manager
    used -= {"minidl.device.signatures"}
    forbidden = ("minidl.device", "minidl.kernels", "minidl.policies", "minidl.memory.manager", "minidl.ops")
    assert "minidl.op" in used and not any(name.startswith(forbidden) for name in used), used


def test_every_operation_that_is_launched_has_a_kernel_and_no_kernel_is_idle():
    launched = {name for name, op in all_ops().items() if not op.view and name != READ.name}
    assert len(launched) > 40
    assert set(KERNELS) == launched


HEAVY = {"numba", "scipy", "sklearn", "cupy", "torch", "matplotlib", "llvmlite"}


def loaded(program: str) -> set[str]:
    """The heavy packages, and the modules of minidl, that a fresh interpreter has loaded after a program."""
    ending = "\nimport sys\nprint(*(m for m in sys.modules if '.' not in m or m.startswith('minidl')))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", program + ending], cwd=ROOT, capture_output=True,
                            text=True, check=False)
    assert result.returncode == 0, result.stderr
    return {name for name in result.stdout.split() if name in HEAVY or name.startswith("minidl.")}


def test_importing_minidl_and_simulating_a_step_load_no_numerics():
    modules = loaded("""
import minidl
from minidl import nn
from minidl.optim import SGD
from minidl.ops.loss import cross_entropy

runtime = minidl.Runtime(device="sim:p100", memory_budget="6MiB", policy="passive")
with runtime:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                          nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 256, 10))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    def step():
        x = runtime.tensor(None, shape=(64, 3, 32, 32))
        y = runtime.tensor(None, shape=(64,), dtype=minidl.meta.int64)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert runtime.dry_run(step).unmanaged_peak_bytes > 6 * 2**20
    for _ in range(3):
        with runtime.iteration():
            step()
    assert runtime.stats().swapped_out_bytes > 0
""")
    assert not modules & HEAVY
    assert not any(name.startswith("minidl.kernels.cpu") for name in modules)
    assert "minidl.executor" in modules and "minidl.device.sim" in modules


def test_the_check_of_loaded_modules_sees_numerics():
    assert "minidl.kernels.cpu" in loaded("import minidl\nminidl.Runtime(device='cpu', memory_budget=256)")
    assert "scipy" in loaded("import scipy")


def test_every_device_that_a_user_can_name_is_made_without_cuda():
    for name in ("cpu", "sim:p100"):
        assert device.create(name).name == name
