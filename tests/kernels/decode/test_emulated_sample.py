"""decode_sample's kernel on an emulated GPU: borders of pages and tables, ties, late inputs."""

import pytest
import torch

from firesteel.kernels.decode.lm_head import find_best
from firesteel.kernels.decode.sample import decode_sample
from firesteel.kernels.stream.launch import Machine
from firesteel.kernels.stream.shapes import Draw

ANY = Machine(4, 232_448)
HIDDEN, VOCABULARY, WIDTH = 64, 96, 5
WRITTEN = ("token_ids", "positions", "kv_lens", "full_slots", "window_slots", "r", "largest")


def make_args(tokens, page_size, programs=3):
    """Positions before, at and behind the border of a page; the fourth passes the end of its table."""
    draw = Draw(torch.device("cpu"))
    positions = torch.tensor([page_size - 2, page_size - 1, page_size, WIDTH * page_size - 1, 0, 1, 2, 3])
    tables = [draw.permutation(50)[: tokens * width].view(tokens, width).clone() for width in (WIDTH, WIDTH + 1)]
    numbers = [torch.zeros(tokens, dtype=torch.int64) for _ in range(4)]
    best = find_best(draw.normal(tokens, VOCABULARY).float(), programs)
    return (
        best, draw.normal(VOCABULARY, HIDDEN), numbers[0], positions[:tokens].clone(), *numbers[1:], *tables,
        page_size, draw.normal(tokens, HIDDEN), torch.zeros(tokens),
    )  # fmt: skip


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_the_next_inputs(tokens, page_size, hold_emulated):
    hold_emulated(decode_sample, ANY, *make_args(tokens, page_size))


def test_of_equal_logits_the_lowest_id_is_taken(use_machine):
    use_machine(ANY)
    args = list(make_args(2, 16))
    args[0] = find_best(torch.full((2, VOCABULARY), -1.5), 3)
    token_ids, *_, largest = decode_sample.implementations["cuda"].function(*args)
    assert token_ids.tolist() == [0, 0] and largest.tolist() == [-1.5, -1.5]


def test_more_programs_than_threads(hold_emulated):
    args = list(make_args(2, 16))
    args[0] = torch.arange(700)[:, None] * torch.tensor([1, -1]) << 32 | torch.arange(700)[:, None] % VOCABULARY
    args[0] = (args[0] & ~0xFFFFFFFF) | (~(args[0] & 0xFFFFFFFF) & 0xFFFFFFFF)
    hold_emulated(decode_sample, ANY, *args)


def test_what_is_no_number_is_the_largest(use_machine):
    use_machine(ANY)
    args = list(make_args(1, 16))
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 7] = float("nan")
    args[0] = find_best(logits, 3)
    token_ids, *_, largest = decode_sample.implementations["cuda"].function(*args)
    assert token_ids.tolist() == [7] and largest.isnan().all()


def test_nothing_is_read_or_written_before_the_inputs_are_there(hold_early):
    hold_early(decode_sample, ANY, ("best", "full_table", "window_table", *WRITTEN), *make_args(5, 16))
