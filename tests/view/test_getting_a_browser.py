"""`.ci/browser`: a browser for the tests of the page is installed where that can be done; without one all goes on."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.support import browser

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "browser"
KNOWN = "[ -e updated ] || exit 100; echo '#!/bin/bash' > bin/chromium; chmod +x bin/chromium"


def told(folder: Path, *, apt_get: str | None, user: int = 0) -> str:
    """What the script says where ``apt-get install`` does this, in a folder whose ``bin`` is all there is."""
    names = folder / "bin"
    names.mkdir()
    for name in ("bash", "timeout", "touch", "chmod", "sleep"):
        (names / name).symlink_to(f"/usr/bin/{name}")
    (names / "id").write_text(f"#!/bin/bash\necho {user}\n")
    if apt_get is not None:
        (names / "apt-get").write_text(f'#!/bin/bash\n[[ "$*" == *update ]] && exec touch updated\n{apt_get}\n')
    for path in names.iterdir():
        if not path.is_symlink():
            path.chmod(0o755)
    done = subprocess.run([str(names / "bash"), str(SCRIPT), "1"], cwd=folder, env={"PATH": str(names)}, check=True,
                          capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout


def test_chromium_is_installed_once_the_list_of_packages_has_been_brought_up_to_date(tmp_path):
    assert told(tmp_path, apt_get=KNOWN).startswith("browser: chromium installed in ")
    assert (tmp_path / "updated").exists() and os.access(tmp_path / "bin" / "chromium", os.X_OK)


@pytest.mark.parametrize(("apt_get", "user"), [("echo no network >&2; exit 100", 0), ("sleep 30", 0), (None, 0),
                                               (KNOWN, 1000)])
def test_without_a_browser_all_goes_on(apt_get, user, tmp_path):
    assert told(tmp_path, apt_get=apt_get, user=user).startswith("browser: none, ")
    assert not (tmp_path / "updated").exists() or apt_get != KNOWN


def test_a_browser_that_is_there_is_left_alone_and_one_that_does_not_start_is_none(tmp_path, monkeypatch):
    names = tmp_path / "bin"
    names.mkdir()
    for name, code in (("chromium", 1), ("chrome", 0)):
        (names / name).write_text(f"#!/bin/bash\nexit {code}\n")
        (names / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{names}:{os.environ['PATH']}")
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "browser: chromium is there\n"
    browser.found.cache_clear()
    try:
        assert browser.found() == str(names / "chrome")
    finally:
        browser.found.cache_clear()
