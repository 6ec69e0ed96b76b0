"""Parsing of a pinned tile, and its refusals."""

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.tiles.tile_pin import parse_tile, refuse_tile


def test_tile_is_parsed_and_auto_pins_nothing():
    assert parse_tile("64x128") == (64, 128)
    assert parse_tile("auto") is None


@pytest.mark.parametrize("text", ["64", "64x", "x64", "64 x 64", "64x64x64", ""])
def test_text_that_is_not_a_tile_is_refused(text):
    with pytest.raises(KernelError, match="neither auto nor ROWSxCOLUMNS, as 64x128"):
        parse_tile(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("auto", None), ("128x256", None), ("16x512", "at most"), ("256x256", "at most"), ("64x32", "at least 64")],
)
def test_tiles_too_large_or_too_narrow_are_refused(text, reason):
    why = refuse_tile(text, least_columns=64)
    assert why is None if reason is None else reason in why
