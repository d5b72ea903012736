"""Whose runtime is current: two in one thread, several threads, and the child of a fork."""

import contextvars
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cells import PATIENCE_S
from other_threads import all_at_once, in_a_thread, switch_interval

from minidl import Runtime, UserError, current_runtime, nn, parameter
from minidl.ops.loss import cross_entropy
from minidl.optim import Adam

ROOT = Path(__file__).resolve().parents[2]


def test_a_tensor_of_another_runtime_is_refused_by_every_operation_write_and_read():
    with Runtime("cpu:virtual", memory_budget="1MiB") as a:
        x, w = a.tensor(np.ones((2, 2), "f4")), parameter((2, 2))
        w.fill_(2.0)
        with Runtime("cpu:virtual", memory_budget="1MiB") as b:
            y = b.tensor(np.full((2, 2), 5.0, "f4"))
            for use in (lambda: x + y, lambda: y + x, lambda: y @ w, lambda: x.reshape((4,)), lambda: x.detach(),
                        lambda: y.copy_(x), lambda: w.fill_(1.0), lambda: w.detach().add_(y), lambda: x.numpy(),
                        lambda: np.from_dlpack(x)):
                with pytest.raises(UserError, match=r"belongs to another runtime than the current one on cpu:virtual"):
                    use()
            assert y.numpy().tolist() == [[5.0, 5.0]] * 2
        assert (x + w).numpy().tolist() == [[3.0, 3.0]] * 2


def test_an_iteration_or_an_upload_of_a_runtime_that_is_not_current_is_refused():
    with Runtime("cpu:virtual", memory_budget="1MiB") as a, Runtime("sim:p100") as b:
        for use in (lambda: a.iteration().__enter__(), lambda: a.tensor([1.0])):
            with pytest.raises(UserError, match="of a runtime on cpu:virtual under `with` of another one on sim:p100"):
                use()
        assert b.executor.tracker.iteration == 0
        with a, a.iteration():  # one may be entered again
            assert current_runtime() is a
        assert current_runtime() is b


def test_a_tensor_that_a_dry_run_has_made_is_refused_afterwards():
    with Runtime("cpu:virtual", memory_budget="1MiB") as runtime:
        w, kept = parameter((2,)), []
        runtime.dry_run(lambda: kept.append(w * 2.0))
        with pytest.raises(UserError, match="belongs to another runtime"):
            kept[0] + w


def train(seed, device="cpu:virtual"):
    """The weights of a small network after a few steps; NumPy's, so that they outlive the runtime."""
    generator = np.random.default_rng(seed)
    with Runtime(device, memory_budget="1MiB", policy="passive", seed=seed) as runtime:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = Adam(model.parameters(), lr=0.01)
        for _ in range(6):
            with runtime.iteration():
                x = runtime.tensor(generator.standard_normal((4, 8), np.float32))
                loss = cross_entropy(model(x), runtime.tensor(generator.integers(0, 4, 4)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                del loss, x
        return [array.tobytes() for array in model.state_dict().values()]


def test_twelve_trainings_in_twelve_threads_end_with_the_weights_of_trainings_in_turn():
    expected = [train(seed) for seed in range(12)]
    found = [None] * 12
    start = threading.Barrier(12)

    def run(seed):
        start.wait(PATIENCE_S)
        found[seed] = train(seed, ("cpu:virtual", "cpu")[seed % 2])
    with switch_interval(1e-5):
        all_at_once([partial(run, seed) for seed in range(12)])
    assert found == expected


def test_a_runtime_that_a_thread_is_inside_of_is_refused_to_others_and_free_when_it_has_left():
    with Runtime("cpu:virtual", memory_budget="1MiB") as runtime:
        x = runtime.tensor(np.ones(2, "f4"))

        def enter():
            with runtime:
                return (x + x).numpy().tolist()
        error = in_a_thread(enter)
        assert isinstance(error, UserError) and "on cpu:virtual is in use by another thread" in str(error)
        error = in_a_thread(lambda: x + x)
        assert isinstance(error, UserError) and "no runtime is active in this thread" in str(error)
        error = in_a_thread(lambda: x + x, contextvars.copy_context())  # as asyncio.to_thread does
        assert isinstance(error, UserError) and "in use by another thread" in str(error)
        assert (x + x).numpy().tolist() == [2.0, 2.0]
    assert in_a_thread(enter) == [2.0, 2.0]  # one after the other


def test_a_description_is_one_object_even_if_two_threads_ask_for_it_at_once():
    from minidl.meta import meta
    found = [[], []]
    with switch_interval(1e-6):
        all_at_once([lambda out=out: out.extend(meta((7, n, 3)) for n in range(3000)) for out in found])
    assert all(a is b for a, b in zip(*found, strict=True))


CHILD = '''
import os, sys, time
import numpy as np
from minidl import Runtime, UserError
with Runtime("cpu", memory_budget="64MiB", policy="passive") as runtime:
    x = runtime.tensor(np.ones((1000, 1000), "f4"))
    for _ in range(3):
        y = (x @ x) * 2.0     # still at work when the process forks
    child = os.fork()
    if not child:
        said = []
        for use in (lambda: x + x, x.numpy, lambda: runtime.tensor([1.0]), lambda: runtime.iteration().__enter__(),
                    runtime.trace, runtime.__enter__):
            try:
                use()
                said.append("nothing")
            except UserError as error:
                said.append("made before a fork" in str(error))
        print(said, flush=True)
        del x, y
    else:
        assert os.waitpid(child, 0)[1] == 0
        print(y.numpy()[0, 0], flush=True)
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_in_the_child_of_a_fork_a_runtime_says_that_it_is_unusable_and_nothing_hangs():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False,
                           timeout=PATIENCE_S, env=environment)
    assert (ended.stdout.splitlines(), ended.stderr) == (["[True, True, True, True, True, True]", "2000.0"], "")
