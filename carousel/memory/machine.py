"""How much memory this machine, or the container around this process, has and has left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["MachineMemory", "read_memory"]

_UNLIMITED = 1 << 60
"""Above this a control group's limit is how the kernel writes "none"."""


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Memory in bytes: all that this process may ever have, and what is free for it now."""

    total: int
    available: int


def read_memory(root: Path = Path("/")) -> MachineMemory:
    """The tightest of the machine's memory and the limits of this process's control groups.

    Pages that the kernel caches from files, such as those of a storage, count as available: it
    drops them when programs need room.

    Args:
        root: where ``proc`` and ``sys`` are; another one is for tests.

    Example:
        >>> memory = read_memory()
        >>> 0 < memory.available <= memory.total
        True
    """
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for group in _groups(root):
        limit = _limit(group)
        if limit is None:
            continue
        total = min(total, limit)
        available = min(available, max(0, limit - _used(group)))
    return MachineMemory(total, min(available, total))


def _groups(root: Path) -> list[Path]:
    """The memory control groups of this process, each with its ancestors; none off Linux."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mount = root / "sys/fs/cgroup"
    groups: list[Path] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            groups += _lineage(mount, path)
        elif "memory" in controllers.split(","):
            groups += _lineage(mount / "memory", path)
    return groups


def _lineage(mount: Path, path: str) -> list[Path]:
    """A group and all above it: in a container the path may be the host's, then only the top."""
    group = mount / path.lstrip("/")
    above = [parent for parent in group.parents if parent.is_relative_to(mount)]
    return [folder for folder in (group, *above) if folder.is_dir()]


def _limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        value = _number(group / name)
        if value is not None:
            return value if value < _UNLIMITED else None
    return None


def _used(group: Path) -> int:
    for name in ("memory.current", "memory.usage_in_bytes"):
        value = _number(group / name)
        if value is not None:
            return max(0, value - _file_cache(group))
    return 0


def _file_cache(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    # the first pair is recursive in version 1, plain in version 2, where all is recursive
    for active, inactive in (
        ("total_active_file", "total_inactive_file"),
        ("active_file", "inactive_file"),
    ):
        if active in values and inactive in values:
            return int(values[active]) + int(values[inactive])
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None
