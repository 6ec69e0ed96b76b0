"""decode_sample: the next step's inputs, computed by hand."""

from dataclasses import replace

import torch

from firesteel.kernels.decode.lm_head import find_best
from firesteel.kernels.decode.sample import decode_sample


def test_most_likely_token_is_the_next_input_at_the_next_position(small_operands):
    operands = small_operands(decode_sample)
    logits = torch.zeros(5, 4096)
    logits[torch.arange(5), torch.tensor([7, 4095, 0, 2000, 16])] = 1
    positions = operands.positions.clone()
    results = decode_sample.reference(replace(operands, best=find_best(logits, 3)))
    token_ids, *_, r, largest = results
    assert token_ids.tolist() == [7, 4095, 0, 2000, 16] and torch.equal(r, operands.embedding[token_ids])
    assert largest.tolist() == [1] * 5
    assert torch.equal(operands.positions, positions + 1) and torch.equal(operands.kv_lens, positions + 2)
    names = ("token_ids", "positions", "kv_lens", "num_stored", "full_slots", "window_slots", "r", "largest")
    assert all(result is getattr(operands, name) for result, name in zip(results, names, strict=True))


def test_stored_tokens_grow_by_one_wherever_the_row_is(small_operands):
    """Rows of one request keep the first position that any of them writes next."""
    operands = small_operands(decode_sample, "kindling T=5 of one request")
    assert operands.positions.tolist() == [14, 15, 16, 17, 18] and operands.num_stored.tolist() == [14] * 5
    decode_sample.reference(operands)
    assert operands.positions.tolist() == [15, 16, 17, 18, 19] and operands.num_stored.tolist() == [15] * 5


def test_slots_follow_the_page_tables_and_stay_in_bounds(small_operands):
    operands = small_operands(decode_sample)
    decode_sample.reference(operands)
    position = operands.positions.tolist()
    assert position[0] == 48 and position[1] == 144  # a new page; past the nine of the table
    full = (operands.full_slots, operands.full_table)
    for slots, table in (full, (operands.window_slots, operands.window_table)):
        pages = [table[row, min(at // 16, 8)].item() for row, at in enumerate(position)]
        assert slots.tolist() == [16 * page + at % 16 for page, at in zip(pages, position, strict=True)]


def test_kernel_refuses_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_sample)
    assert refusal(decode_sample) is None
    assert "bf16" in refusal(decode_sample, embedding=operands.embedding.float())
    assert "contiguous" in refusal(decode_sample, full_table=operands.full_table.T.contiguous().T)


def test_logit_of_any_sign_is_returned(small_operands):
    operands = small_operands(decode_sample)
    logits = torch.full((5, 4096), -7.25)
    logits[0, 5], logits[1, 6], logits[2, 8], logits[3, 1] = -1.5, 0.0, float("inf"), float("nan")
    *_, largest = decode_sample.reference(replace(operands, best=find_best(logits, 3)))
    assert largest[:3].tolist() == [-1.5, 0.0, float("inf")] and largest[3].isnan() and largest[4] == -7.25
