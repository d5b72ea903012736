"""The page of arguments that differ from PyTorch's says what the signatures say."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

from bench.support.torch_names import PAGE, Argument, differences, page  # noqa: E402


def test_the_page_of_differing_arguments_is_what_the_signatures_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m bench.torch_names writes it"


def test_another_name_a_missing_argument_and_another_default_are_seen():
    right = (Argument("input"), Argument("dim", "0"), Argument("keepdim", "False"))
    assert differences((Argument("x"), Argument("dim", "1")), right) == (
        "`input` is `x`", "`dim` is 1 by default, not 0", "no `keepdim`")
    assert differences(right, right) == ()
