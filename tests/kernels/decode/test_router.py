"""decode_router: the reference compared with route, and refusals of the kernel."""

import torch

from firesteel.kernels.decode.router import decode_router
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.ops.route import RouteOperands, route


def test_largest_logits_are_the_experts_that_route_chooses(small_operands):
    operands = small_operands(decode_router)
    logits = decode_router.reference(operands)
    x, _ = rms_norm.reference(RmsNormOperands(residual=operands.r, weight=operands.norm, eps=operands.eps))
    ids, weights = route.reference(RouteOperands(x=x, weight=operands.weight, bias=operands.bias, active=4))
    chosen = logits.topk(4)
    assert torch.equal(chosen.indices, ids) and torch.equal(chosen.values.softmax(-1), weights)
    assert logits.dtype == torch.float32 and logits.shape == (5, 8)


def test_kernel_refuses_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_router)
    assert refusal(decode_router) is None
    assert "experts by 4" in refusal(decode_router, weight=operands.weight[:6])
    assert "bf16" in refusal(decode_router, norm=operands.norm.float())
    wide = torch.zeros(5, 32_768, dtype=torch.bfloat16)
    assert "32768 values are too many" in refusal(decode_router, r=wide, weight=wide.repeat(4, 1))
