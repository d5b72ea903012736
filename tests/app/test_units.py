"""Sizes as people write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidl.errors import UserError
from minidl.outside.units import UNITS, format_bytes, parse_bytes


@pytest.mark.parametrize(("text", "nbytes"), [
    ("1000", 1000), ("0", 0), ("7B", 7), ("16GiB", 16 * 2**30), ("512MB", 512_000_000), ("3kB", 3000),
    ("2KiB", 2048), ("1TiB", 2**40), ("1TB", 10**12), (" 16 gib ", 16 * 2**30), ("512mb", 512_000_000),
    ("1.5GiB", 3 * 2**29), (".5KiB", 512), ("2.MB", 2_000_000), ("0.3B", 0), ("1.001kB", 1001),
    ("0.29GB", 290_000_000),  # 0.29 x 10^9 is 289999999.99999994 in binary floating point
])
def test_a_size_is_a_number_and_a_unit_of_1000_or_1024(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "16 GiB x", "1,5GiB", "16XB", "16iB", "0x10", "nan", "1 2",
                                  "."])
def test_anything_else_is_an_error_that_shows_it(text):
    with pytest.raises(UserError, match=r"is not a size in bytes: write it like 16GiB, 512MB or 1000$") as error:
        parse_bytes(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(("text", "hint"), [("16G", "16GB or 16GiB"), ("2.5k", "2.5kB or 2.5KiB"),
                                            ("1T", "1TB or 1TiB")])
def test_a_bare_prefix_is_refused_with_both_readings(text, hint):
    with pytest.raises(UserError, match=f"did you mean {hint}[?]$"):
        parse_bytes(text)


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"),
    (2**20 - 1, "1.0 MiB"),  # 1023.999 KiB would be shown as 1024.0
    (2**30 - 2**20, "1023.0 MiB"), (round(15.3 * 2**30), "15.3 GiB"), (2**40, "1.0 TiB"), (5000 * 2**40, "5000.0 TiB"),
    (-1536, "-1.5 KiB"), (1023.7, "1.0 KiB"),
])
def test_bytes_are_shown_in_the_largest_unit_that_leaves_at_least_one(nbytes, text):
    assert format_bytes(nbytes) == text


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(0, 2**52))
def test_what_is_shown_is_read_back_within_half_a_digit(nbytes):
    text = format_bytes(nbytes)
    assert abs(parse_bytes(text) - nbytes) <= 0.05 * UNITS[text.split()[1]] + 1
