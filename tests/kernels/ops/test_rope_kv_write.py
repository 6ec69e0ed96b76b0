"""rope_kv_write stores the reference's bits in pages of every type and refuses other arguments."""

import sys
from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.formats import e4m3
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.ops.rope_kv_write import RopeKvWriteOperands, rope_kv_write
from firesteel.kernels.proof.prove import prove_code
from firesteel.kernels.proof.verify import rebuild, same_bits

FP8 = torch.float8_e4m3fn
MODULE = sys.modules["firesteel.kernels.ops.rope_kv_write"]


def every_bf16(pages=FP8):
    """Returns operands without rotation: values [128, 8, 64] are all 65536 patterns of bf16, keys a few of them."""
    v = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(128, 8, 64)
    k = v.roll(64 * 8, dims=0).where(v.isfinite(), torch.tensor(float("nan"), dtype=torch.bfloat16))
    table = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1)
    k_pages, v_pages = torch.zeros(2, 2, 8, 64, 64).to(pages)
    return RopeKvWriteOperands(
        q=v[:, :4],
        k=k,
        v=v,
        positions=torch.zeros(128, dtype=torch.int64),
        table=table,
        k_pages=k_pages,
        v_pages=v_pages,
        slots=torch.arange(128),
    )


def test_fp8_pages_saturate_and_keep_nan():
    operands = every_bf16()
    rope_kv_write.reference(operands)
    written, v = operands.v_pages.float().transpose(1, 2).reshape(128, 8, 64), operands.v.float()
    assert written.abs().nan_to_num(nan=0).max() == 448
    assert (written[v.abs() > 448] == v[v.abs() > 448].sign() * 448).all()
    assert torch.equal(written.isnan(), v.isnan())


@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
def test_quotients_beyond_448_are_counted_and_448_is_not(scale):
    sizes = [448.0, 448.5, -448.0, -480.0, 1e30, float("inf"), float("nan"), 0.0]
    k = torch.zeros(1, 8, 64)
    k[0, 1, :8] = torch.tensor(sizes) * scale
    v = k.roll(1)
    v[0, 0, 0] = -float("inf")
    table = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1)
    zero, clipped = torch.zeros(1, dtype=torch.int64), torch.tensor([5])
    k_pages, v_pages = torch.zeros(2, 1, 8, 16, 64).to(FP8)
    operands = RopeKvWriteOperands(
        q=k[:, :4],
        k=k,
        v=v,
        positions=zero,
        table=table,
        k_pages=k_pages,
        v_pages=v_pages,
        slots=zero,
        key_scale=scale,
        value_scale=scale,
    )
    *_, counted = rope_kv_write.reference(replace(operands, clipped=clipped))
    assert counted is clipped and clipped.tolist() == [5 + 4 + 5]
    assert len(rope_kv_write.reference(operands)) == 3
    assert k_pages.float()[0, 1, 0, :6].tolist() == [448.0, 448.0, -448.0, -448.0, 448.0, 448.0]


def test_scales_divide_before_rounding_and_are_for_fp8_only():
    operands = replace(every_bf16(), key_scale=0.5, value_scale=0.125)
    rope_kv_write.reference(operands)
    written = operands.v_pages.view(torch.uint8).transpose(1, 2).reshape(128, 8, 64)
    assert torch.equal(written, e4m3.encode(operands.v.float() * 8))
    plain = every_bf16(torch.bfloat16)
    for implementation in rope_kv_write.implementations.values():
        assert implementation.accepts(plain) is None and implementation.accepts(operands) is None
        why = "has scales for fp8 e4m3 pages, not torch.bfloat16"
        assert implementation.accepts(replace(plain, key_scale=2.0)) == why
        assert implementation.accepts(replace(plain, clipped=torch.zeros(1))) == why


def test_interpreted_kernel_counts_and_divides_as_the_reference_does(call_interpreted):
    for key_scale, value_scale in ((1.0, 1.0), (0.003, 0.3)):
        scales = {"key_scale": key_scale, "value_scale": value_scale}
        counting = replace(every_bf16(), **scales, clipped=torch.tensor([3]))
        ((_, k_pages, v_pages, clipped),) = call_interpreted(rope_kv_write, "triton", [Sample("all", (counting,))])
        _, *pages, expected = rope_kv_write.reference(counting.clone())
        assert same_bits(k_pages, pages[0]) and same_bits(v_pages, pages[1])
        assert torch.equal(clipped, expected) and int(clipped) > 1000


def test_interpreted_kernel_rounds_every_bf16_to_fp8_as_the_format_does(call_interpreted):
    operands = every_bf16()
    ((q, k_pages, v_pages),) = call_interpreted(rope_kv_write, "triton", [Sample("all", (operands,))])
    assert k_pages.dtype == FP8 and q.shape == (128, 4, 64)
    codes = v_pages.view(torch.uint8).transpose(1, 2).reshape(128, 8, 64)
    assert torch.equal(codes, e4m3.encode(operands.v))
    expected = rope_kv_write.reference(operands)
    assert same_bits(k_pages, expected[1])


@pytest.mark.gpu
@pytest.mark.parametrize("pages", [FP8, torch.bfloat16, torch.float16, torch.float32])
def test_every_bf16_is_stored_as_by_the_reference_on_a_gpu(pages):
    device = find_device("cuda")
    if pages == FP8 and device.capability < (8, 9):
        pytest.skip(f"{device.name} has no fp8")
    operands = rebuild(every_bf16(pages), lambda tensor: tensor.to(device.torch_device))
    expected = [result.double() for result in rope_kv_write.reference(operands.clone())]
    actual = rope_kv_write.implementations["triton"].function(operands)
    for result, other in zip(actual, expected, strict=True):
        assert torch.equal(result.double().nan_to_num(nan=0.5), other.nan_to_num(nan=0.5))


@pytest.mark.gpu
def test_counting_on_a_gpu_does_not_wait_until_the_count_is_read(forbid_waiting):
    device = find_device("cuda")
    if device.capability < (8, 9):
        pytest.skip(f"{device.name} has no fp8")
    plain = rebuild(every_bf16(), lambda tensor: tensor.to(device.torch_device))
    ledger, clipped = Ledger(), torch.zeros(1, dtype=torch.int64, device=device.torch_device)
    operands = replace(plain, key_scale=0.25, value_scale=0.5, clipped=clipped)
    chosen = rope_kv_write.choose(device, "triton", ledger)
    chosen(operands)  # compiles
    torch.cuda.synchronize()
    with forbid_waiting():
        chosen(operands)
    expected = torch.zeros_like(clipped)
    rope_kv_write.reference(replace(operands, clipped=expected))
    assert ledger.entries[Ran("rope_kv_write", "triton")].clipped == 2 * int(expected) > 0


def accepts(**changes):
    return rope_kv_write.implementations["triton"].accepts(replace(every_bf16(torch.bfloat16), **changes))


def test_unsupported_arguments_are_refused_with_the_reason():
    assert accepts() is None
    pages = every_bf16(torch.float8_e5m2).k_pages
    assert accepts(k_pages=pages, v_pages=pages) == (
        "writes bf16, fp16, fp32 or fp8 e4m3 pages, not torch.float8_e5m2 and torch.float8_e5m2"
    )
    assert accepts(k_pages=every_bf16(FP8).k_pages).endswith("not torch.float8_e4m3fn and torch.bfloat16")
    assert "side by side" in accepts(q=torch.zeros(128, 64, 4).bfloat16().transpose(1, 2))
    assert "contiguous positions, table, pages and slots" in accepts(slots=torch.arange(256)[::2])


def test_fp8_pages_need_a_gpu_on_which_attention_reads_them(monkeypatch):
    pages = {"k_pages": every_bf16().k_pages, "v_pages": every_bf16().v_pages}
    for capability, refused in (((8, 0), True), ((8, 6), True), ((8, 9), False), ((12, 1), False), (None, False)):
        monkeypatch.setattr(MODULE, "find_capability", lambda device, value=capability: value)
        assert (accepts(**pages) is not None) == refused
        assert accepts() is None


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_121a"])
def test_one_kernel_rotates_and_writes_pages_of_either_type(target):
    capability = divmod(int(target.strip("sm_a")), 10)
    codes = {code.variant: code for code in rope_kv_write.make_device_code(capability)}
    assert list(codes) == ["triton", "triton fp8-pages"][: 1 if target == "sm_80" else 2]
    assert not any(code.enable_fp_fusion for code in codes.values())  # as it is launched
    for code in codes.values():
        proof = prove_code("rope_kv_write", code, target)
        assert (proof.verdict, proof.spills) == ("none", 0)
        assert proof.shared_bytes <= 64  # counting what is clipped joins the sums of two warps
