"""Chromium or Chrome without a window, where one is installed: for tests of the memory page, and for pictures of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")  # .ci/browser has them, too
PATIENCE_S = 120


@cache
def found() -> str | None:
    """The path of the first browser that is installed and starts; None where there is none."""
    for path in filter(None, map(shutil.which, NAMES)):
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([path, "--version"], check=True, capture_output=True, timeout=PATIENCE_S)
            return path
    return None


def opened(browser: str, address: str, *flags: str, width: int, height: int) -> str:
    """The output of a browser that opens an address in a window of this size, with a profile of its own.

    Raises SubprocessError where it fails, or takes longer than PATIENCE_S.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        return subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                               "--virtual-time-budget=4000", f"--user-data-dir={profile}",
                               f"--window-size={width},{height}", *flags, address], check=True, capture_output=True,
                              text=True, timeout=PATIENCE_S).stdout
