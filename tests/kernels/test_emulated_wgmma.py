"""The emulated wgmma multiplies matrices, and computes no sooner than a kernel waits for it."""

import shutil

import pytest
import torch

from firesteel.formats import e4m3
from firesteel.kernels.cuda.source import CSRC, CudaSource

FAULTS = ("none", "reads too soon", "reuses too soon", "never waits")


@pytest.fixture
def multiply(emulator, tmp_path):
    """multiply(fault) returns A B^T as the kernel computes it, and as it is, for small integers."""
    for place, name in ((emulator.FOLDER, "products.cu"), (CSRC, "wgmma.cuh"), (CSRC, "instructions.cuh")):
        shutil.copy(place / name, tmp_path)
    source = CudaSource("products.cu", defines={"SHARED_BYTES": 2048}, folder=tmp_path)
    kernel = source.kernel("products", threads=128, shared_bytes=2048)
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-9, 9, (rows, 64), generator=generator).bfloat16() for rows in (64, 16))

    def run(fault):
        d = torch.zeros(128, 8)
        args = (lay_out(a), swizzle(b), d, FAULTS.index(fault))
        emulator.emulated_prepare(kernel, grid=(1,), args=args)()
        sums = d.view(4, 8, 4, 2, 2, 2)  # warp, row % 8, lane % 4, token / 8, row / 8 % 2, token % 2
        return sums.permute(0, 4, 1, 3, 2, 5).reshape(64, 16), a.float() @ b.float().T

    return run


@pytest.fixture
def multiply_e4m3(emulator, tmp_path):
    """multiply_e4m3(a, b, fault, adds) returns the sums that the kernel computes from A [64, 64] and B [16, 64]."""
    for place, name in ((emulator.FOLDER, "products.cu"), (CSRC, "wgmma.cuh"), (CSRC, "instructions.cuh")):
        shutil.copy(place / name, tmp_path)
    source = CudaSource("products.cu", defines={"SHARED_BYTES": 2048}, folder=tmp_path)
    kernel = source.kernel("products_e4m3", threads=128, shared_bytes=2048)

    def run(a, b, fault="none", adds=False):
        d = torch.zeros(128, 8)
        args = (lay_out_e4m3(e4m3.encode(a)), swizzle_bytes(e4m3.encode(b)), d, FAULTS.index(fault), int(adds))
        emulator.emulated_prepare(kernel, grid=(1,), args=args)()
        return d.view(4, 8, 4, 2, 2, 2).permute(0, 4, 1, 3, 2, 5).reshape(64, 16)

    return run


def lay_out_e4m3(a):
    """Returns each thread's words [2, 128, 4] of A [64, 64]: by step, warp and lane, then half and row / 8."""
    parts = a.view(4, 2, 8, 2, 2, 4, 4)  # warp, row / 8, row % 8, step, half, lane % 4, byte
    return parts.permute(3, 0, 2, 5, 4, 1, 6).contiguous().view(torch.int32).view(2, 128, 4)


def swizzle_bytes(b):
    """Returns B [16, 64] with the 16-byte parts of row r at position part ^ r / 2 % 4."""
    rows = torch.arange(16)[:, None]
    return b.view(16, 4, 16)[rows, torch.arange(4)[None, :] ^ rows // 2 % 4].contiguous()


def draw_integers(rows, seed):
    return torch.randint(-9, 9, (rows, 64), generator=torch.Generator().manual_seed(seed)).float()


def lay_out(a):
    """Returns each thread's words [4, 128, 4] of A [64, 64]: by step, warp and lane, then half and row / 8."""
    parts = a.view(4, 2, 8, 4, 2, 4, 2)  # warp, row / 8, row % 8, step, half, lane % 4, pair
    return parts.permute(3, 0, 2, 5, 4, 1, 6).contiguous().view(torch.int32).view(4, 128, 4)


def swizzle(b):
    """Returns B [16, 64] with the 16-byte parts of row r at position part ^ r % 8."""
    rows = torch.arange(16)[:, None]
    return b.view(16, 8, 8)[rows, torch.arange(8)[None, :] ^ rows % 8].contiguous()


def test_products_are_matrix_products(multiply):
    actual, expected = multiply("none")
    assert torch.equal(actual, expected)


def test_sums_read_before_the_wait_are_incomplete(multiply):
    actual, expected = multiply("reads too soon")
    assert not torch.equal(actual, expected)


def test_operands_overwritten_before_the_wait_are_seen(multiply):
    assert multiply("reuses too soon")[0].isnan().any()


def test_kernel_that_ends_without_a_wait_is_refused(multiply, emulator):
    with pytest.raises(emulator.EmulationError, match="ended before its products"):
        multiply("never waits")


@pytest.mark.parametrize("adds", [False, True])
def test_products_of_e4m3_are_matrix_products(multiply_e4m3, adds):
    a, b = draw_integers(64, 1), draw_integers(16, 2)
    assert torch.equal(multiply_e4m3(a, b, adds=adds), a @ b.T + adds)


def test_sums_of_e4m3_read_before_the_wait_are_incomplete(multiply_e4m3):
    a, b = draw_integers(64, 1), draw_integers(16, 2)
    assert not torch.equal(multiply_e4m3(a, b, "reads too soon"), a @ b.T)


def test_sums_of_e4m3_keep_fourteen_bits(multiply_e4m3):
    """8192 and a term of 1 need 14 bits, 16384 and a term of 1 one more: it is cut off, towards zero."""
    a, b = torch.zeros(64, 64), torch.ones(16, 64)
    a[:, 0], a[:, 1] = 64, 1
    b[:, 0] = 128
    assert torch.equal(multiply_e4m3(a, b), torch.full((64, 16), 8193.0))
    assert torch.equal(multiply_e4m3(-a, b), torch.full((64, 16), -8193.0))
    b[:, 0] = 256
    assert torch.equal(multiply_e4m3(a, b), torch.full((64, 16), 16384.0))
