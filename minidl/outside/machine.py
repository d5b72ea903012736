"""The processors and the free memory of this machine, or of the container around the program. Knows no device.

A container is a Linux control group; it and each parent group may have a memory limit. A group's usage includes its
page cache, whose inactive pages the kernel frees first, so they count as free here.
"""

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int | None:
    """Return the bytes of memory that programs may still allocate, or None if the system does not report them."""
    known = [nbytes for nbytes in (free_on_machine(), free_in_groups()) if nbytes is not None]
    return min(known, default=None)


def free_on_machine() -> int | None:
    """Return the available bytes of the whole machine, without container limits; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def free_in_groups(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Return the free bytes of this process's control group or of a parent group, the least of them; None: no limit.
    groups: the folder of all groups; membership: the file that names the groups of this process."""
    left = [room for folder in _folders(groups, membership) if (room := _room(folder)) is not None]
    return min(left, default=None)


def _folders(groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, of version 2 (``0::/path``) or 1 (``4:memory:/path``)."""
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
        except (OSError, ValueError):  # missing, or "max"
            continue
    return None
