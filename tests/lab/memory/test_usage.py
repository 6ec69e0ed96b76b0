"""CPU and memory of a process and its children."""

import os
import signal
import subprocess
import sys
import time

from firesteel.lab.memory import gpu
from firesteel.lab.memory.usage import UsageSampler

BUSY = "import time\nfill = bytearray(200 << 20)\nend = time.time() + 60\nwhile time.time() < end: pass"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_children_are_included():
    with subprocess.Popen([sys.executable, "-c", PARENT], start_new_session=True) as parent:
        try:
            with UsageSampler(parent.pid, period_s=0.05) as sampler:
                time.sleep(1.5)
            usage = sampler.usage()
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
    assert usage.peak_memory_bytes > 200 << 20
    assert usage.cpu_s > 0.3 and 0.1 < usage.cores < 2.5
    assert len(usage.memory) > 5 and usage.memory[-1][0] >= 1.4


def test_exited_process_keeps_its_figures():
    with (
        subprocess.Popen([sys.executable, "-c", "sum(range(5_000_000))"]) as process,
        UsageSampler(process.pid, period_s=0.02) as sampler,
    ):
        process.wait()
        time.sleep(0.1)
    assert sampler.usage().cpu_s > 0
    assert sampler.usage().peak_memory_bytes > 0


def test_gpu_memory_is_that_of_the_process_with_its_scope(monkeypatch):
    monkeypatch.setattr(gpu, "used_by", lambda pids: gpu.GpuMemory(1000 * (os.getpid() in list(pids)), gpu.OWN))
    with UsageSampler(os.getpid()) as sampler:
        pass
    usage = sampler.usage().as_dict()
    assert usage["peak_gpu_bytes"] == 1000 and usage["gpu_scope"] == gpu.OWN
    assert [used for _, _, used in usage["memory"]] == [1000, 1000]
