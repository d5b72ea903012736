"""Copies past the caches copy bytes, all of them and no others, wherever they lie."""

import numpy as np
import pytest

from minidl.kernels.cpu.streaming import LINE, STREAMED, copy


@pytest.mark.parametrize("nbytes", [0, 1, STREAMED - 1, STREAMED, STREAMED + 1, STREAMED + LINE + 13])
@pytest.mark.parametrize("to", [0, 1, LINE - 1, LINE])
def test_a_copy_between_any_two_addresses_is_whole_and_touches_nothing_else(nbytes, to):
    rng = np.random.default_rng(0)
    for origin in (0, 5):
        source = rng.integers(1, 256, nbytes + 2 * LINE, np.uint8)
        target = np.zeros(nbytes + 4 * LINE, np.uint8)
        copy(target[to:to + nbytes], source[origin:origin + nbytes])
        assert (target[to:to + nbytes] == source[origin:origin + nbytes]).all()
        assert not target[:to].any() and not target[to + nbytes:].any()
