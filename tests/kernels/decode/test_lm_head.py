"""decode_lm_head: logits, the largest of each part, and ranks that order like logits."""

import pytest
import torch

from firesteel.kernels.decode.lm_head import LEAST, count_best, decode_lm_head, find_best
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm


def test_reference_is_norm_matmul_and_argmax(small_operands):
    operands = small_operands(decode_lm_head)
    logits, best = decode_lm_head.reference(operands)
    x, _ = rms_norm.reference(RmsNormOperands(residual=operands.r, weight=operands.norm, eps=operands.eps))
    assert torch.equal(logits, linear.reference(LinearOperands(x=x, weight=operands.weight)).float())
    assert torch.equal(~best[0] & 0xFFFFFFFF, logits.argmax(-1)) and best.shape == (1, 5)
    assert count_best(operands.r, operands.weight) == 1  # on a CPU


def test_ranks_order_like_logits_and_ties_by_the_lowest_id():
    logits = torch.tensor([-torch.inf, -1e30, -2.0, -1.0, -1e-30, 0.0, 1e-30, 1.0, 1.5, 1e30, torch.inf])
    ranks = find_best(logits[:, None], 1)[0]
    assert ranks.tolist() == sorted(ranks.tolist()) and len(set(ranks.tolist())) == len(ranks)
    assert ranks[0] > LEAST
    tied = find_best(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 1)
    assert (~tied & 0xFFFFFFFF).item() == 1


def test_every_part_has_the_best_of_its_strips():
    logits = torch.randn(3, 7 * 16, generator=torch.Generator().manual_seed(1))
    best = find_best(logits, 3)
    for part in range(3):
        rows = [row for row in range(7 * 16) if row // 16 % 3 == part]
        expected = torch.tensor(rows)[logits[:, rows].argmax(-1)]
        assert torch.equal(~best[part] & 0xFFFFFFFF, expected)
    assert (find_best(logits, 9)[7:] == LEAST).all()  # more parts than strips


def test_kernel_refuses_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_lm_head)
    assert refusal(decode_lm_head) is None
    assert "by 16 rows, not 4095" in refusal(decode_lm_head, weight=operands.weight[:-1])
    assert "bf16" in refusal(decode_lm_head, norm=operands.norm.half())


@pytest.mark.gpu
def test_logits_of_a_broken_token_are_nan_and_those_of_others_are_not():
    device = torch.device("cuda")
    for sample in decode_lm_head.make_samples(device):
        if sample.label.startswith(("kindling T=5", "gpt-oss T=3")):
            (operands,) = sample.clone()
            operands.r[1, 7] = torch.nan
            logits, best = decode_lm_head.implementations["cuda"].function(operands)
            whole = torch.arange(len(operands.r), device=device) != 1
            assert logits[1].isnan().all() and logits[whole].isfinite().all(), sample.label
            assert (~best.amax(0) & 0xFFFFFFFF)[1] == 0, sample.label
