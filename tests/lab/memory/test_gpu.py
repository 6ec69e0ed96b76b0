"""Memory of GPUs as the management library tells it."""

import os
from types import SimpleNamespace

import pytest
import torch

from firesteel.lab.memory import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_known():
    assert gpu.used_by([os.getpid()]) is None


@pytest.mark.gpu
def test_memory_that_is_taken_is_counted():
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()  # what a test before it left would be taken again, without the driver
    before = gpu.used_by([os.getpid()])
    held = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    after = gpu.used_by([os.getpid()])
    assert after.scope == before.scope and after.used - before.used >= held.nbytes


class FakeNvml:
    """Two GPUs: {pid: bytes} of each, and bytes used in all; None in place of either is an error of the driver."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes, used=(10, 200)):
        self.processes, self.used = processes, used

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return ("GPU-aa11", "GPU-bb22")[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if self.processes is None:
            raise self.NVMLError
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes[handle].items()]

    def nvmlDeviceGetMemoryInfo(self, handle):
        if self.used is None:
            raise self.NVMLError
        return SimpleNamespace(used=self.used[handle])


@pytest.fixture
def ask(monkeypatch):
    """ask(pids, processes): what is told by a driver that lists these, on a host or in a container."""

    def look(pids, *driver, is_host=True):
        monkeypatch.setattr(gpu, "_library", lambda: FakeNvml(*driver))
        monkeypatch.setattr(gpu, "_is_initial_namespace", lambda: is_host)
        return gpu.used_by(pids)

    return look


@pytest.mark.parametrize("is_host", [True, False])
def test_memory_of_others_is_not_counted(ask, is_host):
    """A neighbour's job failed levels 1 and 3, and one that ended hid a leak."""
    quiet = ask([7, 8], [{7: 4, 99: 1000}, {8: 5}], is_host=is_host)
    busy = ask([7, 8], [{7: 4}, {8: 5, 99: 10**12}], is_host=is_host)
    assert quiet == busy == gpu.GpuMemory(9, gpu.OWN)


def test_processes_that_use_no_gpu_have_none_of_its_memory(ask):
    assert ask([7], [{99: 1000}, {}]) == gpu.GpuMemory(0, gpu.OWN)


@pytest.mark.parametrize(
    ("processes", "is_host"),
    [(None, True), ([{os.getpid(): None}, {}], True), ([{4711: 50}, {}], False), ([{}, {}], False)],
    ids=["not supported", "no figure", "pids of the host", "nobody listed"],
)
def test_where_processes_are_not_told_apart_whole_gpus_count(ask, monkeypatch, processes, is_host):
    monkeypatch.setattr(gpu.psutil.Process, "environ", lambda self: {})
    assert ask([os.getpid()], processes, is_host=is_host) == gpu.GpuMemory(210, gpu.WHOLE)


@pytest.mark.parametrize(("choice", "used"), [("1", 200), ("GPU-aa", 10), ("0,1", 210), ("-1", 0), ("MIG-x", 210)])
def test_whole_gpus_are_those_that_the_server_may_see(ask, monkeypatch, choice, used):
    monkeypatch.setattr(gpu.psutil.Process, "environ", lambda self: {"CUDA_VISIBLE_DEVICES": choice})
    assert ask([os.getpid()], None) == gpu.GpuMemory(used, gpu.WHOLE)


def test_gpu_that_tells_nothing_is_none_and_so_is_a_server_that_is_gone(ask):
    assert ask([os.getpid()], None, None) is None
    assert ask([], [{99: 1000}, {}]) is None
    assert ask([2**22 + 1], None) is None  # beyond the largest pid


def test_figures_of_two_scopes_are_never_in_one_series():
    whole, own = gpu.GpuMemory(900, gpu.WHOLE), gpu.GpuMemory(5, gpu.OWN)
    assert gpu.keep_one_scope([whole, own, None]) == ([None, 5, None], gpu.OWN)
    assert gpu.keep_one_scope([whole, None]) == ([900, None], gpu.WHOLE)
    assert gpu.keep_one_scope([None]) == ([None], None)
