"""Growth is distinguished from first use of reserved memory."""

import subprocess
import sys

import psutil
import pytest

from firesteel.lab.memory import footprint
from firesteel.lab.memory.footprint import Footprint, MemoryRegion, first_touched, measure_growth
from firesteel.lab.memory.gpu import OWN, GpuMemory

MB = 1 << 20
# Reserves 200 MB; "touch" writes to half of it, "grow" takes 100 MB more.
PROGRAM = """
import mmap, sys
reserved, taken = mmap.mmap(-1, 200 << 20), []
print("ready", flush=True)
for word in sys.stdin:
    if word.strip() == "touch":
        for at in range(0, 100 << 20, 4096):
            reserved[at] = 1
    else:
        taken.append(b"x" * (100 << 20))
    print("done", flush=True)
"""


@pytest.fixture
def child():
    """ask(word) makes the child act and waits; second, its process."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        program.stdout.readline()

        def ask(word):
            program.stdin.write(word + "\n")
            program.stdin.flush()
            program.stdout.readline()

        yield ask, psutil.Process(program.pid)
        program.stdin.close()


def test_first_use_of_reserved_memory_is_not_growth(child):
    ask, process = child
    before = Footprint.of([process])
    ask("touch")
    grown, touched = measure_growth(before, Footprint.of([process]))
    assert abs(grown) < 10 * MB and touched == pytest.approx(100 * MB, abs=2 * MB)


def test_memory_that_was_not_reserved_is_growth(child):
    ask, process = child
    before = Footprint.of([process])
    ask("grow")
    grown, touched = measure_growth(before, Footprint.of([process]))
    assert grown == pytest.approx(100 * MB, abs=10 * MB) and touched == 0


def test_first_use_is_limited_to_what_was_untouched():
    region = MemoryRegion(1, 0, 100 * MB, 90 * MB)
    assert first_touched(region, [MemoryRegion(1, 0, 300 * MB, 290 * MB)]) == 10 * MB
    assert first_touched(region, [MemoryRegion(2, 0, 100 * MB, 100 * MB)]) == 0
    assert first_touched(region, []) == 0


def test_exited_processes_count_nothing(child):
    gone = psutil.Process(child[1].pid)
    gone.kill()
    gone.wait()
    measured = Footprint.of([gone])
    assert measured.resident == 0 and measured.regions == ()


def test_gpu_memory_is_that_of_the_processes(child, monkeypatch):
    monkeypatch.setattr(footprint, "used_by", lambda pids: GpuMemory(sum(pids), OWN))
    measured = Footprint.of([child[1]])
    assert measured.gpu == child[1].pid and measured.gpu_scope == OWN
