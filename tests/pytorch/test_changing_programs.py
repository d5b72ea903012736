"""Programs that change as they run: other shapes, more tensors on the device, passes between steps."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch import nn  # noqa: E402
from torch_counting import alone, counted  # noqa: E402
from torch_nets import ROOMY, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.torch import unhooked  # noqa: E402
from minidl.torch.course import MOST_VAIN, Course, Phase  # noqa: E402
from minidl.torch.planned import Obeyed  # noqa: E402

WIDTH = 64


def layers(count=6):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)))


def with_lengths(lengths, memory):
    """Train on one batch of each length; return all that the training computes."""
    network, losses = layers(), []
    optimizer = torch.optim.AdamW(network.parameters())
    with memory:
        for length in lengths:
            optimizer.zero_grad()
            loss = network(torch.randn(4, length, WIDTH)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return [*losses, *network.parameters(), *(t for state in optimizer.state.values() for t in state.values())]


@pytest.mark.parametrize("row", [1, 2, 5])
def test_a_kind_of_step_that_comes_once_after_a_row_of_others_gets_its_plan_or_is_refused(row):
    """As the last batch of an epoch, or the step of a generator after some of its critic."""
    lengths = ([24] * row + [64]) * 5
    memory = minidl.torch.managed(ROOMY)
    assert same(with_lengths(lengths, memory), with_lengths(lengths, contextlib.nullcontext()))
    report = memory.report()
    assert report.steps[Phase.GUIDED] >= len(lengths) - 7 and report.steps[Phase.MEASURED] <= 4
    assert len([known for known in memory.course.known if known.obeyed is not None]) == 2
    floors = sorted(known.floor.nbytes for known in memory.course.known)
    with pytest.raises(minidl.torch.BudgetTooSmall, match="this step needs"):
        with_lengths(lengths, minidl.torch.managed(sum(floors) // 2))


def test_a_step_without_hooks_that_leaves_its_kind_counts_in_the_row():
    course, kinds = Course(0), []

    def step(length, *, astray=False):
        course.begin()
        expected = course.expected
        if astray:
            course.astray()
        else:
            course.packed(1, ((length,), torch.float32), 0)
        known = course.end(1)
        known.obey(Obeyed())
        kinds.append(known)
        return expected
    for length in (8, 8, 8, 9) * 2:
        step(length)
    assert [step(8) is kinds[0], step(8, astray=True) is kinds[0], step(8) is kinds[0]] == [True] * 3
    assert step(9) is kinds[3]


@pytest.mark.parametrize("others", [MOST_VAIN - 1, MOST_VAIN + 1, 5 * MOST_VAIN])
def test_a_training_gets_a_plan_once_its_lengths_settle_however_many_came_before(others):
    lengths = [32 + n for n in range(others)] + [24] * 9
    memory = minidl.torch.managed(ROOMY)
    assert same(with_lengths(lengths, memory), with_lengths(lengths, contextlib.nullcontext()))
    assert memory.report().steps[Phase.GUIDED] >= 5


def test_lengths_that_come_back_in_no_order_get_plans_of_their_own():
    lengths = [32 + n for n in range(2 * MOST_VAIN)] + [32 + 7 * n % (2 * MOST_VAIN) for n in range(6 * MOST_VAIN)]
    memory = minidl.torch.managed(ROOMY)
    assert same(with_lengths(lengths, memory), with_lengths(lengths, contextlib.nullcontext()))
    assert len([known for known in memory.course.known if known.obeyed is not None]) > MOST_VAIN


def test_a_budget_that_is_too_small_is_refused_after_any_number_of_lengths():
    with pytest.raises(minidl.torch.BudgetTooSmall, match="this step needs"):
        with_lengths([32 + n for n in range(MOST_VAIN + 1)] + [64] * 4, minidl.torch.managed(300_000))


def batches_on_the_device(memory, steps=6):
    """Train on six of forty batches that all lie on the device; return the peak of the steps."""
    alone()
    network = layers()
    optimizer = torch.optim.AdamW(network.parameters())
    batches = [torch.randn(128, WIDTH) for _ in range(40)]
    known = [*network.parameters(), *batches]
    with minidl.torch.Meter(known) as meter, counted(memory, known):
        for batch in batches[:steps]:
            optimizer.zero_grad()
            network(batch).pow(2).mean().backward()
            optimizer.step()
        return meter.peak


def test_tensors_that_no_step_touches_count_on_a_gpu():
    memory = minidl.torch.managed(ROOMY)
    peak, report = batches_on_the_device(memory), memory.report()
    assert peak <= report.unmanaged_bytes < 1.01 * peak
    assert report.floor.parts["other tensors that stay"] >= 34 * 128 * WIDTH * 4
    assert batches_on_the_device(minidl.torch.managed(report.floor_bytes)) <= report.floor_bytes
    with pytest.raises(minidl.torch.BudgetTooSmall, match="other tensors that stay"):
        batches_on_the_device(minidl.torch.managed(report.floor_bytes - 1))


def encoder_and_decoder(memory, call, steps=10):
    """Two optimizers step in turns on one graph, one before the other's backward pass; return bits and peaks.
    """
    encoder, decoder = (nn.Sequential(nn.Linear(a, 256), nn.GELU(), nn.Linear(256, b)) for a, b in ((64, 32), (16, 64)))
    optimizers = [torch.optim.Adam(part.parameters(), 1e-3) for part in (encoder, decoder)]
    x, peaks, found = torch.randn(256, 64), [], []
    with minidl.torch.Meter([*encoder.parameters(), *decoder.parameters(), x]) as meter, memory:
        for _ in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            mean, log = encoder(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (log * 0.5).exp()
            near = (1 + log - mean ** 2 - log.exp()).sum(1).mean().mul(-0.5)
            loss = (decoder(z) - x).pow(2).mean()
            loss.backward(retain_graph=True)
            optimizers[1].step()
            near.backward()
            optimizers[0].step()
            if call:
                memory.step()
            peaks.append(meter.peak)
            meter.peak = meter.bytes
            found += [loss.detach(), near.detach()]
    found += [*encoder.parameters(), *decoder.parameters(),
              *(t for o in optimizers for state in o.state.values() for t in state.values())]
    return [t.detach().numpy().tobytes() for t in found], peaks


@pytest.mark.parametrize("call", [True, False])
def test_two_optimizers_on_one_graph_step_within_the_budget(call):
    def run(memory):
        torch.manual_seed(0)
        return encoder_and_decoder(memory, call)

    class Nothing(contextlib.nullcontext):
        def step(self):
            pass

    expected, _ = run(Nothing())
    known = minidl.torch.managed(ROOMY)
    found, peaks = run(known)
    report = known.report()
    assert found == expected and max(peaks) <= report.unmanaged_bytes < 1.02 * max(peaks)
    for share in (0.0, 0.5, 0.9):
        budget = report.floor_bytes + int(share * (report.unmanaged_bytes - report.floor_bytes))
        memory = minidl.torch.managed(budget)
        found, peaks = run(memory)
        assert found == expected and max(peaks) <= budget and memory.report().out_bytes > 0


def growing(memory, change, steps=20):
    """Train, and change something before step 9; return all bits, and the peak of each step."""
    alone()
    network, x, losses, peaks = layers(10), torch.randn(128, WIDTH), [], []
    optimizer = torch.optim.AdamW(network.parameters())
    known = [*network.parameters(), x]
    with minidl.torch.Meter(known) as meter, counted(memory, known):
        for n in range(steps):
            optimizer.zero_grad()
            rows = 64 if change != "bank" or n < 8 else 2048
            loss = (network(x) @ torch.ones(WIDTH, rows)).softmax(1).pow(2).mean()
            loss.backward()
            optimizer.step()
            if change == "average" and n == 8:
                average = torch.optim.swa_utils.AveragedModel(network)
            elif change == "average" and n > 8:
                average.update_parameters(network)
            elif change == "validation" and n % 5 == 4:
                with torch.no_grad():
                    network(torch.randn(2048, WIDTH))
            losses.append(loss.detach())
            peaks.append(meter.peak)
            meter.peak = meter.bytes
    return [t.detach().numpy().tobytes() for t in (*losses, *network.parameters())], peaks


def test_an_average_that_begins_in_the_middle_is_counted_from_the_step_on_that_exceeds_the_budget():
    expected, peaks = growing(contextlib.nullcontext(), "average")
    budget = peaks[7]
    memory = minidl.torch.managed(budget)
    found, peaks = growing(memory, "average")
    report = memory.report()
    assert found == expected and report.steps[Phase.MEASURED] == 2
    assert report.over_bytes == max(peaks) - budget > 0 and "have come since the step was recorded" in report.over
    assert max(peaks[17:]) <= budget
    with pytest.raises(minidl.torch.BudgetTooSmall, match="other tensors that stay"):
        growing(minidl.torch.managed(report.floor_bytes - 4096), "average")


def test_a_validation_that_exceeds_the_budget_is_reported_and_changes_no_plan():
    expected, peaks = growing(contextlib.nullcontext(), "validation")
    memory = minidl.torch.managed(peaks[2])
    found, peaks = growing(memory, "validation")
    report = memory.report()
    assert found == expected
    assert report.steps[Phase.MEASURED] == 1
    assert report.over_bytes == pytest.approx(max(peaks) - memory.budget, rel=0.01) and report.over_bytes > 0
    assert "pass for validation" in str(report) and "budget exceeded by" in str(report)


def test_a_growing_bank_after_the_last_module_is_seen_by_a_step_with_hooks(monkeypatch):
    monkeypatch.setattr(unhooked, "compiled", lambda: False)  # other tests of this process may have compiled a program
    expected, peaks = growing(contextlib.nullcontext(), "bank")
    roomy = minidl.torch.managed(ROOMY)
    assert growing(roomy, "bank")[0] == expected
    assert len(roomy.course.known) == 2 and roomy.report().unmanaged_bytes >= max(peaks)
    with pytest.raises(minidl.torch.BudgetTooSmall):
        growing(minidl.torch.managed(int(2.2 * peaks[7])), "bank")
