"""What an in-place write does to values that were computed from the old bytes: nothing, whatever was dropped.

Sizes are in units of 256 bytes: tensors of 64 float32.
"""

import pytest
from networks import drop, launches, leaf, small_runtime, swap_out, used_units

from minidl import Runtime, no_grad, ops
from minidl.dispatch import donate
from minidl.errors import OutOfMemory, UserError
from minidl.memory.lineage import missing_calls
from minidl.memory.storage import IN, OUT, RECOMPUTE
from minidl.ops.elementwise import exp, mul, scale, shift
from minidl.ops.shape import concat
from minidl.ops.update import add_, copy_, fill_
from minidl.optim import SGD
from minidl.plan.plan import Action
from minidl.runtime import parameter
from minidl.tensor import Tensor


def value(tensor: Tensor) -> float:
    return float(tensor.numpy().ravel()[0])


def test_a_write_first_makes_again_what_was_dropped_and_reads_the_old_bytes():
    with small_runtime() as runtime:
        w, x = leaf(runtime, 2.0), leaf(runtime, 1.0)
        direct, through, unrelated = scale(w, 3.0), exp(shift(scale(w, 3.0), -6.0)), scale(x, 5.0)
        for tensor in (direct, through, unrelated):
            drop(runtime, tensor)
        with launches(runtime) as names:
            add_(w, x)
        assert sorted(names) == ["add_", "exp", "scale", "scale", "shift"]
        assert direct.status is through.status is IN and unrelated.status is RECOMPUTE
        assert (value(w), value(direct), value(through), value(unrelated)) == (3.0, 6.0, 1.0, 5.0)


def test_what_a_dropped_operand_of_a_write_displaces_is_there_again_before_the_write():
    """Three units without a host: to compute ``operand`` again takes two beside w, and ``other`` has one of them."""
    with small_runtime(units=3, host_memory=0) as runtime, runtime.iteration():
        w = leaf(runtime, 2.0)
        operand = exp(shift(w, -2.0))
        other = scale(w, 5.0)
        drop(runtime, operand)
        add_(w, operand)
        assert (value(w), value(operand), value(other)) == (3.0, 1.0, 10.0)


@pytest.mark.parametrize("away", ["dropped", "on the host"])
def test_no_operand_of_a_write_comes_back_in_place_of_what_reads_the_old_bytes(away):
    """Nothing but ``other`` can leave for it, and after the write ``other`` could not be computed again."""
    with small_runtime(units=3, host_memory=256 * (away != "dropped")) as runtime, runtime.iteration():
        w, operand = leaf(runtime, 2.0), leaf(runtime, 1.0)
        if away == "dropped":
            operand = scale(w, 0.5)
            drop(runtime, operand)
        else:
            swap_out(runtime, operand)
        other, filler = scale(w, 5.0), leaf(runtime, 7.0)
        with pytest.raises(OutOfMemory):
            add_(w, operand)
        del filler
        assert (value(other), value(operand), value(w)) == (10.0, 1.0, 2.0)
        add_(w, operand)
        assert (value(other), value(operand), value(w)) == (10.0, 1.0, 3.0)


def test_a_write_after_a_failed_iteration_still_makes_again_what_was_dropped_in_it():
    with small_runtime() as runtime:
        w, kept = leaf(runtime, 2.0), []
        with pytest.raises(ValueError), runtime.iteration():
            kept.append(scale(w, 3.0))
            drop(runtime, kept[0])
            raise ValueError
        with runtime.iteration():  # a failure computes nothing, so the lineage is older than this iteration
            fill_(w, 9.0)
        assert (value(w), value(kept[0])) == (9.0, 6.0)


def test_a_write_to_what_nobody_has_read_in_this_iteration_looks_at_no_lineage(monkeypatch):
    with small_runtime() as runtime:
        w, running = leaf(runtime, 2.0), leaf(runtime, 1.0)
        with runtime.iteration():
            y = scale(w, 3.0)
            drop(runtime, y)
            monkeypatch.setattr("minidl.memory.replay.missing_calls", None)  # it would be called, and fail
            fill_(running, 4.0)
            monkeypatch.undo()
            fill_(w, 9.0)
        assert (value(running), value(y)) == (4.0, 6.0)


def test_a_write_through_a_view_counts_as_one_to_its_base():
    with small_runtime() as runtime:
        w = leaf(runtime, 2.0, units=2)
        whole, part = scale(w, 3.0), scale(w.narrow(0, 0, 64), 5.0)
        drop(runtime, whole)
        drop(runtime, part)
        fill_(w.narrow(0, 64, 64), 9.0)
        assert set(whole.numpy()) == {6.0} and set(part.numpy()) == {10.0}
        assert value(w) == 2.0 and float(w.numpy()[-1]) == 9.0


def test_a_write_makes_the_host_copy_stale():
    with small_runtime() as runtime:
        w = leaf(runtime, 2.0)
        swap_out(runtime, w)
        assert value(w) == 2.0 and w.storage.host is not None  # brought back; the copy is kept
        fill_(w, 4.0)
        assert w.storage.host is None and runtime.stats().host_used_bytes == 0
        swap_out(runtime, w)
        assert value(w) == 4.0
        swap_out(runtime, w)
        fill_(w, 5.0)  # written while it was on the host: brought back first
        swap_out(runtime, w)
        assert value(w) == 5.0


def test_what_was_computed_from_overwritten_bytes_is_swapped_but_never_dropped():
    with small_runtime() as runtime:
        w, x = leaf(runtime, 2.0), leaf(runtime, 1.0)
        old = scale(w, 3.0)
        later = exp(shift(old, -6.0))  # the value between has no bytes: it too leads to the old w
        add_(w, x)
        new = scale(w, 3.0)
        for tensor in (old, later):
            assert missing_calls(tensor.storage) is None or tensor is later
            assert runtime.memory.evict(tensor.storage, Action.DROP)
        assert old.status is OUT and later.status is RECOMPUTE  # later can be made from old, which is safe
        drop(runtime, new)
        assert (value(later), value(old), value(new)) == (1.0, 6.0, 9.0)
        del old
        assert runtime.memory.evict(later.storage, Action.DROP)
        assert later.status is OUT and value(later) == 1.0


def test_what_a_dropped_value_has_to_start_from_is_not_given_away():
    with small_runtime() as runtime:
        w, x = leaf(runtime, 2.0), leaf(runtime, 1.0)
        old = scale(w, 3.0)
        later = exp(shift(old, -6.0))
        add_(w, x)  # nothing leads to the old value any more
        drop(runtime, later)
        assert set(scale(donate(old), 2.0).numpy()) == {12.0}
        assert value(later) == 1.0


@pytest.mark.parametrize("by", ["freed", "donated"])
def test_what_a_dropped_value_starts_from_stays_though_the_values_between_went_after_the_drop(by):
    """The last value is dropped while the one between is still there; then that one goes, and then its source."""
    with small_runtime(units=5) as runtime, no_grad():
        w, x = leaf(runtime, 2.0), leaf(runtime, 1.0)
        with runtime.iteration():
            source = scale(w, 3.0)
            between = shift(source, 1.0)
            last = scale(between, 2.0)
            add_(w, x)  # ends the lineage of ``source``
            drop(runtime, last)
            if by == "freed":
                del between
            else:
                filler = leaf(runtime)
                taking = scale(between, 1.0)  # finds no other bytes
                assert between.storage.status is RECOMPUTE
                del filler, taking
            del source
            assert value(last) == 14.0


def test_what_a_dropped_value_had_to_start_from_goes_once_that_value_is_there():
    """Arena of 5 units without a host: w, x, and what was computed from the old w."""
    with small_runtime(units=5, host_memory=0) as runtime:
        w, x = leaf(runtime, 2.0), leaf(runtime, 1.0)
        old = scale(w, 3.0)
        later = exp(shift(old, -6.0))
        drop(runtime, later)
        add_(w, x)
        del old
        assert used_units(runtime) == 3  # old stays for later
        assert value(later) == 1.0 and used_units(runtime) == 3
        assert set(concat([later, later], axis=0).numpy()) == {1.0}  # 2 units, beside w, x and later


def test_with_a_full_host_what_was_computed_from_overwritten_bytes_stays():
    with small_runtime(host_memory=0) as runtime:
        w, x = leaf(runtime, 2.0), leaf(runtime, 1.0)
        old = scale(w, 3.0)
        add_(w, x)
        assert not runtime.memory.evict(old.storage, Action.DROP)
        assert not runtime.memory.evict(old.storage, Action.SWAP_OUT)
        assert old.status is IN and value(old) == 6.0


def test_a_write_under_pressure_keeps_old_and_new_values_apart():
    """Six values of one parameter, each from before another write, in an arena of four tensors."""
    for policy in ("passive", "recompute"):
        with small_runtime(units=4, policy=policy) as runtime:
            w, one = parameter((64,)), leaf(runtime, 1.0)
            fill_(w, 0.0)
            kept = []
            for _ in range(6):
                kept.append(shift(scale(w, 10.0), 1.0))
                kept.append(exp(scale(w, 0.0)))
                add_(w, one)
                runtime.check()
            assert [value(t) for t in kept[::2]] == [10.0 * i + 1.0 for i in range(6)]
            assert [value(t) for t in kept[1::2]] == [1.0] * 6


def test_an_overwritten_intermediate_is_a_leaf_from_then_on():
    with small_runtime() as runtime:
        x = leaf(runtime, 2.0)
        y = scale(x, 3.0)
        z = shift(y, 1.0)
        copy_(y, x)
        assert y.storage.call is None and runtime.memory.evict(y.storage, Action.DROP)
        assert y.status is OUT and value(y) == 2.0
        assert runtime.memory.evict(z.storage, Action.DROP)
        assert z.status is OUT and value(z) == 7.0


def test_an_optimizer_step_keeps_values_of_the_forward_pass_right():
    with small_runtime() as runtime:
        w = parameter((64,))
        fill_(w, 2.0)
        optimizer = SGD([w], lr=1.0)
        with runtime.iteration():
            hidden = scale(w, 3.0)
            exposed = shift(hidden, 0.5)
            hidden.sum().backward()
            drop(runtime, hidden)
            drop(runtime, exposed)
            optimizer.step()
            assert value(w) == -1.0 and value(hidden) == 6.0 and value(exposed) == 6.5
            drop(runtime, exposed)  # its lineage ends at hidden, which has bytes: it may go again
            assert value(exposed) == 6.5


def test_a_write_that_does_not_fit_changes_nothing():
    """Arena of 3 units, all taken, and a host that is full of W: it cannot come back to be written."""
    with small_runtime(units=3, host_memory=256) as runtime:
        w, one = leaf(runtime, 2.0), leaf(runtime, 1.0)
        copy = scale(w, 3.0)
        drop(runtime, copy)
        swap_out(runtime, w)
        obstacles = [leaf(runtime), leaf(runtime)]
        with pytest.raises(OutOfMemory, match=r"scale: need 256 B .*host memory is full"):
            add_(w, one)
        assert not runtime.memory.state.writing and copy.status is RECOMPUTE and w.status is OUT
        runtime.check()
        obstacles.clear()
        add_(w, one)
        assert (value(w), value(copy)) == (3.0, 6.0)


def test_a_gradient_that_needs_what_was_written_in_place_since_is_an_error():
    with Runtime(device="cpu:virtual", memory_budget="1MiB"):
        w, c = parameter((4,)), parameter((4,), requires_grad=False)
        fill_(w, 2.0)
        fill_(c, 3.0)
        z = mul(w, c)
        fill_(c, 100.0)
        with pytest.raises(UserError, match=r"the gradient of mul needs a tensor of shape \[4\] that was written"):
            ops.sum(z).backward()


def test_writing_over_a_value_that_a_gradient_flows_through_is_an_error():
    with Runtime(device="cpu:virtual", memory_budget="1MiB"):
        w = parameter((4,))
        fill_(w, 2.0)
        y = mul(w, 3.0)
        with pytest.raises(UserError, match="add_ would overwrite a value that a gradient flows through"):
            ops.add_(y, w)
        with no_grad():
            y.add_(w)  # nobody differentiates this
        assert y.numpy().tolist() == [8.0] * 4


def test_what_only_a_written_value_was_computed_from_is_freed_by_the_write_and_not_by_the_next_call():
    with small_runtime(units=16) as runtime:
        x, z = leaf(runtime, 1.0), leaf(runtime, 2.0)
        y = shift(x, 1.0)
        del x  # its bytes stay: y may have to be computed again
        used = runtime.stats().used_bytes
        add_(y, z)
        assert runtime.stats().used_bytes == used - y.nbytes and not runtime.memory.state.orphans
        runtime.check()
