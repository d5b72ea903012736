"""Numbers from outside: which are taken, and what is said of the others."""

import math

import pytest

from minidl.cli.app import kinds
from minidl.errors import UserError
from minidl.outside.units import parse_bytes
from minidl.outside.validation import MOST_WHOLE, is_real, is_whole, real, shown, whole


def test_whole_numbers_are_taken_up_to_the_largest_that_floats_have():
    assert whole("0") == 0 and whole(str(MOST_WHOLE)) == MOST_WHOLE == float(MOST_WHOLE)
    assert [is_whole(v) for v in (0, MOST_WHOLE, MOST_WHOLE + 1, -1, 1.0, True, None, 10**5000)] == [
        True, True, False, False, False, False, False, False]


def test_reals_are_taken_if_they_are_finite():
    assert real("1e30") == 1e30 and real("2") == 2.0
    assert [is_real(v) for v in (0, 0.5, 5e-324, 1e31, -0.5, math.nan, math.inf, True, "1", 10**400)] == [
        True, True, True, False, False, False, False, False, False, False]


@pytest.mark.parametrize(("read", "text", "message"), [
    (whole, "1" + "0" * 399, f"must be a whole number of at least 0 and at most 9.0072e+15, not 1{'0' * 56}..."),
    (whole, "1" + "0" * 5000, f"must be a whole number of at least 0 and at most 9.0072e+15, not 1{'0' * 56}..."),
    (whole, "1.5", "must be a whole number of at least 0, not 1.5"),
    (real, "1e300", "must be a number of at least 0 and at most 1e+30, not 1e300"),
    (real, "inf", "must be a number of at least 0 and at most 1e+30, not inf"),
    (real, "nan", "must be a number of at least 0, not nan"),
    (real, "x" * 10**6, f"must be a number of at least 0, not {'x' * 57}..."),
    (parse_bytes, "1" + "0" * 300, f"1{'0' * 56}... is more than the largest size, 8192.0 TiB"),
    (parse_bytes, "8193TiB", "8193TiB is more than the largest size, 8192.0 TiB"),
    (parse_bytes, "1" * 10**6, f"'{'1' * 57}...' is not a size in bytes: write it like 16GiB, 512MB or 1000"),
])
def test_what_is_no_number_to_count_with_is_refused_in_a_short_line(read, text, message):
    with pytest.raises(UserError) as error:
        read(text)
    assert str(error.value) == message


@pytest.mark.parametrize(("kind", "text", "message"), [
    (kinds.budget, "1e300%", "must be a percentage above 0 and at most 1e+06, not 1e300"),
    (kinds.budget, "1" + "0" * 400, "is not a size in bytes"), (kinds.budget, "1" * 30, "more than the largest size"),
    (kinds.batch, "1" + "0" * 398, "must be max or a whole number of at least 1 and at most 9.0072e+15, not 1000"),
    (kinds.rate, "1e308", "must be a number of at least 0 and at most 1e+30, not 1e308"),
    (kinds.part, "1", "must be a number of at least 0 and below 1, not 1"),
    (kinds.positive, "0", "must be a number above 0, not 0"),
])
def test_a_flag_beyond_all_bounds_is_refused_by_the_kind_of_its_value(kind, text, message):
    with pytest.raises(kinds.argparse.ArgumentTypeError) as error:
        kind(text)
    assert message in str(error.value) and len(str(error.value)) < 200


def test_a_value_is_shown_by_its_beginning():
    assert shown("a" * 60) == "a" * 60 and shown("a" * 61) == "a" * 57 + "..."
    assert shown(10**5000) == "a number of thousands of digits"
