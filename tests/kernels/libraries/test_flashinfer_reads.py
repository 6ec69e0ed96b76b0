"""What FlashInfer's matmuls on Hopper read of the weights, by its sources: why only tiles that fit may run.

A tile's codes come by TMA, whose bound on columns is counted in codes although its unit is a byte: it never cuts a
row off. Scales come in copies of 256 bytes (64 rows and 4 groups), which nothing cuts off.
"""

import pytest
import torch

from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.operands.weights import random_experts

SIZES = ((5888, 2944), (2944, 2944))  # rows and columns of gpt-oss's matmuls, padded
EXPERTS = 128
GPU_PAGE = 2 << 20  # bytes, of which memory is mapped
TILES = [(rows, columns) for rows in (64, 128, 256) for columns in (128, 256, 512)]
COPY_ROWS, COPY_COLUMNS, COPY_BYTES = 64, 128, 256


def round_up(size, step):
    return -(-size // step) * step


def fits(rows, columns, tile):
    """The library's own rule, which it applies where it chooses a tile, but not to one that it is told to use."""
    return rows % tile[0] == 0 and columns % tile[1] == 0


def count_codes_behind(columns, tile):
    """Bytes of codes that are read behind the last row of a matrix."""
    return (round_up(columns, tile[1]) - columns) // 2


def count_scales_behind(rows, columns, tile, cluster):
    """Bytes of scales that are read behind those of a matrix, with `cluster` CTAs side by side along its rows."""
    copies = columns // COPY_COLUMNS
    last_strip = round_up(rows, tile[0] * cluster) // COPY_ROWS - 1
    last = last_strip * copies + round_up(columns, tile[1]) // COPY_COLUMNS
    return max(0, last - rows // COPY_ROWS * copies) * COPY_BYTES


@pytest.mark.parametrize("columns", [256, 512])
def test_wider_tiles_read_behind_the_last_expert_of_gpt_oss_120b(columns):
    """Its gate_up fills 529 pages of a GPU exactly: the bytes behind it need not be mapped."""
    rows, all_columns = SIZES[0]
    assert EXPERTS * rows * all_columns // 2 == 529 * GPU_PAGE
    assert count_codes_behind(all_columns, (128, columns)) == 64
    assert not fits(rows, all_columns, (128, columns))


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("inter", [2880, 192])
def test_tiles_that_fit_read_nothing_that_is_not_held(kind, inter):
    packed = FlashinferExperts.pack(random_experts(1, 192, inter, torch.Generator().manual_seed(1)), kind)
    pairs = ((packed.gate_up_values, packed.gate_up_scales), (packed.down_values, packed.down_scales))
    for values, scales in pairs:
        rows, columns = values.shape[1], 2 * values.shape[2]
        fitting = [tile for tile in TILES if fits(rows, columns, tile)]
        assert fitting
        spare = scales.untyped_storage().nbytes() - scales.nbytes
        for tile in fitting:
            assert count_codes_behind(columns, tile) == 0
            assert max(count_scales_behind(rows, columns, tile, cluster) for cluster in (1, 2)) <= spare


def test_a_cluster_of_two_reads_scales_of_a_strip_that_is_not_there():
    """23 tiles of down's 2944 rows, two at a time: why some bytes are held behind the scales."""
    assert count_scales_behind(*SIZES[1], (128, 128), 2) == 128 * 2944 // 32
    assert count_scales_behind(*SIZES[1], (128, 128), 1) == count_scales_behind(*SIZES[0], (128, 128), 2) == 0
