"""A step that moves nothing runs without hooks, and gets them back as soon as it differs from the known steps."""

import contextlib
import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_nets import NETWORKS, ROOMY, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch import course, unhooked  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402

pytestmark = pytest.mark.skipif(not unhooked.LEGIBLE, reason="this PyTorch does not tell which saved tensor has a hook")
SIDE = 64
KNOWN = 2 + unhooked.TRUSTED  # steps with hooks: away, measured, and those that earn trust


@pytest.fixture(autouse=True)
def as_if_nothing_was_compiled(monkeypatch):
    """Other tests of this process may have compiled a program, after which all steps keep their hooks. And no step
    keeps them to be seen."""
    monkeypatch.setattr(unhooked, "compiled", lambda: False)
    monkeypatch.setattr(unhooked, "seen_anyway", lambda number: False)


def top():
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class Wave(nn.Module):
    def forward(self, x):
        return x.sin().exp()


class Changing(nn.Module):
    """Ten modules in a row. late: an operation more in the last step, outside of all modules, before module ``late``.
    gone: for each step, True if what an early module has saved has left."""

    def __init__(self):
        super().__init__()
        self.waves = nn.ModuleList(Wave() for _ in range(10))
        self.weight = nn.Parameter(torch.linspace(0, 0.1, SIDE * SIDE).reshape(SIDE, SIDE))
        self.late, self.rows, self.memory, self.gone = None, SIDE, None, []

    def forward(self):
        self.bare = self.memory is not None and self.memory.unhooked.bare
        x = self.weight[:self.rows] * 0.5
        for n, wave in enumerate(self.waves):
            if n == self.late:
                x = x.tanh()
            x = wave(x)
            if n == 1:
                saved = weakref.ref(x.untyped_storage())
        self.gone.append(saved() is None)
        return x.sum()


def trained(memory, steps, change=None):
    """All that a training computes whose last step is changed."""
    network = Changing()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    found = []
    with memory:
        for n in range(steps):
            if n == steps - 2 and change is not None:
                change(network)
            optimizer.zero_grad()
            loss = network()
            loss.backward()
            optimizer.step()
            found += [loss.detach(), network.weight.grad.clone(), network.weight.detach().clone()]
    return network, found


@pytest.mark.parametrize("network", ["convolutional", "transformer", "adversarial"])
def test_equal_steps_that_move_nothing_run_without_hooks_and_with_the_same_bits(network, monkeypatch):
    packs = []
    monkeypatch.setattr(minidl.torch.saved.Saved, "pack", lambda self, t, pack=minidl.torch.saved.Saved.pack: (
        packs.append(t.shape) or pack(self, t)))
    memory = minidl.torch.managed(ROOMY)
    assert same(run(NETWORKS[network], KNOWN + 4), run(NETWORKS[network], KNOWN + 4, memory))
    kind, = memory.course.known
    assert len(packs) == KNOWN * len(kind.packs)
    assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: KNOWN + 2}
    assert not memory.report().diverged and top() is None


def test_a_budget_that_is_not_twice_the_peak_keeps_the_hooks():
    known = minidl.torch.managed(ROOMY, states=False)
    trained(known, 3)
    for share, bare in (1.9, False), (2.1, True):
        network = None
        gc.collect()  # on a CPU the tensors of earlier runs count, too
        memory = minidl.torch.managed(int(share * known.report().planned_bytes), states=False)
        network = trained(memory, KNOWN + 1, lambda network, memory=memory: setattr(network, "memory", memory))[0]
        assert network.bare is bare


def test_a_program_that_has_compiled_code_keeps_the_hooks(monkeypatch):
    monkeypatch.setattr(unhooked, "compiled", lambda: True)
    memory = minidl.torch.managed(ROOMY, states=False)
    network, _ = trained(memory, KNOWN + 1, lambda network: setattr(network, "memory", memory))
    assert network.bare is False


def later(network):
    network.late = 8


def at_the_end(network):
    network.late = 9


def shorter(network):
    network.rows = SIDE // 2


@pytest.mark.parametrize(("margin", "kept"), [(1.5, 2), (2.04, 0), (3.0, 0)])
@pytest.mark.parametrize("change", [later, at_the_end, shorter])
def test_a_step_that_differs_gets_its_hooks_back_and_what_it_has_saved_leaves_if_it_may_not_keep_more(
        change, margin, kept, monkeypatch):
    """With 1.5 it may keep everything, with 2.04 no more than the known step did, and with 3 nothing."""
    monkeypatch.setattr(course, "MARGIN", margin)
    expected = trained(contextlib.nullcontext(), KNOWN + 4, change)[1]
    known = minidl.torch.managed(ROOMY, states=False)
    trained(known, 3)
    memory = minidl.torch.managed(ROOMY if kept else int(2.05 * known.report().planned_bytes), states=False)
    network, found = trained(memory, KNOWN + 4, change)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    report = memory.report()
    assert report.diverged == 2  # the first change, without hooks, and the next step, with hooks
    assert report.out_bytes > 0 and memory.backend.host.used == 0 and top() is None
    assert network.gone[-3:-1] == [False, not kept] and report.steps.get(Phase.KEPT, 0) >= kept


def test_an_evaluation_between_steps_is_no_difference():
    memory, network = minidl.torch.managed(ROOMY), Changing()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    with memory:
        for n in range(KNOWN + 3):
            network().backward()
            optimizer.step()
            if n >= KNOWN:
                assert memory.unhooked.bare
                with torch.no_grad():
                    network()
                assert memory.unhooked.bare
    assert not memory.report().diverged


def test_a_step_whose_first_input_differs_is_a_step_with_hooks_like_any_other():
    found = []
    for never in (True, False):
        network = nn.Sequential(*(nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh()) for _ in range(6)))
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        memory = minidl.torch.managed(ROOMY)
        memory.unhooked.never = never
        with memory:
            for n in range(2 * (KNOWN + 2)):
                if n == KNOWN + 1:
                    assert memory.unhooked.bare is not never
                network(torch.randn(SIDE // 2 if n % (KNOWN + 2) == KNOWN + 1 else SIDE, SIDE)).sum().backward()
                optimizer.step()
        found.append((memory.report().steps, memory.report().diverged, len(memory.course.known)))
    assert found[0] == found[1]
    assert found[0][1:] == (1, 2)  # the second of them, after as many steps, is expected


def test_a_step_with_fewer_calls_than_known_is_noticed_when_it_ends():
    memory = minidl.torch.managed(ROOMY)
    network, _ = trained(memory, KNOWN + 4, lambda network: setattr(network, "waves", network.waves[:6]))
    assert memory.report().diverged >= 1 and memory.report().steps[Phase.KEPT] >= 1


def test_a_tensor_that_is_overwritten_is_an_error_whether_hooks_come_back_or_not():
    for late in None, 8:
        memory, network = minidl.torch.managed(ROOMY), Changing()
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        with memory:
            for n in range(KNOWN + 1):
                if n == KNOWN:
                    assert memory.unhooked.bare
                    network.late = late
                    network.waves[2].register_forward_hook(lambda module, args, result: result.add_(1))
                loss = network()
                if n < KNOWN:
                    loss.backward()
                    optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_hooks_of_the_program_keep_their_order():
    memory, network = minidl.torch.managed(ROOMY), Changing()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    own = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with memory:
        for n in range(KNOWN + 3):
            if n == KNOWN + 1:
                assert memory.unhooked.bare
                network.late = 4
                own.__enter__()  # in a step without hooks; the step departs while they are on
            network().backward()
            if n == KNOWN + 1:
                assert top()[0] is own.pack_hook
                own.__exit__()
                assert top() is None
            optimizer.step()
            if n >= KNOWN + 1:
                assert top()[0] == memory.saved.pack
    assert top() is None
