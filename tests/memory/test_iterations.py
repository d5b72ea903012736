"""Where an iteration ends, and what that does: survivors become leaves, ids and access counts start again.

Sizes are in units of 256 bytes: tensors of 64 float32.
"""

from collections import deque

import numpy as np
import pytest
from networks import UNIT, Training, drop, leaf, small_runtime, used_units

from minidl.errors import UserError
from minidl.memory.storage import IN, OUT, RECOMPUTE
from minidl.memory.tracker import SURVIVOR_STEP
from minidl.meta import aligned
from minidl.ops.elementwise import scale, shift, sigmoid
from minidl.ops.update import fill_
from minidl.optim import SGD
from minidl.runtime import parameter


@pytest.mark.parametrize("policy", ["passive", "recompute"])
@pytest.mark.parametrize("units", [3000, 1700])
def test_after_an_iteration_exactly_parameters_and_survivors_use_memory(policy, units):
    """Survivors are leaves: neither the input batch nor anything between is kept for them."""
    with small_runtime(units=units, policy=policy) as runtime:
        training = Training(runtime, "vgg", "momentum")
        model, optimizer = training.model, training.optimizer
        for _ in range(2):
            with runtime.iteration():
                x = runtime.tensor(np.ones(training.shape, np.float32))
                features = model[1](model[0](x))
                y = features
                for layer in list(model)[2:]:
                    y = layer(y)
                loss = y.sum()
                del x, y
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                middle = scale(scale(loss, 0.5), 0.5)
                view = features.narrow(0, 0, 1)
            survivors = [loss, middle, features]
            parameters = [p for _, p in model._named_tensors(parameters=True, buffers=True)]
            kept = [*parameters, *(p.grad for p in model.parameters()), *survivors,
                    *(s for states in optimizer._states.values() for s in states)]
            for tensor in survivors:
                base = tensor.storage.base  # the sum is a view of what was added up
                assert tensor.status in (IN, OUT) and base.call is None and base.severed is not None
            assert sum(aligned(s.nbytes) for s in runtime.memory.live()) == sum(aligned(t.nbytes) for t in kept)
            assert used_units(runtime) * UNIT == sum(aligned(t.nbytes) for t in kept if t.status is IN)
            del loss, middle, features, view, survivors, tensor, base, kept
        # Parameters, gradients, momentum.
        assert sum(aligned(s.nbytes) for s in runtime.memory.live()) == 3 * sum(aligned(p.nbytes) for p in parameters)


def test_survivors_that_do_not_fit_together_are_all_made_real():
    with small_runtime(units=6, policy="recompute") as runtime:
        with runtime.iteration():
            x = leaf(runtime)
            kept = [scale(x, float(i)) for i in range(20)]
            assert sum(t.status is RECOMPUTE for t in kept) >= 15
            del x
        # Making one real must not drop another that already was.
        assert all(t.storage.call is None and t.status in (IN, OUT) for t in kept)
        assert len(runtime.memory.live()) == 20
        assert [float(t.numpy()[0]) for t in kept] == [float(i) for i in range(20)]


def test_ids_and_access_counts_restart_with_every_iteration():
    with small_runtime() as runtime:
        w = parameter((64,))
        fill_(w, 1.0)
        optimizer = SGD([w], lr=0.1)
        assert w.tensor_id < 0 and w.access_count == 1
        with runtime.iteration():
            pass
        survivor, seen = None, []
        for _ in range(3):
            with runtime.iteration():
                x = leaf(runtime)
                y = w * x
                loss = y.sum()
                assert (w.access_count, x.access_count, y.access_count) == (1, 2, 2)
                first = runtime.tracker.iteration_start
                assert (w.storage.first_access, x.storage.first_access) == (first + 1, first)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                assert w.access_count == 2  # the product, and the update; x, not w, is what the product saved
                seen.append((w.tensor_id, x.tensor_id, y.tensor_id, loss.tensor_id, w.grad.tensor_id))
                del x, y
            if survivor is not None:
                assert survivor.tensor_id == seen[0][3] + SURVIVOR_STEP  # its own id belongs to another now
            survivor = loss if survivor is None else survivor
            assert w.access_count == 0 == loss.access_count
        assert seen[0] == seen[1] == seen[2] and len(set(seen[0])) == 5


def test_what_was_dropped_in_a_failed_iteration_keeps_lineage_but_not_its_id():
    with small_runtime() as runtime:
        with pytest.raises(ZeroDivisionError), runtime.iteration():
            x = leaf(runtime)
            y = scale(x, 2.0)
            drop(runtime, y)
            1 / 0  # noqa: B018
        assert y.status is RECOMPUTE and y.storage.call is not None
        with runtime.iteration():
            a = leaf(runtime)
            b = scale(a, 3.0)
            assert {a.tensor_id, b.tensor_id}.isdisjoint({x.tensor_id, y.tensor_id})
            assert float(y.numpy()[0]) == 2.0
        assert y.storage.call is None


def test_without_marks_an_iteration_ends_at_the_first_other_call_after_an_update():
    with small_runtime() as runtime:
        first, second = parameter((64,)), parameter((64,))
        for w in (first, second):
            fill_(w, 1.0)
        optimizers = [SGD([w], lr=0.1) for w in (first, second)]
        iterations, ids = [], []
        loss = None
        for _ in range(3):
            x = leaf(runtime)  # the upload is the first call of the iteration
            ids.append(x.tensor_id)
            iterations.append(runtime.tracker.iteration)
            if loss is not None:
                assert loss.storage.base.call is None and loss.storage.base.severed is not None
            y = x * first
            loss = (y * second).sum()
            assert runtime.tracker.iteration == iterations[-1]
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()  # two updates, one iteration
            loss.item()  # reading is not a call that starts the next one
            assert runtime.tracker.iteration == iterations[-1] and y.storage.call is not None
        assert iterations == [0, 1, 2] and len(set(ids)) == 1


def test_inside_a_marked_iteration_an_update_ends_nothing():
    with small_runtime() as runtime:
        w = parameter((64,))
        fill_(w, 1.0)
        optimizer = SGD([w], lr=0.1)
        with runtime.iteration():
            for _ in range(2):
                optimizer.zero_grad()
                (w * w).sum().backward()
                optimizer.step()
            y = scale(w, 2.0)
            assert runtime.tracker.iteration == 1 and y.storage.call is not None
        assert runtime.tracker.iteration == 2 and y.storage.call is None


def test_backward_of_a_loss_from_an_ended_iteration_is_an_error():
    with small_runtime() as runtime:
        w = leaf(runtime, requires_grad=True)
        with runtime.iteration():
            hidden = scale(w, 2.0)
            loss = hidden.sum()
        with pytest.raises(UserError, match="backward"):
            loss.backward()
        with pytest.raises(UserError, match="backward"):
            hidden.sum().backward()
        assert w.grad is None and hidden.grad is None


def test_what_the_end_of_an_iteration_lets_go_of_still_leads_to_what_was_computed_from_it():
    """The call of ``product`` is the last that asks for ``middle``, and is cut before ``held`` is made again."""
    with small_runtime() as runtime:
        w, x = leaf(runtime, 2.0, requires_grad=True), leaf(runtime, 3.0)
        with runtime.iteration():
            middle = shift(x, 1.0)
            product, held = middle * w, scale(middle, 5.0)
            drop(runtime, middle)
            drop(runtime, held)
            del middle
        assert set(held.numpy()) == {20.0} and set(product.numpy()) == {8.0}


def test_what_only_its_own_gradient_kept_still_leads_to_what_was_computed_from_it():
    with small_runtime() as runtime:
        x = leaf(runtime, 0.0, requires_grad=True)
        with runtime.iteration():
            middle = sigmoid(x)  # its gradient is a function of it
            held = shift(middle, 5.0)
            drop(runtime, held)
            del middle
        assert set(held.numpy()) == {5.5}


def _holding(kind, **options):
    """Twenty iterations of a program that reads a mask, a state that it then makes anew, or the oldest of three that it
    replaces; what it holds at last, its guide, and whether plans were followed."""
    with small_runtime(**options) as runtime:
        w = parameter((64 * 4,))
        fill_(w, 1.0)
        held = deque([leaf(runtime, 2.0, units=4)], maxlen=3 if kind == "buffer" else 1)
        for _ in range(20):
            with runtime.iteration():
                parts = [w * leaf(runtime, 1.0, units=4)]
                for _ in range(4):
                    parts.append(scale(parts[-1], 1.0) * held[0])
                if kind != "mask":
                    held.append(scale(sum(parts[1:], parts[0]), 0.2))
                del parts
        guide = runtime.guide
        followed = guide is not None and guide.active.last is not None and guide.diverged <= 8
        return [tensor.numpy().tobytes() for tensor in held], guide, followed


@pytest.mark.parametrize("kind", ["mask", "state", "buffer"])
def test_programs_with_tensors_that_they_hold_are_planned(kind):
    values, guide, followed = _holding(kind, units=24, policy="auto")
    assert values == _holding(kind, policy="none")[0]
    assert len(guide.entries) <= {"mask": 1, "state": 3, "buffer": 6}[kind]
    assert followed
