"""decode_experts: fc1 followed by fc2, shapes as measured, and refusals of the kernel."""

import sys
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.experts import decode_experts, fits
from firesteel.kernels.decode.experts_plan import plan_passed
from firesteel.kernels.decode.fc1 import DecodeFc1Operands, decode_fc1
from firesteel.kernels.decode.fc2 import DecodeFc2Operands, decode_fc2
from firesteel.kernels.stream.plan import Machine, machine_of

H200, GB10 = machine_of((9, 0)), machine_of((12, 1))
SIZES = {"hidden": 2880, "experts": 128, "active": 4}


def test_reference_is_fc1_followed_by_fc2(small_operands):
    operands = small_operands(decode_experts)
    old = operands.r.clone()
    shared = {"logits": operands.logits, "experts": operands.experts}
    numbers = {name: getattr(operands, name) for name in ("norm", "eps", "limit", "active")}
    inner = decode_fc1.reference(DecodeFc1Operands(r=operands.r, **shared, **numbers))
    expected = decode_fc2.reference(DecodeFc2Operands(inner=inner, r=operands.r.clone(), **shared))
    actual = decode_experts.reference(operands)
    assert actual is operands.r and torch.equal(actual, expected) and not torch.equal(actual, old)


def test_all_ctas_are_resident_and_share_the_remainder():
    """66 pairs share 180 strips: most get three, so each CTA has one and half of the third."""
    large = plan_passed(H200, **SIZES)
    assert large.num_ctas == 132 == H200.num_sms and large.is_paired
    small = plan_passed(GB10, **SIZES)
    assert small.num_ctas == 48 == GB10.num_sms and not small.is_paired and small.refuse(GB10) is None


def test_strip_is_shared_only_if_both_ctas_have_experts_for_it():
    """With one token and one expert, one CTA would have nothing to do and the strip would stay unfinished."""
    alone = plan_passed(H200, **{**SIZES, "active": 1})
    assert not alone.is_paired and not alone.kernel.source.defines["IS_PAIRED"]
    assert plan_passed(H200, **{**SIZES, "active": 2}).is_paired


def test_rows_of_different_length_are_refused(small_operands, refusal):
    operands = small_operands(decode_experts)
    assert fits(operands.experts) and refusal(decode_experts) is None
    other = small_operands(decode_fc1).experts
    assert not fits(other) and "use decode_fc1 and decode_fc2" in refusal(decode_experts, experts=other)
    assert "up to 4 experts a token, not 5" in refusal(decode_experts, active=5)


@pytest.mark.parametrize(
    ("way", "tokens", "kernel"),
    [
        ("cuda:even", 2, "decode_experts_even.cu"),
        ("cuda:passed", 1, "decode_experts_passed.cu"),
    ],
)
def test_each_implementation_checks_that_its_own_kernel_fits(way, tokens, kernel, small_operands, monkeypatch):
    """With 1 KiB of shared memory none fits."""
    asked = []

    def refuse_here(x, plan):
        planned = plan(Machine(4, 1024))
        asked.append(planned.kernel.source.name)
        return planned.refuse(Machine(4, 1024))

    monkeypatch.setattr(sys.modules["firesteel.kernels.decode.experts"], "refuse_here", refuse_here)
    operands = small_operands(decode_experts)
    rows = {name: getattr(operands, name)[:1].expand(tokens, -1).contiguous() for name in ("r", "logits")}
    refused = decode_experts.implementations[way].accepts(replace(operands, **rows))
    assert asked == [kernel] and f"shared memory for {tokens} tokens, this GPU has 1024" in refused


def test_prefetched_weights_and_logits_are_checked(small_operands, refusal):
    weight = torch.zeros(4097, dtype=torch.bfloat16)
    assert refusal(decode_experts, ahead=weight[:4096]) is None
    assert "multiple of 16 bytes" in refusal(decode_experts, ahead=weight[1:])
    assert "fp32, not torch.bfloat16" in refusal(
        decode_experts, logits=small_operands(decode_experts).logits.bfloat16()
    )
