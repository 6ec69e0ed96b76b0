"""Ceilings of the machine: rates follow from work and time; small probes run everywhere."""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.measure.roofline import ceiling
from firesteel.measure.roofline.ceiling import Ceiling, matrix_ceiling, read_ceiling
from firesteel.measure.timing import Timing

CPU = find_device("cpu")


def test_rate_is_work_over_the_median_time():
    timing = Timing(samples_s=(0.5, 0.25, 9.0), calls=1, warmups=1)
    assert Ceiling(work=3e9, scale=1e9, unit="GB/s", timing=timing).rate == 6.0


def test_read_on_a_cpu_reads_the_whole_buffer(monkeypatch):
    sizes = []
    monkeypatch.setattr(ceiling, "_reader", lambda device: lambda data: sizes.append(data.nbytes))
    measured = read_ceiling(CPU, num_bytes=1 << 16, samples=2)
    assert set(sizes) == {1 << 16} and measured.work == 1 << 16


def test_read_on_a_cpu_has_a_plausible_rate():
    ceiling = read_ceiling(CPU, num_bytes=8 << 20, samples=3)
    assert ceiling.unit == "GB/s" and 0.05 < ceiling.rate < 5000
    assert ceiling.rate == pytest.approx((8 << 20) / ceiling.timing.median_s / 1e9)


def test_larger_lent_buffer_of_a_gpu_is_read(monkeypatch):
    """A CPU ignores it: unwritten memory is a single page of zeros."""
    monkeypatch.setattr(ceiling, "time_calls", lambda _, arguments, *args, **named: arguments[0][0])
    monkeypatch.setattr(ceiling, "_reader", lambda device: None)
    monkeypatch.setattr(ceiling, "LARGEST_READ", 1 << 14)
    lent = torch.zeros(64, 4, 8, 8, dtype=torch.bfloat16)
    gpu = replace(CPU, capability=(9, 0))
    read = {
        (device.is_cuda, size): read_ceiling(device, num_bytes=size, lent=lent).timing
        for device in (CPU, gpu)
        for size in (1 << 10, 1 << 16)
    }
    assert read[True, 1 << 10].data_ptr() == lent.data_ptr() and read[True, 1 << 10].nbytes == 1 << 14
    assert read[True, 1 << 16].nbytes == 1 << 16 and read[False, 1 << 10].nbytes == 1 << 10


def test_larger_buffers_take_longer():
    small, large = (read_ceiling(CPU, num_bytes=size, samples=5) for size in (1 << 20, 32 << 20))
    assert large.timing.median_s > 4 * small.timing.median_s


def test_matrix_product_on_a_cpu_has_a_plausible_rate(monkeypatch):
    multiplied = []
    monkeypatch.setattr(torch, "mm", lambda a, b: multiplied.append((a.shape, b.shape, a.dtype)) or a @ b)
    ceiling = matrix_ceiling(CPU, size=128, samples=3)
    assert set(multiplied) == {((128, 128), (128, 128), torch.float32)}
    assert ceiling.unit == "TFLOP/s" and ceiling.work == 2 * 128**3 and 1e-5 < ceiling.rate < 100


def test_default_buffer_exceeds_the_cache_and_leaves_memory_free(monkeypatch):
    monkeypatch.setattr(ceiling, "find_cache_bytes", lambda device: 100 << 20)
    monkeypatch.setattr(ceiling, "available_bytes", lambda device: 100 << 30)
    assert ceiling._read_bytes(CPU) == 400 << 20
    monkeypatch.setattr(ceiling, "available_bytes", lambda device: 1 << 30)
    assert ceiling._read_bytes(CPU) == 256 << 20


@pytest.mark.gpu
def test_probes_on_a_gpu_beat_any_cpu():
    device = find_device("cuda")
    assert read_ceiling(device).rate > 100
    assert matrix_ceiling(device).rate > 10
