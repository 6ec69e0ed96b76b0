"""Widening of E2M1 codes to E4M3 is exact, for every code and every scale of its group."""

import functools
import shutil
from pathlib import Path

import pytest
import torch

from firesteel.formats import e2m1, e2m1_rows, e4m3
from firesteel.kernels.cuda.source import CSRC, CudaSource

OWN = Path(__file__).with_name("emulator")
HEADERS = ("widen_e4m3.cuh", "primitives.cuh", "instructions.cuh")


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def widen(request, kernel_cache, tmp_path):
    """widen(codes [N, 8], scales [N], largest [N]) returns E4M3 codes [N, 8]; N is a multiple of 16."""
    device = "cuda" if request.param == "gpu" else "cpu"
    for place, name in ((OWN, "widening.cu"), *((CSRC, name) for name in HEADERS)):
        shutil.copy(place / name, tmp_path)
    kernel = CudaSource("widening.cu", folder=tmp_path).kernel("widening", threads=32)
    prepare = kernel.prepare
    if request.param == "emulated":
        prepare = functools.partial(request.getfixturevalue("emulator").emulated_prepare, kernel)

    def run(codes, scales, largest):
        shifts = torch.arange(0, 32, 4)
        words = (codes.long() << shifts).sum(-1).to(torch.int32).to(device)
        results = torch.zeros(len(codes), 2, dtype=torch.int32, device=device)
        args = (words, scales.to(torch.uint8).to(device), largest.to(torch.uint8).to(device), results)
        prepare(grid=(len(codes) // 16,), args=args)()
        return results.cpu().view(torch.uint8)

    return run


def every_word():
    """Returns [16, 8] codes: every code at every place."""
    return (torch.arange(16)[:, None] + torch.arange(8)) % 16


@pytest.mark.parametrize("largest", [34, 127, 160])
def test_every_code_is_exact_with_every_scale_of_a_row_that_fits(widen, largest):
    below = torch.arange(e2m1_rows.MOST_SPAN + 1).repeat_interleave(16)
    codes = every_word().repeat(e2m1_rows.MOST_SPAN + 1, 1)
    scales, highest = (largest - below) & 255, torch.full_like(below, largest)
    widened = widen(codes, scales, highest)
    values = e2m1.decode(codes.to(torch.uint8))
    expected = values * 2.0 ** (e2m1_rows.MOST_EXPONENT - below)[:, None]
    assert torch.equal(e4m3.decode(widened), expected)
    assert torch.equal(widened >> 7, (codes >> 3).to(torch.uint8))  # signs of zeros, too


def test_zeros_of_a_group_with_any_scale_stay_zeros(widen):
    scales = torch.arange(256)
    codes = torch.tensor([0, 8]).repeat(4).expand(256, 8)
    widened = widen(codes, scales, torch.full_like(scales, 100))
    assert torch.equal(widened & 0x7F, torch.zeros_like(widened))
