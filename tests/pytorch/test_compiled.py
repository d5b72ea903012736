"""What ``torch.compile`` has compiled runs compiled in each step, with the same bits."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_nets import ROOMY, Program, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch import recorder  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402


@pytest.fixture
def compiled():
    """A program, and a list that gets an entry for each run of its compiled code, which rounds as no eager code does.
    """
    pytest.importorskip("torch._dynamo", reason="this PyTorch has no compiler")
    runs = []

    def compiler(graph, inputs):
        def rounded(*args):
            runs.append(1)
            return tuple(each * (1 + 1e-3) if each.is_floating_point() else each for each in graph(*args))
        return rounded

    def make():
        torch._dynamo.reset()
        network = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(4)))
        x, run_compiled = torch.randn(64, 48), torch.compile(network, backend=compiler)
        return Program(network, torch.optim.AdamW(network.parameters(), 1e-3), lambda: run_compiled(x).pow(2).mean())

    return make, runs


def test_compiled_code_runs_compiled_in_recorded_and_planned_steps(compiled, recwarn):
    make, runs = compiled
    expected, memory = run(make), minidl.torch.managed(ROOMY)
    runs.clear()
    assert same(run(make, memory=memory), expected) and len(runs) == 5
    assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 3}
    assert not [each for each in recwarn if "hooks" in str(each.message)]


def test_a_pytorch_that_runs_compiled_code_uncompiled_under_a_mode_records_no_step_of_it(compiled, monkeypatch):
    make, runs = compiled
    expected, memory = run(make), minidl.torch.managed(ROOMY)
    monkeypatch.setattr(recorder, "BESIDE_COMPILED", False)
    runs.clear()
    assert same(run(make, memory=memory), expected) and len(runs) == 5
    assert memory.report().steps == {Phase.AWAY: 5} and "compiled code" in str(memory.report())
