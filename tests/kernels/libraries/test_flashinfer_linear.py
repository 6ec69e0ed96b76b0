"""FlashInfer's MXFP4 matmul for dense layers: the order of the weight, what is refused, and how it is called."""

import inspect
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.device import find_device
from firesteel.formats import e4m3, mxfp4, mxfp8
from firesteel.kernels import ahead
from firesteel.kernels.libraries import flashinfer, flashinfer_linear, linear_library
from firesteel.kernels.libraries.flashinfer_linear import FlashinferWeight, linear_ready
from firesteel.kernels.libraries.package import find_flashinfer
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from tests.kernels.libraries.stand_in import make_jit

CPU = find_device("cpu")
IMPLEMENTATION = linear.implementations["flashinfer"]


def draw(tokens=3, rows=104, columns=160, activation="mxfp8", has_bias=True):
    generator = torch.Generator().manual_seed(1)
    codes, scales = mxfp4.quantize(torch.randn(rows, columns, generator=generator) * columns**-0.5)
    return LinearOperands(
        x=torch.randn(tokens, columns, generator=generator).bfloat16(),
        weight=Mxfp4Weight(codes=codes, scales=scales),
        bias=torch.randn(rows, generator=generator).bfloat16() if has_bias else None,
        activation=activation,
    )


def pack(operands):
    return linear_library.reorder([(operands,)])[0][0]


def find_scale(rows, groups, all_groups):
    """Returns where the scales are, as CUTLASS lays out those of 128 rows and 4 groups."""
    tiles = rows // 128 * (all_groups // 4) + groups // 4
    return tiles * 512 + rows % 32 * 16 + rows % 128 // 32 * 4 + groups % 4


def read_scales(scales, rows, columns):
    assert scales.dtype == torch.uint8 and scales.is_contiguous()
    groups = columns // 32
    return scales.flatten()[find_scale(torch.arange(rows)[:, None], torch.arange(groups), groups)]


@pytest.fixture
def library(monkeypatch):
    """A stand-in that multiplies what it is given, read as the library lays it out; returns the calls."""
    calls = []

    def multiply(a, b, a_scale, b_scale, m_indptr, tile_n, out_dtype):
        calls.append((a, b, a_scale, b_scale, m_indptr, tile_n))
        (tokens, columns), rows = a.shape, b.shape[1]
        assert columns % 128 == 0 and tokens % 4 == 0 and m_indptr.tolist() == [0, tokens]
        assert a_scale.shape[0] % 128 == 0 and b_scale.shape[:2] == (1, rows + -rows % 128)
        x = mxfp8.dequantize(a.view(torch.uint8), read_scales(a_scale, tokens, columns))
        return (x @ mxfp4.dequantize(b[0], read_scales(b_scale, rows, columns)).T).to(out_dtype)

    def launch(x, codes, scales):
        rounded, exponents = mxfp8.quantize(x.float())
        codes.copy_(rounded)
        scales[: len(x)] = exponents

    package = SimpleNamespace(
        gemm=SimpleNamespace(group_gemm_mxfp8_mxfp4_nt_groupwise=multiply), jit=make_jit("gemm_sm120")
    )
    monkeypatch.setattr(flashinfer_linear, "import_flashinfer", lambda: package)
    monkeypatch.setattr("firesteel.kernels.triton.quantize_mxfp8.launch", launch)
    return calls


@pytest.mark.parametrize(("rows", "columns"), [(104, 160), (5120, 2880), (128, 4096), (1, 32)])
def test_unpacking_restores_every_bit(rows, columns):
    weight = draw(1, rows, columns).weight
    packed = FlashinferWeight.pack(weight)
    restored = packed.unpack()
    assert torch.equal(restored.codes, weight.codes) and torch.equal(restored.scales, weight.scales)
    assert packed.shape == weight.shape and packed.codes.shape[2] % 64 == 0
    assert packed.nbytes == packed.codes.nbytes + packed.scales.nbytes >= weight.nbytes


@pytest.mark.parametrize(("tokens", "tile"), [(1, 32), (33, 64), (131, 128)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_product_is_that_of_the_reference(library, tokens, tile, has_bias):
    operands = draw(tokens, has_bias=has_bias)
    actual = IMPLEMENTATION.function(pack(operands))
    assert actual.is_contiguous() and library[0][-1] == tile
    assert_close(actual=actual, expected=linear.reference(operands), tolerance=IMPLEMENTATION.tolerance)


def test_reference_computes_with_the_same_weight_in_either_order():
    operands = draw()
    assert torch.equal(linear.reference(operands), linear.reference(pack(operands)))
    assert linear.bytes(pack(operands)) > linear.bytes(operands)


def test_calls_are_refused_by_order_activation_tile_and_size():
    accepts = IMPLEMENTATION.accepts
    assert accepts(pack(draw())) is None
    assert "not in that of the checkpoint" in accepts(draw())
    assert "is for mxfp8 activations, not bf16" in accepts(pack(draw(activation="bf16")))
    assert "pinned" in accepts(replace(pack(draw()), tile="128x64"))
    assert "a multiple of 8, not 100" in accepts(pack(draw(rows=100)))
    assert "bf16 tokens" in accepts(replace(pack(draw()), x=draw().x.float()))
    assert "at least one token" in accepts(pack(draw(0)))
    assert "side by side" in accepts(replace(pack(draw()), x=draw(4).x.T.contiguous().T))


@pytest.mark.parametrize("name", ["triton:gemv", "triton:gemm", "triton:invariant"])
def test_our_kernels_refuse_the_order_of_the_library(name):
    assert "in the checkpoint's order" in linear.implementations[name].accepts(pack(draw()))


def test_weight_that_calls_share_is_packed_once_and_bf16_ones_stay():
    operands = draw()
    plain = replace(operands, weight=torch.zeros(8, 160, dtype=torch.bfloat16), activation="bf16")
    first, second, third = (args[0] for args in linear_library.reorder([(operands,), (operands,), (plain,)]))
    assert first.weight is second.weight and third.weight is plain.weight


def test_it_is_for_blackwell(monkeypatch):
    monkeypatch.setattr(flashinfer_linear, "lacks_flashinfer", lambda name: None)
    monkeypatch.setattr(flashinfer_linear, "triton_ready", lambda: lambda device: None)
    devices = {major: replace(CPU, capability=(major, 0), name="GPU") for major in (8, 9, 10, 11, 12)}
    assert {major for major, device in devices.items() if linear_ready(device) is None} == {10, 12}
    assert "on SM10x and SM12x (Blackwell), this is GPU" in linear_ready(devices[9])


def test_missing_package_or_triton_is_named(monkeypatch):
    device = replace(CPU, capability=(12, 1), name="GPU")
    asked = []
    monkeypatch.setattr(flashinfer_linear, "lacks_flashinfer", lambda name: asked.append(name) or "is missing")
    assert linear_ready(device) == "is missing" and asked == ["gemm_sm120"]
    monkeypatch.setattr(flashinfer_linear, "lacks_flashinfer", lambda name: None)
    monkeypatch.setattr(flashinfer_linear, "triton_ready", lambda: lambda device: "needs Triton")
    assert linear_ready(device) == "needs Triton"


def test_nothing_is_launched_while_kernels_are_compiled_ahead(library, monkeypatch):
    monkeypatch.setattr(flashinfer_linear, "current_ahead", lambda: "ahead")
    assert IMPLEMENTATION.function(pack(draw())).shape == (3, 104) and not library


def test_its_module_is_told_when_it_is_compiled_or_loaded(library, monkeypatch):
    told = []
    monkeypatch.setattr(flashinfer, "_told", set())
    monkeypatch.setattr(ahead, "_listeners", [told.append])
    IMPLEMENTATION.function(pack(draw()))
    assert told == ["FlashInfer's module gemm_sm120"]


def test_padding_of_tokens_is_zero(library):
    IMPLEMENTATION.function(pack(draw(5)))
    codes = library[0][0]
    assert codes.shape == (8, 256) and not e4m3.decode(codes.view(torch.uint8))[5:].any()
    assert not e4m3.decode(codes.view(torch.uint8))[:, 160:].any()


@pytest.mark.peer
def test_the_package_takes_what_it_is_given():
    if find_flashinfer() is None:
        pytest.skip("the package flashinfer is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flashinfer
    taken = inspect.signature(flashinfer.gemm.group_gemm_mxfp8_mxfp4_nt_groupwise).parameters
    assert list(taken)[:5] == ["a", "b", "a_scale", "b_scale", "m_indptr"]
    assert {"tile_n", "out_dtype"} <= set(taken) and taken["tile_k"].default == 128
