"""When an output is written over an input, and when it must not be. Sizes are in units of 256 bytes.

Peaks tell: an operation of 8 units in and 8 out peaks 8 lower if it writes in place. Values tell the rest: the arena
is poisoned, and every input that someone may still ask for is read afterwards.
"""

import random

import numpy as np
import pytest
from networks import UNIT, drop, launches, leaf, small_runtime, swap_out, used_units
from watch import WatchedDevice

import minidl
from minidl import nn
from minidl.device import profiles
from minidl.dispatch import apply, donate
from minidl.errors import OutOfMemory
from minidl.memory.storage import IN, OUT, RECOMPUTE
from minidl.ops.batchnorm import BATCH_NORM_GRAD, batch_norm
from minidl.ops.elementwise import (
    DROPOUT,
    RELU_GRAD,
    SIGMOID_GRAD,
    TANH_GRAD,
    add,
    div,
    exp,
    mul,
    relu,
    scale,
    sub,
    tanh,
)
from minidl.ops.shape import between
from minidl.ops.update import fill_
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Plan, Proposal
from minidl.plan.policy import OnDemand
from minidl.plan.trace import Trace
from minidl.policies import CHOICES
from minidl.policies.dtr_swap import DtrSwap
from minidl.policies.passive import Passive
from minidl.runtime import Runtime, parameter
from minidl.tensor import GONE, Tensor

SIZE = 8  # units of every tensor here, unless it says otherwise


def values(tensor: Tensor) -> set[float]:
    return set(tensor.numpy().ravel().tolist())


def peak_units(runtime: Runtime) -> int:
    """Highest use since the last call of this function; starts counting again."""
    runtime.check()
    peak = runtime.stats().peak_bytes // UNIT
    runtime.reset_peak()
    return peak


def donated(runtime: Runtime) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """The calls of this iteration that wrote over an input."""
    return [(call.op, call.donated) for call in runtime.trace().calls if call.donated]


def test_a_peak_is_that_since_it_was_reset():
    with small_runtime(units=64) as runtime:
        kept = leaf(runtime, units=SIZE)
        passing = leaf(runtime, units=SIZE)
        del passing
        assert peak_units(runtime) == 2 * SIZE
        assert peak_units(runtime) == SIZE
        del kept


# Free donation: the caller hands over the last use -------------------------------------------------------------------
def test_a_value_given_away_is_written_over():
    with small_runtime() as runtime:
        y = scale(leaf(runtime, units=SIZE), 2.0)
        offset, peak = y.storage.block.offset, peak_units(runtime)
        z = relu(donate(y))
        assert y.storage is GONE  # the handle is dead
        assert z.storage.block.offset == offset
        assert peak_units(runtime) == peak == 2 * SIZE  # the leaf, and the value
        assert values(z) == {2.0}
        assert donated(runtime) == [("relu", ((2, 1),))]


def test_a_value_that_is_not_given_away_is_not_written_over():
    with small_runtime() as runtime:
        y = scale(leaf(runtime, units=SIZE), 2.0)
        z = scale(y, 3.0)
        assert used_units(runtime) == 3 * SIZE and values(y) == {2.0} and values(z) == {6.0}


def test_a_leaf_is_never_written_over():
    with small_runtime() as runtime:
        x = leaf(runtime, units=SIZE)
        y = relu(donate(x))  # the handle is gone, but what x was may have to be read again to replay y
        assert used_units(runtime) == 2 * SIZE and donated(runtime) == []
        drop(runtime, y)
        assert values(y) == {1.0}


@pytest.mark.parametrize("holder", ["another handle", "a view", "a call that saved it"])
def test_a_value_that_someone_else_may_ask_for_is_not_written_over(holder):
    with small_runtime() as runtime:
        y = scale(leaf(runtime, units=SIZE, requires_grad=True), 2.0)
        other = {"another handle": y.alias, "a view": lambda: between(y, 0, 0, 64),
                 "a call that saved it": lambda: mul(y, y)}[holder]()
        before = used_units(runtime)
        z = scale(donate(y), 3.0)
        assert used_units(runtime) == before + SIZE and donated(runtime) == []
        assert values(z) == {6.0} and values(other) == {4.0 if holder == "a call that saved it" else 2.0}


def test_a_part_of_a_larger_value_is_not_written_over():
    with small_runtime() as runtime:
        y = scale(leaf(runtime, units=SIZE), 2.0)
        part = between(y, 0, 0, 64)
        del y
        z = scale(donate(part), 3.0)
        assert donated(runtime) == [] and values(z) == {6.0}
        whole = scale(leaf(runtime, units=2), 2.0)
        half = between(whole, 0, 64, 128)
        del whole
        # The sum is as large as what the half is a half of; written over it, it would read what it has just written.
        rows = add(donate(half), leaf(runtime, units=2).reshape((2, 64)))
        assert donated(runtime) == [] and values(rows) == {3.0}


@pytest.mark.parametrize("op", [add, sub, mul, div])
@pytest.mark.parametrize("policy", ["passive", "recompute", "dtr-swap", "capuchin", "auto"])
def test_an_operand_of_as_many_bytes_and_another_shape_is_not_written_over(policy, op):
    def result(budget: int, policy: str) -> bytes:
        with Runtime("cpu:virtual", memory_budget=budget, policy=policy, host_memory=1 << 20, poisoned=True) as runtime:
            a, b = parameter((2, 64)), parameter((64,))
            a.fill_(2.0)
            b.fill_(10.0)
            with minidl.no_grad(), runtime.iteration():
                if policy != "none":
                    swap_out(runtime, b)
                b.numpy()  # it is back, and the host still has a copy: its bytes may be written over
                kept = runtime.tensor(np.zeros(64, np.float32))  # a takes 2 units of 4, b and this one each: no room
                found = op(between(a, 0, 0, 1), b).numpy().tobytes()
            del kept
            return found
    assert result(4 * UNIT, policy) == result(1 << 20, "none")


def test_an_input_that_comes_twice_is_not_written_over():
    with small_runtime() as runtime:
        y = scale(leaf(runtime, units=SIZE), 3.0)
        z = add(donate(y), y)
        assert donated(runtime) == [] and values(z) == {6.0}


def test_an_input_of_another_size_is_not_written_over():
    with small_runtime() as runtime:
        small = scale(leaf(runtime), 3.0)
        large = scale(leaf(runtime, units=2), 1.0).reshape((2, 64))
        z = add(donate(small), large)
        assert donated(runtime) == [] and values(z) == {4.0}


def test_in_place_relu_writes_over_what_nothing_saved():
    """Batch norm saves its input, not its output; the second ReLU's input is saved by the first."""
    with small_runtime() as runtime:
        x = runtime.tensor(np.arange(512, dtype=np.float32).reshape(4, 2, 8, 8) - 256)
        norm, activation = nn.BatchNorm2d(2), nn.ReLU(inplace=True)
        before = used_units(runtime)
        y = norm(x)
        assert used_units(runtime) == before + SIZE + 2  # and the two statistics, which are saved
        expected = y.numpy()
        y = activation(y)
        assert used_units(runtime) == before + SIZE + 2
        assert (y.numpy() == np.maximum(expected, 0)).all()
        y = activation(y)
        assert used_units(runtime) == before + 2 * SIZE + 2
        assert (y.numpy() == np.maximum(expected, 0)).all()


# Gradients ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "y"), [(RELU_GRAD, relu), (TANH_GRAD, tanh), (SIGMOID_GRAD, lambda x: x.sigmoid())])
def test_a_gradient_formula_writes_over_the_gradient_that_came_in(op, y):
    with small_runtime() as runtime:
        w = leaf(runtime, 0.5, units=SIZE, requires_grad=True)
        out = y(scale(w, 1.0))
        seed = scale(leaf(runtime, 3.0, units=SIZE), 1.0)  # a value of its own, which backward() may hand over
        runtime.reset_peak()
        before = used_units(runtime)
        out.backward(seed)
        # The seed and the value are still ours, so the first formula has to make a gradient of its own; the next one
        # writes over that.
        assert values(seed) == {3.0}
        assert dict(donated(runtime)).keys() == {"scale"}
        del out
        assert peak_units(runtime) == before + SIZE
        assert w.grad is not None and used_units(runtime) == before  # the gradient, instead of the value
        # The same by hand, with the handle given away.
        a, b = scale(seed, 2.0), scale(seed, 0.1)
        runtime.reset_peak()
        before = used_units(runtime)
        apply(op, donate(a), donate(b))
        assert peak_units(runtime) == before
        assert donated(runtime)[-1][0] == op.name


def test_backward_through_a_chain_needs_one_gradient_at_a_time():
    with small_runtime() as runtime:
        w = leaf(runtime, 0.5, units=SIZE, requires_grad=True)
        y = w
        for _ in range(10):
            y = relu(y)
        before = used_units(runtime)
        loss = y.sum()
        del y
        runtime.reset_peak()
        loss.backward()
        # The sum and its gradient take a unit each, and that gradient is only expanded; so the first formula writes
        # over the value that its call had saved, and from there on there is one gradient, in one place.
        assert peak_units(runtime) == before + 2
        assert [name for name, _ in donated(runtime)] == ["relu_grad"] * 10
        assert used_units(runtime) == 1 + 2 * SIZE


def test_batch_norms_gradient_takes_the_place_of_the_one_that_came_in():
    with small_runtime() as runtime:
        x = leaf(runtime, units=SIZE, requires_grad=True).reshape((4, 2, 8, 8))
        norm = nn.BatchNorm2d(2)
        y = batch_norm(scale(x, 2.0), norm.weight, norm.bias, norm.running_mean, norm.running_var, training=True)
        y = scale(y, 1.0)
        loss = y.sum()
        del y
        loss.backward()
        assert BATCH_NORM_GRAD.name in dict(donated(runtime))
        assert x.storage.base.grad is not None


def test_a_gradient_shared_by_a_residual_join_is_not_written_over():
    """Both branches get the same gradient; the one visited first must leave it whole for the other."""
    with small_runtime() as runtime:
        w = leaf(runtime, 0.5, units=SIZE, requires_grad=True)
        x = scale(w, 1.0)
        loss = add(relu(x), scale(x, 3.0)).sum()
        loss.backward()
        assert w.grad is not None and values(w.grad) == {4.0}
        a, b = scale(w, 1.0), scale(w, 1.0)
        w.grad = None
        seed = scale(leaf(runtime, 2.0, units=SIZE), 1.0)
        add(tanh(a), relu(b)).backward(donate(seed).alias())
        expected = 2.0 * (1.0 - np.tanh(np.float32(0.5)) ** 2) + 2.0
        assert w.grad is not None and np.allclose(w.grad.numpy(), expected, rtol=1e-6)


def test_the_gradient_of_a_leaf_is_its_own():
    """Two leaves of one sum must not share a gradient's bytes: each is added to later."""
    with small_runtime() as runtime:
        v, w = (leaf(runtime, 0.5, units=SIZE, requires_grad=True) for _ in range(2))
        for _ in range(2):
            add(v, w).sum().backward()
        w.grad.fill_(7.0)
        assert values(v.grad) == {2.0} and values(w.grad) == {7.0}
        assert v.grad.storage.block is not w.grad.storage.block


# Under pressure -----------------------------------------------------------------------------------------------------
def test_under_pressure_an_input_that_can_be_made_again_is_written_over():
    """Arena of 3 tensors: x, y, z fill it. exp(z) takes z's place, and z comes back when its handle is used."""
    with small_runtime(units=3 * SIZE) as runtime:
        x = leaf(runtime, 0.5, units=SIZE)
        y = scale(x, 3.0)
        z = scale(y, 5.0)
        expected = z.numpy()
        e = exp(z)
        assert z.status is RECOMPUTE and e.status is IN and y.status is IN
        assert runtime.stats().swapped_out_bytes == 0
        with launches(runtime) as names:
            again = z.numpy()
        assert names == ["scale"] and again.tobytes() == expected.tobytes()
        assert np.allclose(e.numpy(), np.exp(expected), rtol=1e-6)


def test_an_input_with_a_copy_on_the_host_is_written_over_and_read_back():
    with small_runtime(units=3 * SIZE) as runtime:
        x = leaf(runtime, 0.5, units=SIZE)
        y, z = scale(x, 3.0), scale(x, 5.0)
        swap_out(runtime, x)
        assert values(x) == {0.5} and x.status is IN  # back, and the copy is still valid
        e = exp(x)
        assert x.status is OUT and y.status is z.status is e.status is IN
        assert runtime.stats().swapped_out_bytes == SIZE * UNIT
        with launches(runtime) as names:
            assert values(x) == {0.5}
        assert names == []


def test_a_copy_under_way_of_what_was_given_away_stays_whole_while_a_replay_may_start_from_it():
    """x has been written since y was made from it, so only y's bytes lead to w. They are still being copied out when y
    is given away, and w is dropped before y's handle is released."""
    device = WatchedDevice(profiles.get("cpu"), random.Random(0))
    with Runtime(device, policy="passive", memory_budget=16 * SIZE * UNIT, host_memory=SIZE * UNIT) as runtime:
        x = leaf(runtime, 0.5, units=SIZE)
        y = scale(x, 2.0)
        w = exp(y)
        runtime.memory.allocator.start_swap_out(y.storage)
        y.storage.set_status(IN)  # as for a call that reads it
        fill_(x, 9.0)
        runtime.executor.inspect = lambda *call: drop(runtime, w)
        relu(donate(y))
        runtime.executor.inspect = None
        assert w.status is RECOMPUTE and np.allclose(w.numpy(), np.exp(1.0))


def test_the_input_that_the_call_itself_saves_is_backed_up_before_it_is_written_over():
    """Arena of 2 tensors, and z = x * w fills it: w's gradient needs x. Dropping x would leave the product to be
    replayed for it; instead x goes to the host, and its bytes to z."""
    with small_runtime(units=2 * SIZE) as runtime:
        w = leaf(runtime, 2.0, units=SIZE, requires_grad=True)
        x = scale(w.detach(), 3.0)
        z = mul(x, w)
        assert x.status is OUT and runtime.stats().swapped_out_bytes == SIZE * UNIT
        assert values(z) == {12.0}
        with launches(runtime) as names:
            assert values(x) == {6.0}
        assert names == []
        z.backward(x)
        assert w.grad is not None and values(w.grad) == {36.0}


def test_an_input_that_an_earlier_call_saved_is_backed_up_too():
    with small_runtime(units=3 * SIZE, policy="passive") as runtime:
        w = leaf(runtime, 0.5, units=SIZE, requires_grad=True)
        x = exp(w)  # saved by its own call
        y = relu(x)
        swapped = runtime.stats().swapped_out_bytes
        z = scale(x, 3.0)  # w is the better victim: x is not written over while it is saved
        assert swapped == 0 and x.status is IN and w.status is OUT
        z.backward(y)
        assert w.grad is not None
        assert np.allclose(w.grad.numpy(), 3 * np.exp(np.float32(0.5)) ** 2, rtol=1e-6)


def test_a_leaf_is_backed_up_before_it_is_written_over():
    with small_runtime(units=SIZE) as runtime:
        x = leaf(runtime, 0.5, units=SIZE)
        y = scale(x, 3.0)  # the whole arena is one tensor
        assert x.status is OUT and values(y) == {1.5} and values(x) == {0.5} and values(y) == {1.5}


def test_a_parameter_is_backed_up_before_it_is_written_over():
    with small_runtime(units=SIZE):
        w = parameter((64 * SIZE,))
        fill_(w, 0.5)
        y = scale(w, 3.0)
        assert w.status is OUT and values(y) == {1.5} and values(w) == {0.5}


def test_with_a_full_host_and_no_lineage_nothing_is_written_over():
    with small_runtime(units=SIZE, host_memory=SIZE * UNIT - 1) as runtime:
        x = leaf(runtime, 0.5, units=SIZE)
        with pytest.raises(OutOfMemory, match="host memory is full"):
            scale(x, 3.0)
        assert x.status is IN and values(x) == {0.5} and used_units(runtime) == SIZE


def test_policy_none_takes_what_is_given_but_nothing_else():
    with small_runtime(units=2 * SIZE, policy="none") as runtime:
        y = scale(leaf(runtime, 0.5, units=SIZE), 3.0)
        y = relu(donate(y))
        assert values(y) == {1.5}
        with pytest.raises(OutOfMemory, match="evicts nothing"):
            relu(y)
        assert y.status is IN and values(y) == {1.5}


def test_the_peak_of_dropout_and_arithmetic_given_away_does_not_grow():
    with small_runtime(units=3 * SIZE, policy="none") as runtime, minidl.no_grad():
        x, y = leaf(runtime, units=SIZE), scale(leaf(runtime, units=SIZE), 2.0)
        for seed in range(3):
            y = apply(DROPOUT, donate(y), p=0.5, seed=seed)
            y = add(donate(y), x)
            y = mul(donate(y), x)
        assert used_units(runtime) == 3 * SIZE


def following(base: type[OnDemand]) -> OnDemand:
    """Return a policy that follows a plan which swaps one small tensor out; the rest is on demand, as in ``base``."""

    class Following(base):  # type: ignore[misc, valid-type]
        plans = True

        def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
            return Proposal(Plan({(0, 2): Action.SWAP_OUT}))

    return Following()


@pytest.mark.parametrize("base", [DtrSwap, Passive])
def test_under_a_plan_an_input_is_not_written_over_if_its_replay_takes_longer_than_copies(base):
    """Memory holds four matrices and a bit. When ``exp`` wants room, its input is the end of eight products, of which
    only the first operands are left: 2 ms of replays, and a copy out and back takes 0.7 ms."""
    size = 1024
    with Runtime("sim:p100", policy=following(base), memory_budget=4 * 4 * size * size + 65536) as runtime:
        w = parameter((size, size))
        for _ in range(5):
            before = runtime.stats()
            with runtime.iteration(), minidl.no_grad():
                small = runtime.tensor(None, shape=(64,))
                x = runtime.tensor(None, shape=(size, size))
                exp(small)
                product = x
                for _ in range(8):
                    product = product @ w
                filler = runtime.tensor(None, shape=(size, size))
                result = exp(product)
                add(product, result)
                del small, x, product, filler, result
        spent = runtime.stats().since(before)
    assert runtime.plan is not None and spent.swapped_out_bytes > 0
    assert spent.recompute_seconds == 0.0


@pytest.mark.parametrize("policy", sorted({*CHOICES} - {"none"}))
def test_without_a_host_an_input_is_written_over_as_a_last_resort_however_long_its_replay_takes(policy):
    """Memory holds four matrices, of which three are leaves and operands. ``exp`` has no room but its input's."""
    size = 1024
    with Runtime("sim:p100", policy=policy, memory_budget=4 * 4 * size * size + 65536, host_memory=0) as runtime:
        w = parameter((size, size))
        for _ in range(5):
            with runtime.iteration(), minidl.no_grad():
                x = runtime.tensor(None, shape=(size, size))
                product = x
                for _ in range(8):
                    product = product @ w
                filler = runtime.tensor(None, shape=(size, size))
                result = exp(product)
                del filler, result
                exp(product)
                del x, product
        assert runtime.stats().recompute_seconds > 0.0
