"""Memory limits of control groups, on stand-ins for the kernel's files."""

import pytest

from firesteel.device.host_memory import HostMemory, find_host_memory, read_meminfo

MIB = 1 << 20
UNLIMITED_1 = "9223372036854771712"  # what version 1 shows without a limit
V1_MOUNT = "35 31 0:32 {top} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2_MOUNT = "41 31 0:38 {top} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
OTHER_MOUNTS = ["23 1 0:1 / / rw - ext4 /dev/sda rw", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"]


@pytest.fixture
def machine(tmp_path):
    """machine(mounts, groups, files): a root with these stand-ins; the machine has 1000 MiB, 800 of them free."""

    def make(mounts=(), groups=(), files=None):
        everything = {
            "proc/meminfo": f"MemTotal: {1000 << 10} kB\nMemAvailable: {800 << 10} kB\nHugePages_Total:       7\n",
            "proc/self/mountinfo": "\n".join([*OTHER_MOUNTS, *mounts]) + "\n",
            "proc/self/cgroup": "\n".join(groups) + "\n",
            **{f"sys/fs/cgroup/{name}": text for name, text in (files or {}).items()},
        }
        for name, text in everything.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def v2_group(folder, *, used, limit="max", high="max", **stat):
    prefix = f"{folder}/" if folder else ""
    shown = [f"{value * MIB}" if isinstance(value, int) else value for value in (used, limit, high)]
    names = ("memory.current", "memory.max", "memory.high")
    files = {f"{prefix}{name}": f"{text}\n" for name, text in zip(names, shown, strict=True)}
    return files | {f"{prefix}memory.stat": "".join(f"{name} {mib * MIB}\n" for name, mib in stat.items())}


def v1_group(folder, *, used, limit=None, **stat):
    prefix = f"memory/{folder}/" if folder else "memory/"
    return {
        f"{prefix}memory.usage_in_bytes": f"{used * MIB}\n",
        f"{prefix}memory.limit_in_bytes": f"{limit * MIB}\n" if limit else UNLIMITED_1,
        f"{prefix}memory.stat": "".join(f"{name} {mib * MIB}\n" for name, mib in stat.items()),
    }


def found(root):
    memory = find_host_memory(root)
    return memory.total_bytes / MIB, memory.available_bytes / MIB


def test_meminfo_is_read_in_bytes(machine):
    assert read_meminfo(machine()) == {"MemTotal": 1000 * MIB, "MemAvailable": 800 * MIB}


def test_machine_without_control_groups_counts_whole(machine):
    root = machine()
    (root / "proc/self/cgroup").unlink()
    (root / "proc/self/mountinfo").unlink()
    assert find_host_memory(root) == HostMemory(1000 * MIB, 800 * MIB)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"used": 100, "limit": 760}, (760, 660)),
        ({"used": 100, "limit": 760, "high": 500}, (500, 400)),
        ({"used": 100, "high": 500}, (500, 400)),
        ({"used": 100}, (1000, 800)),
        ({"used": 100, "limit": 4000}, (1000, 800)),
        ({"used": 600, "limit": 760, "inactive_file": 300, "active_file": 50, "anon": 250}, (760, 510)),
        ({"used": 100, "high": 50}, (50, 0)),
    ],
    ids=["max", "high", "high only", "no limit", "more than there is", "page cache is reclaimable", "exceeded"],
)
def test_limit_of_version_2_in_a_container(machine, group, expected):
    """A container with its own namespace sees its group as the root."""
    root = machine([V2_MOUNT.format(top="/")], ["0::/"], v2_group("", **group))
    assert found(root) == expected


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ({"used": 500, "limit": 600}, {"used": 100, "limit": 300}, (300, 100)),
        ({"used": 200, "limit": 300}, {"used": 100, "limit": 600}, (300, 100)),
        ({"used": 200, "limit": 300}, {"used": 100}, (300, 100)),
    ],
    ids=["the total is the inner limit, the rest is the outer one's", "outer is smaller", "inner has none"],
)
def test_smallest_limit_of_nested_groups_applies(machine, outer, inner, expected):
    files = v2_group("user.slice", **outer) | v2_group("user.slice/work.scope", **inner)
    root = machine([V2_MOUNT.format(top="/")], ["0::/user.slice/work.scope"], files)
    assert found(root) == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"used": 100, "limit": 760}, (760, 660)),
        ({"used": 100}, (1000, 800)),
        ({"used": 100, "hierarchical_memory_limit": 400}, (400, 300)),
        ({"used": 600, "limit": 760, "inactive_file": 9, "total_inactive_file": 300}, (760, 460)),
    ],
    ids=["limit", "no limit", "limit of a parent that is not mounted", "page cache with nested groups"],
)
@pytest.mark.parametrize("top", ["/docker/1f", "/"], ids=["mounted at the container's group", "mounted whole"])
def test_limit_of_version_1(machine, group, expected, top):
    folder = "" if top == "/docker/1f" else "docker/1f"
    root = machine(
        [V1_MOUNT.format(top=top)], ["4:memory,hugetlb:/docker/1f", "1:cpu:/", "0::/"], v1_group(folder, **group)
    )
    assert found(root) == expected


def test_both_versions_may_be_mounted_side_by_side(machine):
    """The second one has no memory controller then."""
    mounts = [V1_MOUNT.format(top="/"), V2_MOUNT.format(top="/").replace("/cgroup ", "/cgroup/unified ", 1)]
    root = machine(mounts, ["4:memory:/a", "0::/b"], v1_group("a", used=100, limit=500))
    assert found(root) == (500, 400)


@pytest.mark.parametrize("group", ["0::/../other", "0::/elsewhere"])
def test_group_outside_the_mount_is_replaced_by_the_outermost_visible_one(machine, group):
    root = machine([V2_MOUNT.format(top="/mine")], [group], v2_group("", used=100, limit=500))
    assert found(root) == (500, 400)


def test_this_machine_can_be_read():
    memory = find_host_memory()
    assert 0 < memory.available_bytes < memory.total_bytes <= read_meminfo()["MemTotal"]
