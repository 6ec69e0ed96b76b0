"""The emulator gives kernels the arguments that it was given, and knows the memory of tensors among them."""

import ctypes
import struct
import threading
import time

import pytest
import torch

OTHER = 0x5AFE_5AFE_5AFE
SECONDS = 0.7


@pytest.fixture
def another_thread():
    """Another Python thread makes and frees ctypes objects that hold OTHER."""
    is_over = threading.Event()

    def make():
        while not is_over.is_set():
            [ctypes.c_uint64(OTHER) for _ in range(50)]

    thread = threading.Thread(target=make)
    thread.start()
    yield
    is_over.set()
    thread.join()


def test_arguments_are_packed_by_their_kind(emulator):
    x = torch.arange(4)
    (double,) = struct.unpack("=Q", struct.pack("=d", -1.5))
    expected = [0, x.data_ptr() + 8, double, (1 << 64) - 3, 1 << 40, 1]
    assert list(emulator.pack_slots((None, x[1:], -1.5, -3, 1 << 40, True))) == expected


@pytest.mark.usefixtures("another_thread")
def test_arguments_stay_as_they_are_while_another_thread_runs(emulator):
    """They used to be read from freed objects, whose memory the other thread reuses: kernels got wild addresses."""
    args, end = tuple(range(9)), time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert list(emulator.pack_slots(args)) == list(args)


def test_memory_of_tensors_is_joined_where_it_overlaps(emulator):
    x = torch.zeros(100, 10)
    column, rows, last, first = x[:, 3], x[20:30].T, x[90:, 5:], x[0, :3]
    areas, area_of = emulator.find_areas((None, last, column, 7, rows, first, torch.zeros(0), x[:0]))
    found = [((area.begin - x.data_ptr()) // 4, area.num_bytes // 4, area.argument) for area in areas]
    assert found == [(0, 3, 5), (3, 997, 2)]
    assert list(area_of) == [-1, 1, 1, -1, 1, 0, -1, -1]
