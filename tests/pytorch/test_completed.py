"""A plan of torch that cannot be carried out: what cannot be recomputed is swapped."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from minidl.meta import Algorithm  # noqa: E402
from minidl.plan.costs import Costs, Limits  # noqa: E402
from minidl.plan.trace import Trace, TraceCall, TraceTensor  # noqa: E402
from minidl.planning.problem import DROP, SWAP, problem  # noqa: E402
from minidl.torch.planned import bytes_during, completed  # noqa: E402

SOURCE, MADE, RESULT, OTHER = range(4)


def facts():
    """MADE comes from a call that gives other outputs each time; RESULT, made of it, has a gap until the last call."""
    calls = [((SOURCE,), (MADE,), (), False), ((MADE,), (RESULT,), (MADE,), True), ((SOURCE,), (OTHER,), (), True),
             ((RESULT, OTHER), (), (RESULT, OTHER), True)]
    return problem(Trace(tuple(TraceCall("op", inputs, outputs, 1.0, (Algorithm("", 1.0),), frees, replayable=again)
                               for inputs, outputs, frees, again in calls),
                         {n: TraceTensor(n, 1024, n == SOURCE) for n in range(4)}), Costs(1e-9, 1e-9, 0.0))


def test_what_cannot_be_recomputed_is_swapped():
    that, limits = facts(), Limits(1 << 30, 1 << 30)
    mode = np.where(that.gap_tensor == list(that.ids).index(RESULT), DROP, 0)
    prefetch_at = np.full(len(mode), -1, np.int64)
    assert (mode == DROP).sum() == 1 and bytes_during(that, mode, prefetch_at, limits, ahead=False) is None
    completed(that, mode, prefetch_at, limits, ahead=False)
    assert (mode == SWAP).sum() == 1 and not (mode == DROP).any()
