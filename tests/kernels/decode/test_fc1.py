"""decode_fc1 followed by decode_fc2 compared with moe_matmul, and refusals of the kernels."""

from dataclasses import replace

import torch

from firesteel.kernels.decode.fc1 import chosen_bytes, count_chosen, decode_fc1
from firesteel.kernels.decode.fc2 import DecodeFc2Operands, decode_fc2
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm


def test_fc1_and_fc2_add_the_experts_mlp_to_the_residual(small_operands):
    operands = small_operands(decode_fc1)
    r, logits, experts = operands.r, operands.logits, operands.experts
    inner = decode_fc1.reference(operands)
    result = decode_fc2.reference(DecodeFc2Operands(inner=inner, logits=logits, experts=experts, r=r.clone()))
    x, _ = rms_norm.reference(RmsNormOperands(residual=r, weight=operands.norm, eps=operands.eps))
    chosen, ids = logits.topk(operands.active)
    update = moe_matmul.reference(
        MoeMatmulOperands(x=x, ids=ids, weights=chosen.softmax(-1), experts=experts, limit=operands.limit)
    )
    torch.testing.assert_close(result, r + update, atol=0.04, rtol=0.01)
    assert inner.shape == (5, 4, 192) and inner.dtype == torch.bfloat16


def test_inner_rows_are_in_the_order_of_the_logits(small_operands):
    operands = small_operands(decode_fc1)
    forward = decode_fc1.reference(replace(operands, active=8))
    backward = decode_fc1.reference(replace(operands, logits=-operands.logits, active=8))
    assert torch.equal(forward, backward.flip(1)) and not torch.equal(forward, backward)


def test_experts_that_several_tokens_chose_are_read_once(small_operands):
    logits = torch.tensor([[3.0, 2, 1, 0, -1, -2, -3, -4], [4.0, 3, -9, -9, 2, 1, -9, -9]])
    assert count_chosen(logits, 4) == 6
    operands = small_operands(decode_fc1, "kindling T=1")
    one, two = (decode_fc1.bytes(replace(operands, logits=logits[:tokens])) for tokens in (1, 2))
    expert = operands.experts
    rows = sum(part[0].nbytes for part in (expert.gate_up_codes, expert.gate_up_scales, expert.gate_up_bias))
    assert two - one == 2 * rows + logits[0].nbytes


def test_routing_takes_the_space_that_the_kernel_declares():
    """int count, expert[P], wanted[P], token[P][T], slot[P][T], id[P]; float weight[P]: P pairs of T tokens."""
    assert [chosen_bytes(tokens, 4) for tokens in (1, 2, 4, 8)] == [128, 384, 896, 2688]


def test_kernels_refuse_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_fc1)
    assert refusal(decode_fc1) is None and refusal(decode_fc2) is None
    assert "up to 4 experts a token, not 5" in refusal(decode_fc1, active=5)
    assert "bf16" in refusal(decode_fc1, r=operands.r.float())
    assert "contiguous" in refusal(decode_fc1, logits=operands.logits.T.contiguous().T)
    inner = small_operands(decode_fc2).inner
    assert "up to 4 experts a token, not 8" in refusal(decode_fc2, inner=inner.repeat(1, 2, 1))
    assert "multiple of 64 values, not 96" in refusal(decode_fc2, inner=inner[..., :96].contiguous())
