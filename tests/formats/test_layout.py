"""Layouts against what their docstrings promise, element by element, and back again bit for bit."""

import subprocess
import sys

import pytest
import torch

from firesteel.formats import mxfp4
from firesteel.formats.layout import CheckpointLayout, Shape, TileLayout, repack

LAYOUTS = {"checkpoint": CheckpointLayout(), "tile": TileLayout()}
SHAPES = [(16, 64), (16, 192), (48, 64), (64, 320), (5760 // 8, 2880)]


def matrix(*shape, seed=1):
    """Random codes [.., N, K/2] and scales [.., N, K/32]; the scales take all 256 values."""
    generator = torch.Generator().manual_seed(seed)
    *batch, rows, columns = shape
    codes = torch.randint(256, (*batch, rows, columns // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(256, (*batch, rows, columns // 32), dtype=torch.uint8, generator=generator)
    return codes, scales


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", SHAPES, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_unpack_undoes_pack_bit_for_bit(layout, size, batch):
    codes, scales = matrix(*batch, *size)
    packed = layout.pack(codes, scales)
    assert packed.dtype == torch.uint8 and packed.shape == (*batch, Shape(*size).num_bytes)
    back_codes, back_scales = layout.unpack(packed, Shape(*size))
    assert torch.equal(back_codes, codes) and torch.equal(back_scales, scales)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_pack_undoes_unpack_so_that_every_bit_carries_meaning(layout):
    shape = Shape(32, 128)
    packed = torch.randint(256, (shape.num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(layout.pack(*layout.unpack(packed, shape)), packed)


def test_checkpoint_layout_is_codes_then_scales_and_unpacks_to_views():
    codes, scales = matrix(2, 16, 64)
    packed = CheckpointLayout().pack(codes, scales)
    assert packed[1].tolist() == codes[1].flatten().tolist() + scales[1].flatten().tolist()
    CheckpointLayout().unpack(packed, Shape(16, 64))[1].fill_(9)
    assert (packed[:, 512:] == 9).all() and torch.equal(packed[:, :512], codes.flatten(1))


def tile_value(tile, row, column):
    """(fp16 value times 2^14, scale) of one element of a tile of 544 bytes, as the docstring reads."""
    half_of_rows, g = divmod(row, 8)
    step, rest = divmod(column, 16)
    second, rest = divmod(rest, 8)
    t, odd = divmod(rest, 2)
    at = 16 * (4 * g + t) + 4 * step + 2 * odd
    half = tile[at] | tile[at + 1] << 8
    i = 2 * second + half_of_rows
    bits = (half << i & 0x8000) | (half << 3 * i & 0x0E00)
    fp16 = torch.tensor([bits], dtype=torch.int32).to(torch.uint16).view(torch.float16)
    return fp16.double().item() * 2.0**14, tile[512 + 4 * g + 2 * (column // 32) + half_of_rows]


def test_every_element_of_a_tile_is_where_the_layout_says():
    codes, scales = matrix(32, 128, seed=3)
    tiles = TileLayout().pack(codes, scales).view(2, 2, TileLayout.BYTES).tolist()
    values = mxfp4.dequantize(codes, torch.full_like(scales, 127)).tolist()
    for row in range(32):
        for column in range(128):
            value, scale = tile_value(tiles[row // 16][column // 64], row % 16, column % 64)
            assert value == values[row][column], (row, column)
            assert scale == scales[row, column // 32], (row, column)


def test_all_codes_survive_in_all_places():
    for code in range(16):
        codes = torch.full((16, 32), code | code << 4, dtype=torch.uint8)
        scales = torch.zeros(16, 2, dtype=torch.uint8)
        assert torch.equal(TileLayout().unpack(TileLayout().pack(codes, scales), Shape(16, 64))[0], codes)


def test_repack_works_in_place_one_matrix_at_a_time(monkeypatch):
    codes, scales = matrix(5, 32, 64)
    checkpoint, tile, shape = CheckpointLayout(), TileLayout(), Shape(32, 64)
    packed = checkpoint.pack(codes, scales)
    storage, seen = packed.data_ptr(), []
    pack = TileLayout.pack
    monkeypatch.setattr(
        TileLayout, "pack", lambda self, *parts: (seen.append(parts[0].numel()), pack(self, *parts))[1]
    )
    repack(packed, shape, checkpoint, tile)
    assert packed.data_ptr() == storage and seen == [shape.code_bytes] * 5
    assert torch.equal(packed, pack(tile, codes, scales))
    repack(packed, shape, tile, checkpoint)
    assert torch.equal(packed, checkpoint.pack(codes, scales))


PEAK_PROGRAM = """
import re
from pathlib import Path
import torch
from firesteel.formats.layout import CheckpointLayout, Shape, TileLayout, repack

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def random(shape):
    return torch.randint(256, (2, shape.num_bytes), dtype=torch.uint8)

repack(random(Shape(16, 64)), Shape(16, 64), CheckpointLayout(), TileLayout())
shape = Shape(5760, 2880)
packed = random(shape)
before = peak()
repack(packed, shape, CheckpointLayout(), TileLayout())
print(peak() - before)
"""


def test_repacking_a_layers_experts_takes_less_room_than_the_layer():
    """It takes that of one gate_up, however many there are; a layer of the 20b has 32 and as many downs."""
    result = subprocess.run([sys.executable, "-c", PEAK_PROGRAM], check=True, capture_output=True, text=True)
    layer = 32 * (Shape(5760, 2880).num_bytes + Shape(2880, 2880).num_bytes)
    room = int(result.stdout)
    assert 20_000_000 < room < 24 * 5760 * 2880 < layer


def test_matrices_that_do_not_fit_are_refused():
    codes, scales = matrix(8, 64)
    with pytest.raises(ValueError, match="8 x 64 has no whole tiles of 16 x 64"):
        TileLayout().pack(codes, scales)
    with pytest.raises(ValueError, match="16 x 96 has no whole tiles"):
        TileLayout().unpack(torch.zeros(816, dtype=torch.uint8), Shape(16, 96))
    with pytest.raises(ValueError, match="disagree"):
        TileLayout().pack(codes, scales[:, :1])
    with pytest.raises(ValueError, match="544 bytes of uint8, not 543"):
        TileLayout().unpack(torch.zeros(543, dtype=torch.uint8), Shape(16, 64))
    with pytest.raises(ValueError, match="no whole groups of 32"):
        Shape(16, 40)
    with pytest.raises(ValueError, match="contiguous"):
        repack(torch.zeros(544, 2, dtype=torch.uint8).T, Shape(16, 64), CheckpointLayout(), TileLayout())
