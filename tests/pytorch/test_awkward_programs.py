"""Programs that treat their graphs in unusual ways compute the same under ``minidl.torch``."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_awkward import AWKWARD, STEPS  # noqa: E402
from torch_awkward_data import DATA  # noqa: E402
from torch_awkward_graphs import GRAPHS  # noqa: E402
from torch_nets import forced, same  # noqa: E402

from minidl.torch.course import Phase  # noqa: E402

PROGRAMS = {**AWKWARD, **GRAPHS, **DATA}
LONG = ("loaders_with_workers", "parts_that_are_compiled")  # seconds each: they start processes and compile


def computed(program, memory=None):
    torch.manual_seed(0)
    if memory is None:
        return program()
    with memory:
        return program()


@pytest.mark.parametrize(("program", "how"), [
    pytest.param(program, how, marks=pytest.mark.slow if program in LONG and how != "mixed" else ())
    for program in PROGRAMS for how in ("keep", "swap", "mixed", "drop")])
def test_a_program_that_treats_its_graph_unusually_computes_the_same(program, how):
    memory = forced(how)
    assert same(computed(PROGRAMS[program]), computed(PROGRAMS[program], memory))
    assert memory.recorder not in torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_an_optimizer_in_another_thread_ends_no_step_of_this_one():
    memory = forced("swap")
    computed(GRAPHS["another_training_in_another_thread"], memory)
    assert sum(memory.report().steps.values()) == STEPS


def test_a_program_with_dual_numbers_is_never_recorded():  # PyTorch rounds otherwise under any dispatch mode
    memory = forced("swap")
    computed(GRAPHS["forward_derivatives"], memory)
    assert memory.report().steps == {Phase.AWAY: STEPS}


def test_what_a_program_must_keep_is_tried_by_forty_programs_and_more():
    assert len(PROGRAMS) == len(AWKWARD) + len(GRAPHS) + len(DATA) >= 41
