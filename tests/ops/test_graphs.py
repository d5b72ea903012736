"""What a gradient means: PyTorch's number, or an error that names the tensor, never less in silence."""

import numpy as np
import pytest

from minidl import Runtime, UserError, nn, no_grad, ops, parameter
from minidl.errors import ShapeError
from minidl.ops import concat, expand, relu
from minidl.optim import SGD


@pytest.fixture(autouse=True)
def runtime():
    with Runtime("cpu:virtual", memory_budget="1MiB", poisoned=True) as made:
        yield made


def weight(value=2.0, shape=(2,)):
    w = parameter(shape)
    w.fill_(value)
    return w


def test_without_iterations_a_graph_that_an_update_has_ended_is_named_by_backward(runtime):
    generator, judge = weight(), weight(3.0)
    fake = generator * 1.5
    optimizer = SGD([judge], lr=0.1)
    for _ in range(2):  # a graph that waits for its gradient outlives one update, not two
        (fake.detach() * judge).sum().backward()
        optimizer.step()
    loss = (fake * judge).sum()  # the first call of a new iteration: the graph of fake is gone
    with pytest.raises(UserError, match=r"backward\(\) reached tensor \d+ \(float32\[2\]\), made by scale, whose "
                                        "graph is gone: its iteration has ended"):
        loss.backward()
    assert generator.grad is None


def test_in_one_iteration_the_same_program_trains_both(runtime):
    generator, judge = weight(), weight(3.0)
    optimizer = SGD([judge], lr=0.1)
    with runtime.iteration():
        fake = generator * 1.5
        (fake.detach() * judge).sum().backward()
        optimizer.step()  # judge is 3 - 0.1 * 3
        (fake * judge).sum().backward()
    assert generator.grad.numpy() == pytest.approx(1.5 * 2.7)


def test_a_value_made_before_an_iteration_is_a_constant_only_if_it_was_detached(runtime):
    w = weight()
    x = w * 3.0
    with runtime.iteration():
        loss = (x * w).sum()
        with pytest.raises(UserError, match="made by scale, whose graph is gone"):
            loss.backward()
        (x.detach() * w).sum().backward()
        assert w.grad.numpy().tolist() == [6.0, 6.0]
    assert x.requires_grad and not x.detach().requires_grad


def test_a_kept_value_becomes_a_leaf_of_the_new_iteration_when_it_is_asked_to_require_a_gradient(runtime):
    w = weight()
    with runtime.iteration():
        x = w * 3.0
    x.requires_grad = True
    with runtime.iteration():
        (x * w).sum().backward()
    assert x.grad.numpy().tolist() == [2.0, 2.0] and w.grad.numpy().tolist() == [6.0, 6.0]


def test_a_view_of_a_parameter_made_outside_is_good_for_every_iteration_and_every_backward(runtime):
    w = weight(shape=(2, 3))
    view = w.reshape((6,)).narrow(0, 1, 3)
    for _ in range(2):
        with runtime.iteration():
            (view * view).sum().backward()
            (view * 3.0).sum().backward()
    assert w.grad.numpy().reshape(-1).tolist() == [0.0, 14.0, 14.0, 14.0, 0.0, 0.0]  # 2 (2 * 2 + 3)


def test_an_operation_in_place_that_would_lose_a_gradient_is_an_error_that_names_it(runtime):
    w, y = weight(), runtime.tensor(np.ones(2, "f4"))
    for write in (ops.add_, ops.copy_):
        with pytest.raises(UserError, match=r"would lose the gradient of tensor \d+ \(float32\[2\]\): use"):
            write(y, w * 2.0)
    y = y + w * 2.0
    (y * w).sum().backward()
    assert w.grad.numpy().tolist() == [9.0, 9.0]  # of w + 2 w^2 at 2


def test_what_is_written_under_no_grad_has_no_graph_any_more_and_backward_says_so(runtime):
    w, one = weight(), runtime.tensor(np.ones(2, "f4"))
    y = w * 3.0
    with no_grad():
        y.add_(one)
    with pytest.raises(UserError, match="made by scale, whose graph is gone"):
        (y * w).sum().backward()
    assert w.grad is None or w.grad.numpy().tolist() == [7.0, 7.0]


def test_a_retained_graph_can_be_gone_over_again_and_gradients_add_up(runtime):
    w = weight()
    hidden = relu(w * w)
    loss = (hidden * hidden).sum()  # 4 w^3 = 32
    loss.backward(retain_graph=True)
    assert w.grad.numpy().tolist() == [32.0, 32.0]
    loss.backward(retain_graph=True)
    assert w.grad.numpy().tolist() == [64.0, 64.0]
    loss.backward()
    assert w.grad.numpy().tolist() == [96.0, 96.0] and hidden.numpy().tolist() == [4.0, 4.0]
    with pytest.raises(UserError, match=r"has been taken already.*retain_graph=True"):
        loss.backward()
    del loss, hidden
    runtime.check()


def test_two_losses_over_one_trunk_need_the_graph_once_retained(runtime):
    w = weight()
    trunk = w * w
    first, second = (trunk * 2.0).sum(), (trunk * trunk).sum()
    first.backward(retain_graph=True)
    second.backward()
    assert w.grad.numpy().tolist() == [40.0, 40.0]  # 4 w + 4 w^3


def test_a_gradient_of_another_dtype_is_an_error(runtime):
    w = weight()
    with pytest.raises(UserError, match="a gradient of float64 does not fit a value of float32"):
        (w * 2.0).backward(runtime.tensor(np.ones(2)))
    assert w.grad is None


# After a failure ------------------------------------------------------------------------------------------------------
def after_a_failure(budget, policy):
    """All that a program can see of what it kept of an iteration that failed, and of the step after it."""
    with Runtime("cpu:virtual", memory_budget=budget, policy=policy, host_memory=1 << 20) as runtime:
        w = weight(0.5, (64,))
        kept = []
        with pytest.raises(KeyError), runtime.iteration():
            x = w * w
            for _ in range(4):
                x = (x * w).tanh()
                kept += [x, x.reshape((8, 8))]
            x.sum().backward(retain_graph=True)
            raise KeyError
        seen = [(t.requires_grad, t.operation_name, t.inputs) for t in kept[::2]]
        gradient = w.grad.numpy().tolist()
        with runtime.iteration():
            loss = (concat([kept[0], w], 0) * 2.0).sum()
            with pytest.raises(UserError, match="whose graph is gone"):
                loss.backward()
            w.grad = None
            (kept[2].detach() * w).sum().backward()
        for t in kept[::2]:
            nn.Module().kept = t  # which refuses what an operation has made
            t.requires_grad = False
        return seen, gradient, w.grad.numpy().tolist(), [t.numpy().tolist() for t in kept]


@pytest.mark.parametrize("policy", ["passive", "recompute", "dtr-swap", "auto"])
def test_after_a_failed_iteration_all_that_was_kept_is_alike_whatever_the_budget(policy):
    expected = after_a_failure(1 << 20, "none")
    assert expected[0] == [(True, "", ())] * 4
    for budget in (1024, 1536, 2560):
        assert after_a_failure(budget, policy) == expected


# Nobody's tensor is destroyed ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("attention", ["composed", "fused"])
def test_attention_leaves_a_learned_query_and_one_tensor_given_three_times_to_their_owner(attention):
    with Runtime("cpu:virtual", memory_budget="1MiB", attention=attention) as runtime:
        query = weight(0.5, (1, 3, 4))
        x = runtime.tensor(np.ones((1, 3, 4), "f4"))
        for _ in range(2):
            nn.attend(query, x, x, heads=2, dropout=nn.Dropout(0.0)).sum().backward()
        assert nn.attend(x, x, x, heads=2, dropout=nn.Dropout(0.0)).numpy().tolist() == [[[1.0] * 4] * 3]
        assert x.numpy().tolist() == [[[1.0] * 4] * 3] and query.numpy()[0, 0].tolist() == [0.5] * 4


def test_a_layer_in_place_leaves_its_result_in_the_tensor_that_it_was_called_with(runtime):
    x = runtime.tensor(np.array([-1.0, 2.0], "f4"))
    y = nn.ReLU(inplace=True)(x)
    assert y is x and x.numpy().tolist() == [0.0, 2.0]
    w = weight()
    hidden = w * 3.0
    kept = hidden
    nn.Dropout(0.5, inplace=True)(hidden)
    assert kept.operation_name == "dropout"
    kept.sum().backward()
    assert set(w.grad.numpy().tolist()) <= {0.0, 6.0}
    with pytest.raises(UserError, match="is a leaf that requires a gradient: no layer may work on it in place"):
        nn.ReLU(inplace=True)(w)
    assert w.numpy().tolist() == [2.0, 2.0]


def test_a_tensor_that_is_gone_says_so_and_one_that_a_failed_call_was_given_is_not(runtime):
    from minidl.dispatch import donate
    x = runtime.tensor(np.ones(2, "f4")) * 1.0
    with pytest.raises(UserError, match="do not broadcast"):
        donate(x) + runtime.tensor(np.ones(3, "f4"))
    assert (x + x).numpy().tolist() == [2.0, 2.0] and x.numpy().tolist() == [1.0, 1.0]
    y = donate(x) * 2.0
    for use in (lambda: x + y, lambda: y + x, lambda: x.shape, lambda: x.numpy(), lambda: x.release()):
        with pytest.raises(UserError, match="this tensor is gone: it was released, or donated"):
            use()
    assert repr(x) == "Tensor(gone)" and y.numpy().tolist() == [2.0, 2.0]


def test_under_no_grad_nothing_is_its_own_view(runtime):
    """A reshape or an expansion that changes nothing may not let a gradient through either."""
    w = weight()
    with no_grad():
        parts = [w.reshape((2,)), expand(w, (2,)), w.flatten(0), w.permute((0,)), w.narrow(0, 0, 2)]
    assert not any(part.requires_grad for part in parts)
    y = w * 3.0
    for part in parts:
        y = y * part
    y.sum().backward()
    assert w.grad.numpy().tolist() == [3.0 * 2.0**5] * 2


def test_a_sum_has_bytes_of_its_own_also_where_there_is_nothing_to_add(runtime):
    x = runtime.tensor(np.ones((2, 1), "f4"))
    for y in (x.sum(1, keepdim=True), x.sum(1), x.sum(())):
        y.fill_(5.0)
        assert x.numpy().tolist() == [[1.0], [1.0]]
    assert runtime.tensor(np.ones((2, 1), "i4")).sum(1).dtype.name == "int64"


def test_a_write_whose_elements_overlap_is_refused(runtime):
    x = runtime.tensor(np.arange(6, dtype="f4").reshape(2, 3))
    wide = expand(runtime.tensor(np.ones((2, 1), "f4")), (2, 3))
    for write in (lambda: wide.add_(x), lambda: wide.fill_(2.0)):
        with pytest.raises(ShapeError, match="would write several elements of tensor .* to one place, as it"):
            write()
    square = runtime.tensor(np.arange(9, dtype="f4").reshape(3, 3))
    for target, source in ((square, square.permute((1, 0))), (x.narrow(1, 0, 2), x.narrow(1, 1, 2))):
        with pytest.raises(ShapeError, match="would overwrite its own input: .* overlapping parts of one tensor"):
            target.copy_(source)
    assert square.numpy()[0].tolist() == [0.0, 1.0, 2.0] and x.numpy()[0].tolist() == [0.0, 1.0, 2.0]
    x.narrow(1, 0, 1).copy_(x.narrow(1, 2, 1))  # side by side, one within the other, or the very same: well
    x.add_(x)
    assert x.numpy().tolist() == [[4.0, 2.0, 4.0], [10.0, 8.0, 10.0]]


def test_a_write_that_computes_its_result_first_may_read_an_overlapping_part(runtime):
    a = np.arange(9, dtype="f4").reshape(3, 3)
    x, y = runtime.tensor(a), runtime.tensor(a)
    x -= x[0]
    assert (x.numpy() == a - a[0]).all()
    y[:, :2] *= y[:, 1:]
    assert (y.numpy()[:, :2] == a[:, :2] * a[:, 1:]).all() and (y.numpy()[:, 2] == a[:, 2]).all()
    for write in (lambda: y[:, :2].add_(y[:, 1:]), lambda: y[:, :2].copy_(y[:, 1:]), lambda: index_into(y)):
        with pytest.raises(ShapeError, match="would overwrite its own input"):
            write()


def index_into(x):
    x[1:] = x[:-1]
