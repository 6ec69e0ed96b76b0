"""Orders of FlashInfer's weights: each is the one that its source states, and inverting it gives every bit back."""

import pytest
import torch

from firesteel.kernels.libraries.flashinfer_order import (
    BLACKWELL_ROWS,
    HOPPER_ROWS,
    MOVES,
    order_codes,
    order_scales,
    restore_codes,
    restore_scales,
)


def draw(*shape):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_bits_of_a_word_are_permuted(kind):
    sources = [first + bit for first, width, _ in MOVES[kind] for bit in range(width)]
    targets = [target + bit for _, width, target in MOVES[kind] for bit in range(width)]
    assert sorted(sources) == sorted(targets) == list(range(32))


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_restoring_codes_gives_every_bit_back(kind):
    codes = draw(2, 32, 96)
    ordered = order_codes(codes, kind)
    assert ordered.shape == codes.shape and not torch.equal(ordered, codes)
    assert torch.equal(restore_codes(ordered, kind), codes)


def test_bf16_word_holds_bytes_of_two_rows_and_stands_where_its_thread_reads():
    """Byte 13 of row 3 is in the second half of 16 columns: row 3 + 8, and bytes 4 to 7 with those of row 11."""
    codes = torch.zeros(1, 16, 32, dtype=torch.uint8)
    codes[0, 3, 13] = 0b1000_0000  # the sign of the high code: bit 23 of the word goes to 25
    assert order_codes(codes, "bf16").nonzero().tolist() == [[0, 11, 7]]
    assert order_codes(codes, "bf16")[0, 11, 7] == 0b10
    codes[0, 3, 13], codes[0, 11, 9] = 0, 0b0000_0111  # magnitude of the low code of byte 1: bits 8 to 10 to 3 to 5
    assert order_codes(codes, "bf16")[0, 11, 4] == 0b0011_1000


def test_fp8_word_holds_pairs_of_bytes_of_two_rows_and_moves_only_signs():
    codes = torch.zeros(1, 16, 32, dtype=torch.uint8)
    codes[0, 11, 10] = 0b0111_0111  # magnitudes of the second row's pair stay where they are in the word
    ordered = order_codes(codes, "fp8")
    assert ordered.nonzero().tolist() == [[0, 11, 6]] and ordered[0, 11, 6] == 0b0111_0111
    codes[0, 11, 10] = 0b0000_1000  # bit 19 of the word goes to 3
    ordered = order_codes(codes, "fp8")
    assert ordered.nonzero().tolist() == [[0, 11, 4]] and ordered[0, 11, 4] == 0b1000


@pytest.mark.parametrize("rows", [HOPPER_ROWS, BLACKWELL_ROWS])
def test_restoring_scales_gives_every_bit_back(rows):
    scales = draw(2, 256, 12)
    ordered = order_scales(scales, rows)
    assert ordered.shape == (2, 256 // (rows[0] * rows[1]), 3, rows[1], 16)
    assert torch.equal(restore_scales(ordered, rows), scales)


def test_blackwell_scale_stands_where_the_128x4_layout_has_it():
    scales = draw(1, 256, 8)
    flat = order_scales(scales, BLACKWELL_ROWS).flatten()
    for row, group in ((0, 0), (1, 5), (33, 2), (127, 7), (200, 4)):
        tile = (row // 128 * 2 + group // 4) * 512
        assert flat[tile + row % 32 * 16 + row % 128 // 32 * 4 + group % 4] == scales[0, row, group]
