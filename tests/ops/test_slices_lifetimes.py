"""How long the slices of a tensor are kept, as the memory is told: what is made from a kept one has a price."""

import pytest

from minidl import Runtime, models, nn, no_grad
from minidl.memory.neighbourhood import price
from minidl.meta import int64
from minidl.ops.elementwise import relu
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.parts.slicing.slicer import slicer_of

SHAPE = (3, 32, 32)


def test_slices_that_a_gradient_wants_are_kept_until_it_is_taken():
    with Runtime("sim:p100", policy="none", slices=2) as runtime:
        first, norm, second = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)
        with runtime.iteration():
            made = first(runtime.tensor(None, shape=(4, *SHAPE)))
            used = norm(made)
            end = second(used)
            loss = (end * end).sum()
            slicer_of(runtime.executor).flush()
            conv, normed = made.storage.parts, used.storage.parts
            assert [x.saved for x in (*conv, *normed)] == [1, 1, 1, 1]
            assert all(price(x) for x in normed)  # it starts from one that is kept for longer
            loss.backward()
            assert [x.saved for x in (*conv, *normed)] == [0, 0, 0, 0]


def test_what_waits_keeps_what_it_reads_and_no_longer():
    """Without statistics the whole step waits, and the gradients have been asked for before anything is there."""
    priced = []
    with Runtime("sim:p100", policy="none", slices=2) as runtime:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())

        def look(name, inputs, outputs):
            if name == "relu":
                priced.append((name, inputs[0].saved > 0))
        runtime.executor.inspect = look
        with runtime.iteration():
            out = model(runtime.tensor(None, shape=(4, *SHAPE)))
            out.sum().backward()
            assert len(priced) == 4 and all(kept for _, kept in priced)
        assert not any(storage.saved for storage in runtime.memory.live())


@pytest.mark.parametrize("source, wanted, priced", [(None, 5, False), (6, 5, False), (4, 5, True), (None, None, True)])
def test_what_is_wanted_for_long_has_no_price_if_it_starts_behind_freed_ones_from_what_goes(source, wanted, priced):
    """By the number until which each is kept; what nobody has said that of is a gradient, which is used at once."""
    with Runtime("sim:p100", policy="none") as runtime, no_grad():
        first = relu(runtime.tensor(None, shape=(4, 8)))
        between = relu(first)
        last = relu(between)
        for x, number in ((first, source), (last, wanted)):
            if number is not None:
                x.storage.retain_saved(number)
        del between
        assert (price(last.storage) is not None) is priced
        for x, number in ((first, source), (last, wanted)):
            if number is not None:
                x.storage.release_saved()


@pytest.mark.parametrize("host", ["40MiB", "80MiB"])
def test_in_slices_too_what_finds_no_room_on_the_host_is_dropped_before_gradients_are(host):
    """Half of what is kept has room on device and host: a gradient that was dropped would take half of the step with
    it when it is wanted, more than there is room for."""
    with Runtime("sim:p100", memory_budget="24MiB", host_memory=host, policy="dtr-swap", slices=8) as runtime:
        model = models.create("resnet20")
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            with runtime.iteration():
                images = runtime.tensor(None, shape=(128, *SHAPE))
                loss = cross_entropy(model(images), runtime.tensor(None, shape=(128,), dtype=int64))
                del images
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                runtime.check()
        assert runtime.stats().recomputed_bytes > 0
