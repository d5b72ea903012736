"""Logs of lifetimes and of malloc, free, read and write become traces; the iteration in them is found."""

import gzip
import random

import pytest

from minidl.errors import UserError
from minidl.lab import cell
from minidl.lab.inferred import completed
from minidl.lab.logs import period, read_program

STEP = """op forward 0.5
read w
malloc {a} 4096
write {a}
op loss 0.25
read {a}
malloc {b} 1024
write {b}
op backward 1
read {b}
read {a}
write w
free {a}
free {b}
"""


def log(tmp_path, text, name="x.log"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_the_iteration_of_a_log_is_found_whatever_the_buffers_are_called(tmp_path):
    warm = "malloc w 512\nmalloc setup 64\nwrite setup\nread setup\nfree setup\n"
    text = warm + "".join(STEP.format(a=f"a{n % 2}", b=f"b{n}") for n in range(5))
    trace = read_program(log(tmp_path, text))
    assert [(c.op, c.seconds, len(c.inputs), len(c.outputs), len(c.frees)) for c in trace.calls] == [
        ("forward", 0.5, 1, 1, 0), ("loss", 0.25, 1, 1, 0), ("backward", 1.0, 3, 0, 2)]
    assert {i: t.persistent for i, t in trace.tensors.items()}.keys() >= {-1}
    assert trace.tensors[-1].nbytes == 512 and trace.tensors[-1].persistent and trace.calls[2].writes == (-1,)
    row = cell.run("x", completed(trace), cell.Machine(), "passive", 1.0, steps=3)
    assert row.status == "ok" and row.settled_s == pytest.approx(1.75, rel=1e-3)


def test_without_ops_a_call_is_some_reads_and_the_writes_after_them(tmp_path):
    text = "malloc w 512\n" + 4 * "malloc a 64\nread w\nwrite a\nread a\nwrite w\nfree a\n"
    trace = read_program(log(tmp_path, text))
    assert [(c.inputs, len(c.outputs), c.writes, len(c.frees)) for c in trace.calls] == [
        ((-1,), 1, (), 0), ((trace.calls[0].outputs[0], -1), 0, (-1,), 1)]


@pytest.mark.parametrize(("tokens", "found"), [
    ("abcabcabc", 3), ("xyabcabcabc", 3), ("abababab", 2), ("abcd", 4), ("abcaabcaabca", 4), ("aaab", 4), ("a", 1),
    ("uuabxxabxxabxx", 4)])
def test_the_period_is_that_of_the_longest_end_that_repeats(tokens, found):
    assert period(tokens) == found


class Token:
    """One that counts how often it is compared."""

    compared = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        Token.compared += 1
        return isinstance(other, Token) and other.value == self.value


def test_the_period_is_found_in_linear_time():
    chance = random.Random(1)
    step = [chance.randrange(9) for _ in range(997)]
    tokens = [Token(value) for value in [*range(10, 500), *step * 20]]
    assert period(tokens) == 997
    assert Token.compared < 3 * len(tokens)


def test_lifetimes_are_a_program_that_makes_and_reads(tmp_path):
    trace = read_program(log(tmp_path, "id,lower,upper,size\na,0,3,100\nb,1,2,50\n", "x.csv"))
    assert [(c.op, c.inputs, c.outputs, c.frees) for c in trace.calls] == [
        ("birth", (), (0,), ()), ("birth", (), (1,), ()), ("death", (1,), (), (1,)), ("death", (0,), (), (0,))]
    assert cell.unmanaged(completed(trace), cell.Machine())[1] == 512
    trace = read_program(log(tmp_path, "id,lower,upper,size\na,0,9,100\nb,1,4,50\n", "y.csv"))
    assert [call.seconds for call in trace.calls] == pytest.approx([0, 1e-6, 3e-6, 5e-6])


@pytest.mark.parametrize(("text", "message"), [
    ("", "has no events"), ("malloc a\n", "line 1: malloc has an id and bytes"),
    ("malloc a -1\n", "line 1: must be a whole number of at least 0, not -1"),
    ("read a\n", "line 1: read of 'a', which"),
    ("malloc a 1\nmalloc a 1\n", "line 2: 'a' was not freed"), ("malloc a 1\nfree a\nfree a\n", "line 3: free of 'a'"),
    ("jump a\n", "line 1: 'jump' is none of op, malloc"), ("op x 1e99\n", "line 1: must be a number"),
    ("malloc a 99999999999999999999\n", "line 1: must be a whole number"), ("op\n", "line 1: an op has a name")])
def test_a_bad_log_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        read_program(log(tmp_path, text))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_what_is_freed_before_the_next_malloc_is_not_live_with_it(tmp_path):
    """1,000 buffers of 4 KiB, each freed before the next one but one is there: two are live at once, never more."""
    lines = ["malloc 0 4096"]
    for n in range(1000):
        lines += [f"malloc {n + 1} {4096 + n}", f"free {n}"]
    trace = read_program(log(tmp_path, "\n".join(lines)))
    assert cell.unmanaged(completed(trace), cell.Machine())[1] < 3 * 5120


def test_an_iteration_is_found_though_its_frees_come_now_earlier_now_later(tmp_path):
    chance, lines, live = random.Random(1), [], []
    for step in range(12):
        for n in range(20):
            lines += [f"op work{n} 1e-3", f"malloc {step}_{n} {1024 * (n + 1)}", f"write {step}_{n}"]
            live.append(f"{step}_{n}")
            while len(live) > 8 and chance.random() < 0.6:
                lines.append(f"free {live.pop(0)}")
    trace = read_program(log(tmp_path, "\n".join(lines)))
    assert sorted(call.op for call in trace.calls) == sorted(f"work{n}" for n in range(20))


def test_a_log_that_gzip_has_made_smaller_is_read(tmp_path):
    text = "\ufeff" + "malloc w 512\n" + 4 * "malloc a 64\nread w\nwrite a\nread a\nwrite w\nfree a\n"
    plain = log(tmp_path, text)
    path = tmp_path / "y.log.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_program(str(path)) == read_program(plain)
    path.write_bytes(gzip.compress(text.encode())[:12] + b"!!!!")
    with pytest.raises(UserError, match="damaged gzip"):
        read_program(str(path))
