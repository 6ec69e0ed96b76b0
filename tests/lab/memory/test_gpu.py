"""GPU memory as NVML reports it."""

import os
from types import SimpleNamespace

import pytest
import torch

from firesteel.lab.memory import gpu
from tests.needed_packages import needs_packages


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_memory_is_unknown_without_a_gpu():
    assert gpu.used_by([os.getpid()]) is None


@pytest.mark.gpu
@needs_packages("pynvml")
def test_allocated_memory_is_counted():
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()  # memory cached by an earlier test would be reused without the driver
    before = gpu.used_by([os.getpid()])
    held = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    after = gpu.used_by([os.getpid()])
    assert after.scope == before.scope and after.used - before.used >= held.nbytes


class FakeNvml:
    """Two GPUs: {pid: bytes} of each, and total bytes used; None stands for an error of the driver."""

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
    """ask(pids, processes): the answer of a driver that lists these, on a host or in a container."""

    def look(pids, *driver, is_host=True):
        monkeypatch.setattr(gpu, "_library", lambda: FakeNvml(*driver))
        monkeypatch.setattr(gpu, "is_initial_namespace", lambda: is_host)
        return gpu.used_by(pids)

    return look


@pytest.mark.parametrize("is_host", [True, False])
def test_memory_of_other_processes_is_not_counted(ask, is_host):
    """Another job once failed levels 1 and 3, and one that ended hid a leak."""
    quiet = ask([7, 8], [{7: 4, 99: 1000}, {8: 5}], is_host=is_host)
    busy = ask([7, 8], [{7: 4}, {8: 5, 99: 10**12}], is_host=is_host)
    assert quiet == busy == gpu.GpuMemory(9, gpu.OWN)


def test_processes_without_gpu_memory_count_zero(ask):
    assert ask([7], [{99: 1000}, {}]) == gpu.GpuMemory(0, gpu.OWN)


@pytest.mark.parametrize(
    ("processes", "is_host"),
    [(None, True), ([{os.getpid(): None}, {}], True), ([{4711: 50}, {}], False), ([{}, {}], False)],
    ids=["not supported", "no figure", "pids of the host", "none listed"],
)
def test_whole_gpus_count_if_processes_are_not_listed(ask, monkeypatch, processes, is_host):
    monkeypatch.setattr(gpu.psutil.Process, "environ", lambda self: {})
    assert ask([os.getpid()], processes, is_host=is_host) == gpu.GpuMemory(210, gpu.WHOLE)


@pytest.mark.parametrize(("choice", "used"), [("1", 200), ("GPU-aa", 10), ("0,1", 210), ("-1", 0), ("MIG-x", 210)])
def test_whole_gpus_are_those_visible_to_the_server(ask, monkeypatch, choice, used):
    monkeypatch.setattr(gpu.psutil.Process, "environ", lambda self: {"CUDA_VISIBLE_DEVICES": choice})
    assert ask([os.getpid()], None) == gpu.GpuMemory(used, gpu.WHOLE)


def test_memory_is_unknown_without_figures_or_processes(ask):
    assert ask([os.getpid()], None, None) is None
    assert ask([], [{99: 1000}, {}]) is None
    assert ask([2**22 + 1], None) is None  # beyond the largest pid


def test_series_has_figures_of_one_scope_only():
    whole, own = gpu.GpuMemory(900, gpu.WHOLE), gpu.GpuMemory(5, gpu.OWN)
    assert gpu.keep_one_scope([whole, own, None]) == ([None, 5, None], gpu.OWN)
    assert gpu.keep_one_scope([whole, None]) == ([900, None], gpu.WHOLE)
    assert gpu.keep_one_scope([None]) == ([None], None)
