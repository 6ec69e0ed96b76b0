"""The memory that this process may use: that of the machine, or less if a control group limits it.

A container's limit is a limit of its control group. The system's own figures (/proc/meminfo) do not show it, and
the kernel kills processes that exceed it. Groups nest: the smallest limit along the path applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
FILE_LISTS = ("inactive_file", "active_file")  # of memory.stat: page cache, which the kernel drops when needed


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_bytes: int
    available_bytes: int  # free, or freed by the kernel when needed


@dataclass(frozen=True, slots=True)
class GroupFiles:
    """Names of the files of one version of control groups."""

    limits: Sequence[str]
    usage: str
    stat_prefix: str  # of the fields of memory.stat that include nested groups


VERSION_1 = GroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
VERSION_2 = GroupFiles(("memory.max", "memory.high"), "memory.current", "")  # above `high` processes are throttled


def find_host_memory(root: Path = ROOT) -> HostMemory:
    """Returns the machine's memory, limited by the control groups of this process. `root` holds proc and sys."""
    meminfo = read_meminfo(root)
    total, available = meminfo["MemTotal"], meminfo["MemAvailable"]
    for limit, free in find_group_limits(root):
        total, available = min(total, limit), min(available, free)
    return HostMemory(total, available)


def read_meminfo(root: Path = ROOT) -> dict[str, int]:
    """Returns the fields of /proc/meminfo in bytes."""
    lines = (line.split() for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


def find_group_limits(root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """Yields the limit and the free bytes of each limited group, from this process's own to the outermost."""
    for mount_point, group, files in find_mounts(root):
        while True:
            folder = root / mount_point.relative_to("/") / group
            usage = _read_number(folder / files.usage)
            limit = find_limit(folder, files)
            if usage is not None and limit is not None:
                yield limit, max(0, limit - usage + count_reclaimable(folder, files))
            if group == PurePosixPath():
                break
            group = group.parent


def find_mounts(root: Path, resource: str = "memory") -> Iterator[tuple[PurePosixPath, PurePosixPath, GroupFiles]]:
    """Yields the mounted hierarchies that may limit a resource, with the group of this process below the mount.

    The mount of a container may begin at the container's own group; a group outside the mount cannot be read, and
    the outermost visible one stands for it.
    """
    groups = read_groups(root)
    for line in _read_lines(root / "proc/self/mountinfo"):
        mount, _, device = (part.split() for part in line.partition(" - "))
        if device[0] == "cgroup2":
            controller, files = "", VERSION_2
        elif device[0] == "cgroup" and resource in device[2].split(","):
            controller, files = resource, VERSION_1
        else:
            continue
        top, group = PurePosixPath(mount[3]), groups.get(controller)
        is_visible = group is not None and group.is_relative_to(top) and ".." not in group.parts
        relative = group.relative_to(top) if group is not None and is_visible else PurePosixPath()
        yield PurePosixPath(mount[4]), relative, files


def read_groups(root: Path) -> dict[str, PurePosixPath]:
    """Returns the groups of this process by controller; the controller of version 2 is ''."""
    groups: dict[str, PurePosixPath] = {}
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return groups


def find_limit(folder: Path, files: GroupFiles) -> int | None:
    """Returns the lowest limit of a group, None if it has none."""
    limits = [_read_number(folder / name) for name in files.limits]
    limits.append(read_stat(folder).get("hierarchical_memory_limit"))  # of version 1: includes invisible parents
    return min((limit for limit in limits if limit is not None), default=None)


def count_reclaimable(folder: Path, files: GroupFiles) -> int:
    """Returns the bytes of page cache that count as used by a group."""
    stat = read_stat(folder)
    return sum(stat.get(f"{files.stat_prefix}{name}", 0) for name in FILE_LISTS)


def read_stat(folder: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read_lines(folder / "memory.stat"))
    return {name: int(value) for name, value in pairs}


def _read_number(path: Path) -> int | None:
    """Returns None if the file does not exist or holds no number: "max" is no limit."""
    text = "".join(_read_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _read_lines(path: Path) -> list[str]:
    """Returns the lines of a file of the kernel, none if the kernel does not offer or show it."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
