"""Cores and threads, on stand-ins for the kernel's files."""

import pytest

from firesteel.device.cores import ONE_THREAD_BYTES, choose_threads, count_cores

V1 = "35 31 0:32 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V2 = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(cpus, siblings, mount, groups, files): a root with these stand-ins."""

    def make(cpus, siblings=(), mount="", groups="", files=()):
        monkeypatch.setattr("os.sched_getaffinity", lambda process: set(cpus))
        cpu = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        texts = {"proc/self/mountinfo": mount, "proc/self/cgroup": groups}
        texts |= {cpu.format(number): text for number, text in dict(siblings).items()}
        texts |= {f"sys/fs/cgroup/{name}": text for name, text in dict(files).items()}
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n" if text else "")
        return tmp_path

    return make


def test_siblings_of_a_core_count_once(machine):
    siblings = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
    assert count_cores(machine([0, 1, 4, 5], siblings)) == 2


def test_only_cpus_of_the_affinity_count(machine):
    assert count_cores(machine([2, 3], {number: str(number) for number in range(8)})) == 2


def test_cpus_without_topology_are_cores(machine):
    assert count_cores(machine([0, 1, 2])) == 3


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ({"a/cpu.max": "max 100000", "a/b/cpu.max": "300000 100000"}, 3),
        ({"a/cpu.max": "max 100000"}, 4),
        ({"a/b/cpu.max": "10000 100000"}, 1),
    ],
)
def test_lowest_quota_along_the_groups_limits_the_cores(machine, files, cores):
    assert count_cores(machine(range(4), mount=V2, groups="0::/a/b", files=files)) == cores


def test_quota_of_version_1_limits_the_cores(machine):
    files = {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000", "cpu/cpu.cfs_quota_us": "-1"}
    assert count_cores(machine(range(4), mount=V1, groups="3:cpu,cpuacct:/a", files=files)) == 2


@pytest.mark.parametrize(("num_bytes", "threads"), [(1 << 20, 1), (ONE_THREAD_BYTES, 1), (ONE_THREAD_BYTES + 1, 6)])
def test_small_models_compute_with_one_thread(num_bytes, threads):
    assert choose_threads(num_bytes, 6) == threads
