"""Rounding of activations: the reference, and CUDA code that gives the same bits."""

import shutil

import pytest
import torch

from firesteel.config import ConfigError, resolve
from firesteel.formats import fp8, mxfp4, mxfp6, mxfp8
from firesteel.kernels.cuda.source import CSRC, CudaSource
from firesteel.kernels.operands import activation as activation_module
from firesteel.kernels.operands.activation import ACTIVATIONS, EMULATED, is_native, lacks_native, round_activation
from firesteel.kernels.operands.fed import refuse_activation

PROGRAM = """
#include "round_mxfp8.cuh"
extern "C" __global__ void round_all(const u32 *x, u32 *y) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    y[at] = round_mxfp8(x[at]);
}
"""


@pytest.fixture
def kernel(kernel_cache, tmp_path):
    """The kernel round_all, in a folder with the headers that it includes."""
    for name in ("round_mxfp8.cuh", "primitives.cuh", "instructions.cuh"):
        shutil.copy(CSRC / name, tmp_path)
    (tmp_path / "round_all.cu").write_text(PROGRAM)
    return CudaSource("round_all.cu", folder=tmp_path).kernel("round_all", threads=256)


def test_rounding_is_that_of_the_formats():
    x = torch.randn(3, 96)
    assert round_activation(x, "bf16") is x
    assert torch.equal(round_activation(x, "mxfp8"), mxfp8.dequantize(*mxfp8.quantize(x)))
    assert torch.equal(round_activation(x, "mxfp4"), mxfp4.dequantize(*mxfp4.quantize(x)))
    assert torch.equal(round_activation(x, "fp8"), fp8.dequantize(*fp8.quantize(x)))
    for element in ("e3m2", "e2m3"):
        expected = mxfp6.dequantize(*mxfp6.quantize(x, element), element)
        assert torch.equal(round_activation(x, f"mxfp6_{element}"), expected)
    with pytest.raises(
        ValueError, match=r"unknown activation 'fp4'; the activations are bf16, mxfp8, mxfp4, fp8, mxfp6_"
    ):
        round_activation(x, "fp4")


def test_setting_accepts_every_activation_and_nothing_else():
    for activation in (*ACTIVATIONS, *EMULATED):
        assert resolve({"activation": activation}, environ={}).config.kernels.activation == activation
    with pytest.raises(ConfigError, match=f"must be one of {', '.join((*ACTIVATIONS, *EMULATED))}$"):
        resolve({"activation": "mxfp6"}, environ={})


@pytest.mark.parametrize("activation", EMULATED)
def test_emulated_activations_are_native_nowhere_and_refused_by_kernels(activation):
    assert not is_native((12, 1), activation) and lacks_native((12, 1), activation) is None
    assert repr(activation) in refuse_activation(activation)


def test_bf16_value_rounded_to_mxfp8_is_again_a_bf16_value():
    """A kernel may therefore store it in place of the plain value."""
    x = edge_cases()
    rounded = round_activation(x.float(), "mxfp8")
    assert torch.equal(rounded, rounded.bfloat16().float()) and not torch.equal(rounded, x.float())


def test_without_triton_a_gpu_that_could_multiply_them_natively_does_not(monkeypatch):
    monkeypatch.setattr(activation_module.importlib.util, "find_spec", lambda name: None)
    for activation in ("mxfp8", "mxfp4"):
        why = lacks_native((12, 1), activation)
        assert why.startswith(f"needs Triton >= 3.8 for {activation} activations on SM12x, and Triton is not")
        assert "--activation bf16" in why
        assert lacks_native((9, 0), activation) is None and lacks_native(None, activation) is None
    assert lacks_native((12, 1), "bf16") is None


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a", "sm_121a"])
def test_cuda_rounding_compiles_to_conversions(kernel, target):
    ptx = kernel.build(target).ptx
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == 1 and "local" not in ptx


def edge_cases():
    """Returns [G, 32] bf16: all magnitudes, ties, values that saturate, zeros, groups of one value."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4096, 32, generator=generator)
    x[:1024] *= 2.0 ** torch.randint(-100, 100, (1024, 1), generator=generator)
    x[1024:2048] = torch.arange(32) / 16 + 15  # ties, and what is above the largest element
    x[2048:2500, 3:] = 0
    x[2500:2600] = 0
    x[2600:3000, 1:] *= 2.0 ** -torch.randint(0, 14, (400, 31), generator=generator)  # subnormal elements
    x[3000:3100, 0] = 3.3e38
    return x.bfloat16()


@pytest.mark.gpu
def test_cuda_rounding_gives_the_bits_of_the_reference(kernel):
    x = edge_cases().cuda()
    y = torch.empty_like(x)
    kernel.prepare(grid=(x.numel() // 512,), args=(x, y))()
    expected = round_activation(x.float(), "mxfp8").bfloat16()
    assert torch.equal(y.view(torch.int16), expected.view(torch.int16))
