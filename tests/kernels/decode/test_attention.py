"""decode_attention: the reference compared with attention, and refusals of the kernel."""

import itertools
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.attention import decode_attention
from firesteel.kernels.decode.attention_plan import SHORT, Sharing, share_tokens
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.stream.plan import Machine, machine_of

FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize("seen", ["full", "window", "no sinks"])
def test_it_is_attention_of_the_last_token_of_each_request(seen, small_operands):
    operands = small_operands(decode_attention, f"kindling T=5 {seen}")
    mixed = decode_attention.reference(operands)
    names = ("q", "k_pages", "v_pages", "page_table", "kv_lens", "sinks", "window", "scale")
    shared = {name: getattr(operands, name) for name in names}
    expected = attention.reference(AttentionOperands(query_starts=torch.arange(6), **shared))
    assert torch.equal(mixed, expected.flatten(1)) and mixed.shape == (5, 512)


@pytest.mark.parametrize("seen", ["full", "window"])
def test_rows_of_a_request_are_the_attention_of_its_last_tokens(seen, small_operands):
    """The first three rows are one request's, the other two another's."""
    operands = small_operands(decode_attention, f"kindling T=5 {seen} of several rows")
    assert operands.kv_lens.tolist() == [63, 64, 65, 1, 2] and operands.num_stored.tolist() == [62] * 3 + [0] * 2
    names = ("q", "k_pages", "v_pages", "sinks", "window", "scale")
    expected = attention.reference(
        AttentionOperands(
            query_starts=torch.tensor([0, 3, 5]),
            kv_lens=operands.kv_lens[[2, 4]],
            page_table=operands.page_table[[2, 4]],
            **{name: getattr(operands, name) for name in names},
        )
    )
    torch.testing.assert_close(decode_attention.reference(operands), expected.flatten(1))


def test_stored_tokens_change_no_value(small_operands):
    operands = small_operands(decode_attention, "kindling T=5 full of several rows")
    fewer = replace(operands, num_stored=torch.zeros_like(operands.num_stored))
    assert torch.equal(decode_attention.reference(fewer), decode_attention.reference(operands))


def test_a_single_token_without_sinks_sees_itself(small_operands):
    operands = small_operands(decode_attention, "kindling T=5 no sinks")
    page, offset = operands.page_table[1, 0], 0
    expected = operands.v_pages[page, :, offset].repeat_interleave(4, 0).flatten()
    assert operands.kv_lens[1] == 1 and torch.equal(decode_attention.reference(operands)[1], expected)


def test_kernel_refuses_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_attention)
    assert refusal(decode_attention) is None
    assert "up to 8 heads of 64" in refusal(decode_attention, q=operands.q.repeat(1, 3, 1))
    assert "up to 8 heads of 64" in refusal(decode_attention, q=operands.q[..., :32])
    assert "one query a length, not 3 of 5" in refusal(decode_attention, q=operands.q[:3])
    short = {"num_stored": operands.num_stored[:3]}
    assert "as many numbers of stored tokens as lengths, not 3 of 5" in refusal(decode_attention, **short)
    assert "int64, not torch.int32" in refusal(decode_attention, num_stored=operands.num_stored.int())
    assert "float8_e4m3fn and torch.bfloat16" in refusal(decode_attention, k_pages=operands.k_pages.to(FP8))
    fp8 = {"k_pages": operands.k_pages.to(FP8), "v_pages": operands.v_pages.to(FP8)}
    assert refusal(decode_attention, **fp8, key_scale=0.5, value_scale=0.25) is None
    assert "has scales for fp8 e4m3 pages" in refusal(decode_attention, value_scale=0.25)
    assert "contiguous" in refusal(decode_attention, k_pages=operands.k_pages[::2])
    assert "int64, not torch.int32" in refusal(decode_attention, page_table=operands.page_table.int())


def test_long_tables_use_one_cta_per_sm_and_are_joined_in_memory():
    h200, gb10 = machine_of((9, 0)), machine_of((12, 1))
    assert [share_tokens(h200, 8, held, None) for held in (SHORT, SHORT + 1)] == [
        Sharing(8),
        Sharing(16, in_memory=True),
    ]
    assert share_tokens(gb10, 8, 131_072, None) == Sharing(6, in_memory=True)
    assert share_tokens(h200, 8, 131_072, 128) == share_tokens(gb10, 8, 131_072, 128) == Sharing()


def test_ctas_of_all_requests_are_resident_at_once():
    for capability, requests, held in itertools.product(((9, 0), (12, 1)), range(1, 9), (SHORT, 131_072)):
        machine = machine_of(capability)
        sharing = share_tokens(machine, 8 * requests, held, None)
        assert sharing == Sharing() or sharing.programs * 8 * requests <= machine.num_sms


def test_samples_cover_both_ways_of_joining():
    plans = set()
    for sample in decode_attention.make_samples(torch.device("cpu")):
        (operands,) = sample.args
        held = operands.page_table.shape[1] * operands.k_pages.shape[2]
        heads = operands.q.shape[0] * operands.k_pages.shape[1]
        plans.add(share_tokens(machine_of((9, 0)), heads, held, operands.window))
    assert {plan.in_memory for plan in plans if plan.programs > 1} == {False, True}


def test_one_kv_head_per_sm_needs_no_joining():
    assert share_tokens(Machine(48, 101_376), 64, 131_072, None) == Sharing()
