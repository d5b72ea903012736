"""On simulated devices sums between ranks run beside the backward pass, and their first user waits for them."""

from dataclasses import replace

import pytest

from minidl import Runtime, nn, optim
from minidl.device import profiles
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


def test_a_copy_of_a_sum_to_the_host_waits_for_it():
    from minidl.device.clock import COPY_OUT

    profile = replace(profiles.get("p100"), peer_bandwidth=1e6, link_latency_s=0.0)  # a sum of 4 MiB takes seconds
    device = SimDevice("sim:test", profile)
    with Runtime(device, policy="passive", ranks=modelled(2), memory_budget="32MiB") as runtime:
        layer = nn.Linear(WIDTH, WIDTH)
        layer(runtime.tensor(None, shape=(8, WIDTH))).sum().backward()
        storage = layer.weight.grad.storage
        took = kernel_seconds(profile, "exchange", 0.0, WIDTH * WIDTH * 4)
        assert device.now() < took
        runtime.memory.allocator.start_swap_out(storage)
        assert device.clock.finish_time(COPY_OUT, storage.copied_out) > took


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_device_without_exchanges_has_nothing_to_wait_for(ranks):
    device = SimDevice("sim:p100", profiles.get("p100"))
    with Runtime(device, policy="none", ranks=modelled(ranks), memory_budget="1GiB") as runtime:
        x = nn.Linear(8, 8)(runtime.tensor(None, shape=(8, 8)))
        assert not device.beside.ends
        x.sum().backward()
        assert bool(device.beside.ends) == (ranks == 2)
