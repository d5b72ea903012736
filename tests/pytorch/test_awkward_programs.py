"""Programs that treat their graphs in unusual ways compute the same under ``minidl.torch``."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_awkward import AWKWARD  # noqa: E402
from torch_nets import forced, same  # noqa: E402


def computed(program, memory=None):
    torch.manual_seed(0)
    if memory is None:
        return program()
    with memory:
        return program()


@pytest.mark.parametrize("how", ["keep", "swap", "mixed", "drop"])
@pytest.mark.parametrize("program", AWKWARD)
def test_a_program_that_treats_its_graph_unusually_computes_the_same(program, how):
    memory = forced(how)
    assert same(computed(AWKWARD[program]), computed(AWKWARD[program], memory))
    assert memory.recorder not in torch.utils._python_dispatch._get_current_dispatch_mode_stack()
