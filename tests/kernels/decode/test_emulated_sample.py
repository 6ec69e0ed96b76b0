"""decode_sample's kernel on an emulated GPU: borders of pages and tables, ties, late inputs."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.lm_head import find_best
from firesteel.kernels.decode.sample import DecodeSampleOperands, decode_sample
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

ANY = Machine(4, 232_448)
HIDDEN, VOCABULARY, WIDTH = 64, 96, 5
WRITTEN = ("token_ids", "positions", "kv_lens", "num_stored", "full_slots", "window_slots", "r", "largest")


def make_operands(tokens, page_size, programs=3):
    """Builds operands with positions before, at and after a page boundary; the fourth passes its table's end."""
    draw = Draw(torch.device("cpu"))
    positions = torch.tensor([page_size - 2, page_size - 1, page_size, WIDTH * page_size - 1, 0, 1, 2, 3])
    tables = [draw.permutation(50)[: tokens * width].view(tokens, width).clone() for width in (WIDTH, WIDTH + 1)]
    numbers = [torch.zeros(tokens, dtype=torch.int64) for _ in range(4)]
    best = find_best(draw.normal(tokens, VOCABULARY).float(), programs)
    return DecodeSampleOperands(
        best=best,
        embedding=draw.normal(VOCABULARY, HIDDEN),
        token_ids=numbers[0],
        positions=positions[:tokens].clone(),
        kv_lens=numbers[1],
        num_stored=positions[:tokens] // 2,
        full_slots=numbers[2],
        window_slots=numbers[3],
        full_table=tables[0],
        window_table=tables[1],
        page_size=page_size,
        r=draw.normal(tokens, HIDDEN),
        largest=torch.zeros(tokens),
    )


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_next_inputs_equal_the_reference(tokens, page_size, hold_emulated):
    hold_emulated(decode_sample, ANY, make_operands(tokens, page_size))


def test_lowest_id_is_taken_among_equal_logits(use_machine):
    use_machine(ANY)
    operands = replace(make_operands(2, 16), best=find_best(torch.full((2, VOCABULARY), -1.5), 3))
    token_ids, *_, largest = decode_sample.implementations["cuda"].function(operands)
    assert token_ids.tolist() == [0, 0] and largest.tolist() == [-1.5, -1.5]


def test_more_ctas_than_threads(hold_emulated):
    ranks = torch.arange(700)[:, None] * torch.tensor([1, -1]) << 32 | torch.arange(700)[:, None] % VOCABULARY
    ranks = (ranks & ~0xFFFFFFFF) | (~(ranks & 0xFFFFFFFF) & 0xFFFFFFFF)
    operands = replace(make_operands(2, 16), best=ranks)
    hold_emulated(decode_sample, ANY, operands)


def test_nan_is_the_largest(use_machine):
    use_machine(ANY)
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 7] = float("nan")
    operands = replace(make_operands(1, 16), best=find_best(logits, 3))
    token_ids, *_, largest = decode_sample.implementations["cuda"].function(operands)
    assert token_ids.tolist() == [7] and largest.isnan().all()


def test_nothing_is_read_or_written_before_the_inputs_are_ready(hold_early):
    hold_early(decode_sample, ANY, ("best", "full_table", "window_table", *WRITTEN), make_operands(5, 16))
