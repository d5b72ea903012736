"""The memory page on a phone and in the dark: nothing scrolls sideways, and all text is readable."""

import pytest
from flags import NET
from looked_at import looked_at, needed

import train


@pytest.mark.slow
@pytest.mark.parametrize("flags", [
    pytest.param(["--policy", "none", "--steps", "2", "--memory-budget", "1GiB"], id="unmanaged"),
    pytest.param(["--policy", "capuchin", "--steps", "5"], id="planned"),
    pytest.param(["--policy", "capuchin", "--steps", "5", "--ranks", "2"], id="ranks")])
def test_a_memory_page_fits_a_phone_and_is_readable_in_the_dark(flags, tmp_path, capsys):
    needed()
    path = tmp_path / "page.html"
    assert train.main([*NET, *flags, "--report", str(path)]) == 0
    for width, dark in ((390, False), (390, True), (1300, True)):
        told = looked_at(path, width=width, dark=dark)
        assert told["width"] == width and told["scrolls"] <= width, told
        assert told["dark"] == dark and told["texts"] > 30 and told["worst"][0] >= 4.5, told
