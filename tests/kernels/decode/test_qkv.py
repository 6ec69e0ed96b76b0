"""decode_qkv: the reference compared with the ops it fuses, and refusals of the kernel."""

import torch

from firesteel.kernels.decode.qkv import decode_qkv

FP8 = torch.float8_e4m3fn


def test_reference_is_norm_matmul_rotation_and_write(small_operands):
    operands = small_operands(decode_qkv)
    before = [operands.k_pages.clone(), operands.v_pages.clone()]
    q, k_pages, v_pages = decode_qkv.reference(operands)
    r, weight = operands.r.float(), operands.weight.float()
    x = (r * torch.rsqrt(r.square().mean(-1, keepdim=True) + operands.eps) * operands.norm.float()).bfloat16()
    heads = (x.float() @ weight.T + operands.bias.float()).bfloat16().float().view(5, 12, 64)
    cos, sin = operands.table[operands.positions].chunk(2, dim=-1)
    token, slot = 3, int(operands.slots[3])
    for head, vector in ((7, q[token, 7]), (9, k_pages[slot // 16, 1, slot % 16])):
        first, second = heads[token, head].chunk(2)
        turned = torch.cat((first * cos[3] - second * sin[3], second * cos[3] + first * sin[3]))
        torch.testing.assert_close(vector.float(), turned, atol=0.04, rtol=0.01)
    torch.testing.assert_close(v_pages[slot // 16, 0, slot % 16].float(), heads[token, 10], atol=0.04, rtol=0.01)
    assert k_pages is operands.k_pages and v_pages is operands.v_pages
    for now, then in zip((k_pages, v_pages), before, strict=True):
        changed = (now != then).any(-1).any(1).nonzero()
        assert {(16 * page + offset).item() for page, offset in changed} == set(operands.slots.tolist())


def test_kernel_refuses_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_qkv)
    assert refusal(decode_qkv) is None
    assert "1 to 8 tokens" in refusal(decode_qkv, r=torch.zeros(9, 256, dtype=torch.bfloat16))
    assert "bf16, not torch.float32" in refusal(decode_qkv, r=operands.r.float())
    assert "float8_e4m3fn and torch.bfloat16" in refusal(decode_qkv, k_pages=operands.k_pages.to(FP8))
    fp8 = {"k_pages": operands.k_pages.to(FP8), "v_pages": operands.v_pages.to(FP8)}
    assert refusal(decode_qkv, **fp8, key_scale=0.5, value_scale=0.25, clipped=torch.zeros(1).long()) is None
    assert "has scales for fp8 e4m3 pages, not torch.bfloat16" in refusal(decode_qkv, key_scale=0.5)
    assert "int64, not torch.float32" in refusal(decode_qkv, **fp8, clipped=torch.zeros(1))
    assert "heads of 64, not 32" in refusal(decode_qkv, k_pages=operands.k_pages[..., :32])
    assert "contiguous" in refusal(decode_qkv, slots=operands.slots.repeat_interleave(2)[::2])
    assert "by 16 rows" in refusal(decode_qkv, weight=operands.weight[:-8])
