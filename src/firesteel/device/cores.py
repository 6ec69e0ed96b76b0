"""The CPU cores that this process may use, and the number of threads that compute on them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from firesteel.device.host_memory import ROOT, VERSION_2, find_mounts

# Weights up to which one thread computes. The ops of such a model take microseconds: threads that wait for each
# other at every op cost more than they compute, many times more if other programs want the cores too.
ONE_THREAD_BYTES = 1 << 28


def choose_threads(num_bytes: int, num_cores: int) -> int:
    """Returns the threads for weights of `num_bytes` on a CPU."""
    return 1 if num_bytes <= ONE_THREAD_BYTES else num_cores


def count_cores(root: Path = ROOT) -> int:
    """Returns the physical cores within the affinity of this process and the CPU time that its groups get."""
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_read(root / siblings.format(cpu)) or str(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, math.floor(min((len(cores), *find_quotas(root)))))


def find_quotas(root: Path = ROOT) -> Iterator[float]:
    """Yields the CPUs' worth of time that each limited group gets, from this process's own to the outermost."""
    for mount_point, group, files in find_mounts(root, "cpu"):
        mount = root / mount_point.relative_to("/")
        for folder in (group, *group.parents):
            if files is VERSION_2:
                words = _read(mount / folder / "cpu.max").split()
            else:
                words = [_read(mount / folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
                yield int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    """Returns the text of a file; an empty one if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
