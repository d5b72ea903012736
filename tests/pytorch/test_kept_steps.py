"""Steps that keep all that autograd saves, without a plan of their own: far below the budget."""

import contextlib
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_counting import alone, counted  # noqa: E402
from torch_nets import ROOMY, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch.course import MARGIN, MOST_KNOWN, Course, Phase  # noqa: E402
from minidl.torch.items import SWAP  # noqa: E402
from minidl.torch.planned import Obeyed  # noqa: E402

WIDTH = 64


def train(lengths, memory, wide=()):
    """Train on one batch of each length; return all that the training computes, and the peak of each step.
    A list of lengths is one step, whose gradients are added up. wide: lengths whose steps compute something large
    without gradients, too."""
    alone()
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)))
    optimizer, losses, peaks = torch.optim.AdamW(network.parameters()), [], []
    known = [*network.parameters()]
    with minidl.torch.Meter(known) as meter, counted(memory, known):
        for length in lengths:
            optimizer.zero_grad()
            for part in [length] if isinstance(length, int) else length:
                loss = network(torch.randn(4, part, WIDTH)).pow(2).mean()
                if part in wide:
                    torch.empty(150_000).add(1)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            peaks.append(meter.peak)
            meter.peak = meter.bytes
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*losses, *network.parameters(), *states], peaks


def test_lengths_that_differ_each_time_are_kept_after_one_recording():
    lengths = list(range(32, 32 + 10 * MOST_KNOWN))  # more than are remembered
    random.Random(0).shuffle(lengths)
    memory = minidl.torch.managed(ROOMY)
    assert same(train(lengths, memory)[0], train(lengths, contextlib.nullcontext())[0])
    report = memory.report()
    assert report.steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.KEPT: len(lengths) - 2}
    assert report.state_bytes == 4 * 2 * 6 * WIDTH * WIDTH * 4  # of two steps that swap everything
    assert "kept, far below the budget" in str(report)


@pytest.mark.parametrize("room", [2.5, 4.0])
def test_steps_that_grow_keep_their_tensors_only_as_long_as_the_budget_surely_holds_them(room):
    """A step with six times the length has about five times the peak; what it keeps is swapped out where it grows."""
    lengths = [32, 32, *random.Random(1).choices(range(32, 193), k=40)]
    expected, peaks = train(lengths, contextlib.nullcontext())
    budget = int(room * peaks[1])
    assert budget < max(peaks)
    memory = minidl.torch.managed(budget)
    found, peaks = train(lengths, memory)
    assert same(found, expected) and max(peaks) <= budget
    steps = memory.report().steps
    assert steps[Phase.KEPT] > 0 and steps.get(Phase.AWAY, 0) + steps.get(Phase.MEASURED, 0) > 2


def test_what_counts_is_saved_at_once_and_not_in_all_passes_of_a_step():
    """The gradients of four batches are added up. Once in a while one of them is long, and the others are short."""
    lengths = [(32,) * 4] * 3 + [(24, 40, 30, 34), (112, 4, 4, 4), (4, 4, 4, 112)] * 3
    budget = int(1.9 * train(lengths[:3], contextlib.nullcontext())[1][2])
    expected, peaks = train(lengths, contextlib.nullcontext())
    assert budget < max(peaks)
    memory = minidl.torch.managed(budget)
    found, peaks = train(lengths, memory)
    assert same(found, expected) and max(peaks) <= budget and memory.report().steps[Phase.KEPT] > 0


def test_a_kept_step_that_exceeds_the_budget_is_kept_no_more():
    """As on a GPU, where the peak of each step is measured."""
    lengths = [32, 32, *([33, 34] * 12)]
    budget = 2 * train([32, 32], contextlib.nullcontext())[1][1]
    memory = minidl.torch.managed(budget)
    found, peaks = train(lengths, memory, wide={34})
    assert same(found, train(lengths, contextlib.nullcontext(), wide={34})[0])
    assert memory.report().over_bytes == max(peaks) - budget > 0
    assert [known.outgrown for known in memory.course.known if known.packs[1][0][1] == 34] == [True]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_steps_on_nested_tensors_are_of_one_kind(layout):
    def nested(memory):
        torch.manual_seed(0)
        network, found = nn.Linear(64, 64), []
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        with memory:
            for _ in range(8):
                parts = [torch.randn(9, 64), torch.randn(41, 64)]
                y = network(torch.nested.nested_tensor(parts, layout=layout))
                loss = sum(part.sin().pow(2).mean() for part in y.unbind())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
        return [*found, *network.parameters()]
    memory = minidl.torch.managed(1 << 17)
    assert same(nested(memory), nested(contextlib.nullcontext()))
    assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 6}


def course_with(budget, *kinds):
    """A course that knows kinds of steps by (saved floats, the peak of a plan, and if this plan evicts a tensor)."""
    course = Course(budget)
    for floats, peak, evicts in kinds:
        course.begin()
        course.packed(1, ((floats,), torch.float32), 0)
        course.end(1).obey(Obeyed(peak_bytes=peak, decisions={1: SWAP} if evicts else {}))
    course.begin()
    return course


def kept(course, floats):
    course.begin()
    course.expected = course.known[0]
    course.phase, course.ahead = Phase.GUIDED, course.known[0].ahead
    first = course.packed(1, ((floats,), torch.float32), 0)
    course.end(1)
    course.known = [known for known in course.known if known.obeyed is not None]
    return first.action is None and course.phase is Phase.KEPT


def test_how_much_is_kept_follows_from_the_peaks_of_plans_that_evict_nothing():
    """A plan for 100 floats has a peak of 1,000 bytes: n times as many floats may have n times this peak."""
    most = int(4000 / MARGIN) // 10
    course = course_with(4000, (100, 1000, False))
    assert kept(course, most) and not kept(course, most + 1)
    course = course_with(4000, (100, 1000, False), (60, 500, False), (200, 1500, True))
    assert kept(course, 199) and not kept(course, 200) and not kept(course, 201)
    assert not kept(course_with(1499, (100, 1000, False)), 10)


def test_what_a_step_saved_before_it_left_its_plan_counts_too():
    """The first pass saves a planned tensor and another one, so that the step leaves its plan; the second pass less."""
    course = course_with(1000, (100, 900, True))
    course.packed(1, ((100,), torch.float32), 0)
    course.packed(2, ((30,), torch.float32), 0)
    course.packed(3, ((40,), torch.float32), 1)
    assert course.end(2).saved_bytes == 4 * 130
