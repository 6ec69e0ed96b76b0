"""The emulator gives kernels the arguments that it was given."""

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
