"""On simulated devices sums between ranks run beside the backward pass, and their first user waits for them."""

from dataclasses import replace

import pytest

from minidl import Runtime, nn, optim
from minidl.device import profiles
from minidl.device.beside import SharedLink
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.cost_model import kernel_seconds
from minidl.device.sim import SimDevice
from minidl.ranks import modelled

LAYERS, WIDTH, RANKS = 8, 1024, 4
NBYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4  # of all gradients
BYTES_EACH_WAY = 2 * (RANKS - 1) / RANKS * NBYTES  # of a sum: (RANKS - 1) / RANKS to the others, and as much back


def step_seconds(bandwidth, ranks=RANKS, *, batch=4096):
    """The seconds of a step of linear layers, and those in which the compute stream waits."""
    profile = replace(profiles.get("p100"), peer_bandwidth=bandwidth, link_latency_s=0.0)
    with Runtime(SimDevice("sim:test", profile), policy="none", ranks=modelled(ranks), memory_budget="8GiB",
                 slices=ranks) as runtime:
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        times = []
        for _ in range(3):
            with runtime.iteration():
                optimizer.zero_grad()
                y = model(runtime.tensor(None, shape=(ranks * batch, WIDTH)))
                (y * y).sum().backward()
                del y
                optimizer.step()
            times.append((runtime.device.now(), runtime.device.stall_seconds()))
        (was, stalled), (now, more) = times[-2:]
        return now - was, more - stalled


def test_the_exchanges_of_a_fast_link_are_hidden_but_for_the_last():
    alone, _ = step_seconds(1e9, ranks=1)
    bandwidth = 20 * BYTES_EACH_WAY / alone  # all exchanges together take a twentieth of a step
    found, waited = step_seconds(bandwidth)
    last = 2 * (RANKS - 1) / RANKS * WIDTH * WIDTH * 4 / bandwidth
    assert alone < found < alone + 2 * last and 0.0 < waited < 2 * last


def test_the_exchanges_of_a_slow_link_take_as_long_as_the_link_needs():
    alone, _ = step_seconds(1e9, ranks=1)
    bandwidth = BYTES_EACH_WAY / (3 * alone)  # all exchanges together take as long as three steps
    found, waited = step_seconds(bandwidth)
    assert 3 * alone < found < 4 * alone and 2 * alone < waited < found


@pytest.mark.parametrize("stream, act", [
    (COPY_OUT, lambda device, at, nbytes: device.copy_out(((0, nbytes),), at, nbytes)),
    (COPY_IN, lambda device, at, nbytes: device.copy_in(at, ((0, nbytes),), nbytes)),
    (COMPUTE, lambda device, at, nbytes: device.move(at, 1 << 24, nbytes)),
    (COMPUTE, lambda device, at, nbytes: device.move(1 << 24, at, nbytes))],
    ids=["a copy to the host", "a copy from the host", "a move to there", "a move from there"])
def test_what_touches_the_bytes_of_a_sum_waits_for_it(stream, act):
    profile = replace(profiles.get("p100"), peer_bandwidth=1e6, link_latency_s=0.0)  # a sum of 4 MiB takes seconds
    device = SimDevice("sim:test", profile)
    with Runtime(device, policy="passive", ranks=modelled(2), memory_budget="32MiB") as runtime:
        layer = nn.Linear(WIDTH, WIDTH)
        layer(runtime.tensor(None, shape=(8, WIDTH))).sum().backward()
        block = layer.weight.grad.storage.block
        took = kernel_seconds(profile, "exchange", 0.0, WIDTH * WIDTH * 4)
        assert device.now() < took
        assert device.clock.finish_time(stream, act(device, block.offset, 256)) > took


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_device_without_exchanges_has_nothing_to_wait_for(ranks):
    device = SimDevice("sim:p100", profiles.get("p100"))
    with Runtime(device, policy="none", ranks=modelled(ranks), memory_budget="1GiB") as runtime:
        x = nn.Linear(8, 8)(runtime.tensor(None, shape=(8, 8)))
        assert not device.beside.in_use
        x.sum().backward()
        assert bool(device.beside.in_use) == (ranks == 2)


def shared_link(count, name="p100"):
    return SharedLink(profiles.shared(profiles.get(name), count))


def test_an_exchange_has_the_whole_link_but_for_copies():
    link = shared_link(4)
    assert link.end_of(2.0, 3.0) == 5.0
    link.copied(COPY_OUT, 2.0, 5.0)  # it takes a quarter of the link, as four ranks share the host's
    assert link.end_of(0.0, 3.0) == 3.0
    assert link.end_of(2.0, 3.0) == pytest.approx(5.5)  # 1 s alone, 2 s at 3/4, and the last 0.5 s alone
    assert link.end_of(3.5, 0.75) == pytest.approx(4.5)
    link.copied(COPY_IN, 2.0, 6.0)  # the other way: an exchange goes both ways, so the slower way decides
    assert link.end_of(2.0, 3.0) == pytest.approx(3 + 2 / 0.75)
    link.forget_before(5.0)
    assert link.end_of(3.0, 3.0) == pytest.approx(6.5)


def test_the_busier_way_decides():
    link = shared_link(4, "p100-paper")  # 12.7 GB/s out and 9.6 GB/s in, so a quarter of 12.7 is more of the link
    for stream in (COPY_OUT, COPY_IN):
        link.copied(stream, 9.0, 9.0)
    assert link.end_of(0.0, 1.0) == pytest.approx(1 / (1 - 12.7 / 4 / 9.6))


@pytest.mark.parametrize("count, name", [(1, "p100"), (8, "h100")])
def test_nvlink_and_one_device_share_no_link(count, name):
    link = shared_link(count, name)
    link.copied(COPY_OUT, 9.0, 9.0)
    assert link.end_of(1.0, 3.0) == 4.0


def test_a_copy_that_begins_during_a_sum_delays_it():
    profile = profiles.shared(replace(profiles.get("p100"), link_latency_s=0.0), 2)

    def waited(nbytes):
        device = SimDevice("sim:test", profile)
        with Runtime(device, policy="passive", ranks=modelled(2), memory_budget="64MiB") as runtime:
            layer = nn.Linear(WIDTH, WIDTH)
            layer(runtime.tensor(None, shape=(8, WIDTH))).sum().backward()
            if nbytes:
                device.copy_out(((0, nbytes),), 1 << 30, nbytes)  # of bytes that the sum does not use
            before = device.now()
            layer.weight.grad.numpy()
            return device.now() - before

    alone = WIDTH * WIDTH * 4 / profile.shared_bandwidth  # half of the tensor each way, twice
    assert waited(0) == pytest.approx(alone, rel=0.02)
    assert waited(1 << 26) == pytest.approx(2 * alone, rel=0.02)  # a copy has half of the link


def test_gathered_statistics_share_the_link_too():
    device = SimDevice("sim:test", profiles.shared(profiles.get("p100"), 2))
    with Runtime(device, policy="passive", ranks=modelled(2), memory_budget="64MiB") as runtime:
        x = runtime.tensor(None, shape=(1 << 20, 8))

        def gathers():
            before = device.now()
            x.permute(1, 0)
            return device.now() - before

        alone = gathers()
        x = runtime.tensor(None, shape=(1 << 20, 8))
        device.copy_out(((0, 1 << 26),), 0, 1 << 26)
        assert 1.5 * alone < gathers() < 2 * alone


def test_gathered_statistics_wait_for_sums_that_began_before():
    """A device has one queue of exchanges, as a GPU has."""
    device = SimDevice("sim:test", replace(profiles.get("p100"), peer_bandwidth=1e6, link_latency_s=0.0))
    with Runtime(device, policy="passive", ranks=modelled(2), memory_budget="64MiB") as runtime:
        x = runtime.tensor(None, shape=(64, 8))
        layer = nn.Linear(WIDTH, WIDTH)
        layer(runtime.tensor(None, shape=(8, WIDTH))).sum().backward()
        before = device.now()
        x.permute(1, 0)
        took = kernel_seconds(device.profile, "exchange", 0.0, WIDTH * WIDTH * 4)
        assert device.now() - before > 0.9 * took


def test_exchanges_of_earlier_iterations_are_forgotten():
    device = SimDevice("sim:test", profiles.shared(profiles.get("p100"), 2))
    with Runtime(device, policy="passive", ranks=modelled(2), memory_budget="64MiB") as runtime:
        layer = nn.Linear(64, 64)
        optimizer = optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(20):
            with runtime.iteration():
                optimizer.zero_grad()
                layer(runtime.tensor(None, shape=(8, 64))).sum().backward()
                optimizer.step()
        assert len(device.beside.in_use) <= 4 and len(device.beside._ends) <= 4 and not device.beside._waiting
