"""minidl fit of programs with 8-bit optimizers, and with one whose states are on the host: of small libraries that are
built like the published ones, and of the published ones where they are installed."""

import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from minidl.lab.fitting import peak  # noqa: E402
from minidl.lab.torch_capture import look  # noqa: E402

LIBRARIES = {
    "bitsandbytes/__init__.py": "", "torchao/__init__.py": "",
    "bitsandbytes/optim/__init__.py": "from bitsandbytes.optim.optimizer import AdamW8bit",
    "torchao/optim/__init__.py": "from torchao.optim.adam import AdamW8bit\n"
                                 "from torchao.optim.cpu_offload import CPUOffloadOptimizer",
    "bitsandbytes/functional.py": """
import torch
def create_dynamic_map(signed):
    return torch.tensor(sorted(torch.linspace(-1.0 if signed else 0.0, 1, 256).tolist()))
""",
    "bitsandbytes/optim/optimizer.py": """
import torch
import bitsandbytes.functional as F
class Optimizer8bit(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})
        self.maps = {"qmap1": F.create_dynamic_map(True), "qmap2": F.create_dynamic_map(False)}
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p] = {name: torch.zeros_like(p, dtype=torch.uint8) for name in ("state1", "state2")}
                self.state[p] |= {name: torch.zeros((p.numel() + 255) // 256) for name in ("absmax1", "absmax2")}
                self.state[p] |= self.maps
            p.sub_(p.grad)
class AdamW8bit(Optimizer8bit): pass
""",
    "torchao/optim/adam.py": """
import torch
class State:
    def __init__(self, p):
        torch.linspace(0, 1, 256).tolist()
        self.codes, self.scale = torch.zeros_like(p, dtype=torch.uint8), p.new_zeros(p.numel() // 256)
    def __tensor_flatten__(self):
        return ["codes", "scale"], []
class _AdamBase(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"amsgrad": False})
    def _new_buffer(self, p, signed):
        return State(p) if p.numel() >= 4096 else torch.zeros_like(p)
    def step(self):
        raise NotImplementedError("it is compiled")
class AdamW8bit(_AdamBase): pass
""",
    "torchao/optim/cpu_offload.py": """
import torch
class CPUOffloadOptimizer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_class, *, offload_gradients=False):
        assert torch.cuda.is_available()
    def zero_grad(self):
        for p in self.param_d2h_map:
            p.grad = None
        if self.d_opt is not None:
            self.d_opt.zero_grad()
    @property
    def param_groups(self):
        return []
"""}


def net():
    """A network of 64*1024 + 1024 + 1024*64 + 64 parameters, whose biases have less than 4,096 elements."""
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))


LARGE, SMALL = 2 * 64 * 1024, 1024 + 64


def stepping(optimizer, network, batch):
    def step():
        optimizer.zero_grad()
        network(torch.zeros(batch, 64, device="cuda")).sum().backward()
        optimizer.step()

    return step


def with_bitsandbytes(batch):
    from bitsandbytes.optim import AdamW8bit

    network = net().cuda()
    return stepping(AdamW8bit(network.parameters()), network, batch)


def with_torchao(batch):
    from torchao.optim import AdamW8bit

    network = net().cuda()
    return stepping(AdamW8bit(network.parameters()), network, batch)


def with_states_on_the_host(batch, **settings):
    from torchao.optim import CPUOffloadOptimizer

    network = net().cuda()
    return stepping(CPUOffloadOptimizer(network.parameters(), torch.optim.AdamW, **settings), network, batch)


def without_gradients_on_the_device(batch):
    return with_states_on_the_host(batch, offload_gradients=True)


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    for name, text in LIBRARIES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.split(".")[0] in ("bitsandbytes", "torchao")]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [each for each in sys.modules if each.split(".")[0] in ("bitsandbytes", "torchao")]:
        del sys.modules[name]


def states(found):
    return sum(layer.states for layer in found.layers)


def test_a_state_in_8_bits_has_a_byte_an_element_a_scale_a_block_and_a_table(libraries):
    """Two states of LARGE + SMALL elements; a scale of 4 bytes for each begun block of 256 elements of a parameter."""
    found = look(f"{__name__}:with_bitsandbytes", 8, "p100")
    blocks = LARGE // 256 + 1024 // 256 + 1
    tables = 4 * 2 * 256 * 4  # a layer counts the two tables, which its parameters share, for each of them
    assert states(found) == 2 * (LARGE + SMALL) + 2 * 4 * blocks + tables
    assert found.assumed["optimizer"] == "AdamW8bit"


def test_a_compiled_step_is_one_call_without_values_and_small_states_stay_in_fp32(libraries):
    found = look(f"{__name__}:with_torchao", 8, "p100")
    assert states(found) == 2 * LARGE + 2 * 4 * LARGE // 256 + 2 * 4 * SMALL
    steps = [call for call in found.trace.calls if call.op == "minidl::optimizer_step"]
    assert len(steps) == 4 and not any(call.algorithms[0].workspace for call in steps)
    assert peak(found.trace) < 4 * (2 * (LARGE + SMALL) + 8 * 3 * 1024) + states(found) + 1024


def test_states_on_the_host_take_nothing_and_what_is_small_stays(libraries):
    kept, freed = (look(f"{__name__}:{name}", 8, "p100")
                   for name in ("with_states_on_the_host", "without_gradients_on_the_device"))
    assert 2 * 4 * SMALL <= states(kept) == states(freed) < 2 * 4 * SMALL + 64  # and AdamW's numbers of steps
    assert "states on the host" in kept.assumed["optimizer"]
    # One large gradient, of 4 * LARGE // 2 bytes, is gone before the other is made; 8 * 1024 results are not.
    assert peak(kept.trace) - peak(freed.trace) == pytest.approx(4 * LARGE // 2 - 4 * 8 * 1024, rel=0.05)


@pytest.mark.parametrize(("library", "program", "least", "most"), [
    ("bitsandbytes", "with_bitsandbytes", 2 * LARGE, 3 * LARGE),
    ("torchao", "with_torchao", 2 * LARGE, 3 * LARGE), ("torchao", "with_states_on_the_host", 0, 16 * SMALL)])
def test_the_published_libraries_are_built_so(library, program, least, most):
    pytest.importorskip(library)
    found = look(f"{__name__}:{program}", 8, "p100")
    assert least <= states(found) <= most
