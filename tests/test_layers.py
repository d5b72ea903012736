"""Layers point one way; CUDA stays in its corner; the executor names nobody; a simulation loads no numerics.

Imports are read from the source: those inside functions count, those under TYPE_CHECKING do not.
"""

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
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
    ("minidl.meta", "minidl.errors", "minidl.units"),
    ("minidl.plan",),
    ("minidl.planning",),
    ("minidl.policies",),
    ("minidl.op",),
    ("minidl.kernels",),
    ("minidl.device",),
    ("minidl.memory",),
    ("minidl.executor",),
    ("minidl.tensor",),
    ("minidl.ops",),
    ("minidl.autograd",),
    ("minidl.runtime", "minidl"),
    ("minidl.nn", "minidl.optim", "minidl.data", "minidl.checkpoint", "minidl.training", "minidl.report", "minidl.lab"),
    ("minidl.app", "minidl.calibrate"),
    ("models",),
    ("train",),
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

CUDA_PACKAGES = {"cupy", "cupyx", "cudnn", "cupti", "cuda", "nvidia", "numba_cuda", "pycuda"}
CUDA_PLACES = ("minidl/kernels/cuda", "minidl/device/cuda")


def sources() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    files = [*(ROOT / "minidl").rglob("*.py"), *(ROOT / "models").rglob("*.py"), *ROOT.glob("train.py")]
    names = {}
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


MODULES = sources()


def layer(module: str) -> str:
    """The entry of LAYERS that a module belongs to."""
    while module not in RANK:
        module, _, last = module.rpartition(".")
        assert last, "a module outside of all layers"
    return module


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield from (other, *run_time_nodes(other))
            continue
        yield child
        yield from run_time_nodes(child)


def imports(tree: ast.AST, *, everywhere: bool = False) -> set[str]:
    """Dotted names that a source imports; ``from a import b`` is a.b if that is a module of ours, else a."""
    found = set()
    for node in ast.walk(tree) if everywhere else run_time_nodes(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


def upward(module: str, source: str) -> list[str]:
    """What a module imports from a layer above its own."""
    mine = RANK[layer(module)]
    ours = (name for name in imports(ast.parse(source)) if name.split(".")[0] in ("minidl", "models", "train"))
    return sorted(name for name in ours if RANK[layer(name)] > mine)


def test_imports_point_one_way():
    assert len(MODULES) > 50 and {"minidl", "minidl.op", "minidl.policies.none", "train"} <= MODULES.keys()
    wrong = {module: names for module, path in MODULES.items()
             if (names := upward(module, path.read_text(encoding="utf-8")))}
    assert wrong == {}


def test_the_check_of_imports_sees_every_kind_of_wrong_import():
    assert upward("minidl.memory.arena", "import minidl.executor") == ["minidl.executor"]
    assert upward("minidl.memory.arena", "from minidl import nn") == ["minidl.nn"]
    assert upward("minidl.memory.arena", "def f():\n    from minidl.tensor import Tensor") == ["minidl.tensor"]
    assert upward("minidl.ops.conv", "from minidl import parameter") == ["minidl"]
    assert upward("minidl.op", "try:\n    import minidl.kernels.cpu\nexcept ImportError:\n    pass") != []
    assert upward("minidl.nn.layers", "from models.vgg import vgg16") == ["models.vgg"]
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from minidl.executor import Executor\n"
    assert upward("minidl.memory.arena", hidden) == []
    assert upward("minidl.memory.arena", hidden + "else:\n    import minidl.nn") == ["minidl.nn"]
    assert upward("minidl.memory.arena", "from minidl.device.clock import COMPUTE\nimport numpy") == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; none if each can be loaded before those that import it."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_rooms_of_the_program_and_of_its_reports_import_each_other_in_no_circle():
    for room in ("minidl.app.", "minidl.report."):
        texts = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items() if name.startswith(room)}
        graph = {module: {name for name in imports(ast.parse(source), everywhere=True) if name.startswith(room)}
                 for module, source in texts.items()}
        assert len(graph) > 5 and any(graph.values())
        assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def test_the_lowest_modules_know_nothing_of_minidl():
    for module in ("minidl.meta", "minidl.errors"):
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        assert not any(name.startswith("minidl") for name in imports(tree, everywhere=True)), module


def test_placing_offsets_needs_to_know_nothing_but_the_alignment():
    for module, allowed in (("minidl.memory.arena", {"minidl.meta", "minidl.device.clock"}),
                            ("minidl.memory.host_pool", {"minidl.device.clock"})):
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        assert {name for name in imports(tree, everywhere=True) if name.startswith("minidl")} <= allowed, module


def test_memory_and_what_is_above_it_know_no_kernels():
    """Which kernel runs an operation is between it and the device: they share nothing but a name."""
    for module, path in MODULES.items():
        if RANK[layer(module)] > RANK["minidl.device"]:
            names = imports(ast.parse(path.read_text(encoding="utf-8")))
            assert not any(name.startswith("minidl.kernels") for name in names), module


def cuda_names(source: str) -> set[str]:
    """Packages of the CUDA stack that a source imports, or names in a string (as import_module would)."""
    tree = ast.parse(source)
    found = {name for name in imports(tree, everywhere=True)
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


def test_the_executor_names_no_device_no_policy_and_no_operation():
    tree = ast.parse(MODULES["minidl.executor"].read_text(encoding="utf-8"))
    run_time = {name for name in imports(tree) if name.startswith("minidl")}
    forbidden = ("minidl.device", "minidl.kernels", "minidl.policies", "minidl.memory.manager", "minidl.ops")
    assert not any(name.startswith(forbidden) for name in run_time), run_time
    names = {*all_ops(), *POLICIES, *PROFILES, "cpu", "sim", "cuda"}
    assert not names & strings(tree)
    assert names & strings(ast.parse('if op.name == "relu":\n    pass'))  # it would have been seen


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
