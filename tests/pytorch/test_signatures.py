"""The page of arguments that differ from PyTorch's says what the signatures say."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the peer, is not installed (pip install -e '.[peers]')")

from bench.support.torch_names import PAGE, Argument, differences, page  # noqa: E402

WRITTEN_BESIDE = (2, 14)  # the PyTorch of the page; an older one lacks some arguments of which it says that minidl does


def parts(text):
    """The text before the table, and the differences of each name."""
    before, *rows = text.split("\n| `")
    return before, {name: words.rstrip(" |\n").split("; ") for name, words in (row.split("` | ", 1) for row in rows)}


def test_the_page_of_differing_arguments_is_what_the_signatures_say():
    (text, said), (right_text, right) = parts(PAGE.read_text(encoding="utf-8")), parts(page())
    if tuple(map(int, torch.__version__.split(".")[:2])) < WRITTEN_BESIDE:
        for name, words in list(said.items()):
            said[name] = [each for each in words if each in right.get(name, ()) or not each.startswith("no `")]
        said = {name: words for name, words in said.items() if words}
    assert (text, said) == (right_text, right), "python -m bench.torch_names writes it"


def test_another_name_a_missing_argument_and_another_default_are_seen():
    right = (Argument("input"), Argument("dim", "0"), Argument("keepdim", "False"))
    assert differences((Argument("x"), Argument("dim", "1")), right) == (
        "`input` is `x`", "`dim` is 1 by default, not 0", "no `keepdim`")
    assert differences(right, right) == ()
