"""decode_fc2: weights of the sum, rounding and shared memory; test_fc1.py tests it after decode_fc1."""

from dataclasses import replace

import torch

from firesteel.kernels.decode.fc2 import decode_fc2, plan, refuse_strips
from firesteel.kernels.operands.activation import round_activation
from firesteel.kernels.stream.plan import machine_of


def test_token_with_all_weight_on_one_expert_uses_it_alone(small_operands):
    operands = small_operands(decode_fc2)
    sure = torch.full((5, 8), -100.0)
    sure[:, 3] = 100
    inner, old = operands.inner.clone(), operands.r.clone()
    inner[:, 1:] = 50
    first = decode_fc2.reference(replace(operands, inner=inner, logits=sure))
    inner[:, 1:] = -50
    assert first is operands.r and not torch.equal(first, old)
    assert torch.equal(first, decode_fc2.reference(replace(operands, inner=inner, logits=sure, r=old)))


def test_inner_is_rounded_if_requested(small_operands):
    operands = small_operands(decode_fc2, "kindling T=5 mxfp4-weight mxfp8")
    plain = replace(operands, activation="bf16", r=operands.r.clone())
    inner = round_activation(operands.inner.float(), "mxfp8").bfloat16()
    expected = decode_fc2.reference(replace(plain, inner=inner, r=operands.r.clone()))
    assert torch.equal(decode_fc2.reference(operands), expected)
    assert not torch.equal(decode_fc2.reference(plain), expected)


def test_all_rows_are_held_at_once_if_two_stages_still_fit():
    def holds_all(capability, tokens):
        sizes = {"hidden": 2880, "intermediate": 2880, "experts": 128, "active": 4}
        planned = plan(machine_of(capability), tokens=tokens, **sizes)
        assert planned.refuse(machine_of(capability)) is None
        return planned.kernel.source.defines["HOLDS_ALL"], planned.stream.stages

    assert [holds_all((9, 0), tokens) for tokens in (1, 2, 4, 8)] == [(1, 6), (1, 6), (1, 4), (0, 5)]
    assert [holds_all((12, 1), tokens) for tokens in (1, 2, 4, 8)] == [(1, 3), (0, 3), (0, 2), (0, 2)]


def test_gpu_with_few_sms_refuses_rows_that_its_ctas_cannot_sum():
    small = replace(machine_of((12, 1)), num_sms=8)
    assert refuse_strips(small, 12 * 16 * 8) is None
    assert refuse_strips(small, 2880) == "gives 8 SMs up to 1536 rows of fc2, not 2880"
