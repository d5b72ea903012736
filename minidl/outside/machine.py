"""What this machine, or the container that the program runs in, has, and has left. Knows no device and no flags.

A container is a control group of Linux, and each of the groups around it may have a limit of its own. What a group
uses counts the pages of files that it has read; the inactive ones of these are given up before anything else is.
"""

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int | None:
    """Bytes of memory that programs may still take here; None where the system does not say."""
    known = [nbytes for nbytes in (free_on_machine(), free_in_groups()) if nbytes is not None]
    return min(known, default=None)


def free_on_machine() -> int | None:
    """Bytes that the whole machine has left, whoever may take them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def free_in_groups(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """The least that this process's control group, or one around it, has left; None without a limit."""
    left = [room for folder in _folders(groups, membership) if (room := _room(folder)) is not None]
    return min(left, default=None)


def _folders(groups: Path, membership: Path) -> Iterator[Path]:
    """The folders of the groups that this process is in, of version 2 (``0::/path``) or 1 (``4:memory:/path``)."""
    try:
        lines = membership.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "" or "memory" in controllers.split(","):
            top = groups / "memory" if controllers else groups
            folder = top / path.lstrip("/")
            yield from (parent for parent in (folder, *folder.parents) if parent == top or top in parent.parents)


def _room(folder: Path) -> int | None:
    for limit, usage, inactive in (("memory.max", "memory.current", "inactive_file"),
                                   ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
        try:
            most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
            rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return max(0, most - used + int(rows.get(inactive, 0)))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None
