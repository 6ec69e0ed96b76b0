"""decode_attention's kernel on an emulated GPU: lengths around tiles, pages and windows, clusters, late tokens."""

import importlib
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.attention import decode_attention
from firesteel.kernels.decode.attention_operands import DecodeAttentionOperands, Held, draw_pages
from firesteel.kernels.decode.attention_plan import Sharing, share_tokens
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

EARLY_LAUNCHES = 2  # in one of them the prior grid ends as late as possible
LARGE, SMALL = Machine(64, 232_448), Machine(48, 101_376)


def make_operands(lens, *, window=None, page_size=16, heads=8, kv_heads=1, has_sinks=True, is_fp8=False):
    """Builds operands with NaN in unwritten slots and invalid page numbers before the window.

    A request is given as the tokens that it holds, or with its number of rows as (tokens, rows).
    """
    draw = Draw(torch.device("cpu"))
    requests = tuple(Held(*given) if isinstance(given, tuple) else Held(given) for given in lens)
    pages = draw_pages(requests, page_size, window, kv_heads, draw)
    q, sinks = draw.normal(len(pages["kv_lens"]), heads, 64), draw.normal(heads, scale=3)
    operands = DecodeAttentionOperands(
        q=q,
        **pages,
        sinks=sinks if has_sinks else None,
        window=window,
        scale=0.125,
    )
    if not is_fp8:
        return operands
    keys, values = (pages.float().mul(16).to(torch.float8_e4m3fn) for pages in (operands.k_pages, operands.v_pages))
    return replace(operands, k_pages=keys, v_pages=values, key_scale=0.0625, value_scale=3.0)


@pytest.mark.parametrize("has_sinks", [True, False], ids=["sinks", "no sinks"])
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("lens", [(1, 15, 16), (17, 64, 65), (1100, 3, 129)], ids=str)
def test_eight_ctas_share_the_tokens_of_a_kv_head(lens, page_size, has_sinks, hold_emulated):
    """1100 tokens give more tiles than there are warps (64)."""
    assert share_tokens(LARGE, len(lens), max(lens), None) == Sharing(8)
    hold_emulated(decode_attention, LARGE, make_operands(lens, page_size=page_size, has_sinks=has_sinks))


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 128])
def test_windows_begin_anywhere_in_a_tile_and_a_page(window, page_size, hold_emulated):
    lens = (1, 16, 17, 31, 128, 129, 143, 145)
    hold_emulated(decode_attention, LARGE, make_operands(lens, window=window, page_size=page_size))


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("lens", [(1, 15, 16), (17, 64, 65), (1300, 3, 129)], ids=str)
def test_keys_and_values_in_fp8(lens, window, page_size, hold_emulated):
    """1300 tokens give more tiles than there are warps (64); scales do not apply to sinks."""
    hold_emulated(decode_attention, LARGE, make_operands(lens, window=window, page_size=page_size, is_fp8=True))


def test_every_fp8_code_is_decoded_to_its_value(use_machine):
    """The attention of a single token is its value, whatever its score."""
    use_machine(LARGE)
    operands = make_operands((1, 1, 1, 1), has_sinks=False, is_fp8=True)
    codes = torch.arange(256, dtype=torch.uint8).view(4, 64)
    codes[codes & 127 == 127] = 0  # NaN
    operands.v_pages.view(torch.uint8)[operands.page_table[:, 0], 0, 0] = codes
    actual = decode_attention.implementations["cuda"].function(operands).view(4, 8, 64)
    expected = (codes.view(torch.float8_e4m3fn).float() * 3).bfloat16()
    assert torch.equal(actual, expected[:, None].expand(-1, 8, -1))


def test_warp_with_more_tiles_than_lanes(hold_emulated):
    """Eight warps of a CTA share 294 tiles."""
    hold_emulated(decode_attention, LARGE, make_operands((4700, 4097), window=5000))


@pytest.mark.slow
def test_warp_with_more_fp8_tiles_than_lanes(hold_emulated):
    hold_emulated(decode_attention, LARGE, make_operands((4700, 4097), window=5000, is_fp8=True))


# one row per request, and several: all in one tile, in two tiles, in two pages, all that the request holds
SEVERAL = [(17, 300, 1), ((15, 3), (18, 3), 40), ((34, 4), (3, 3)), ((300, 8),), ((129, 2), (1040, 2), (17, 2))]


@pytest.fixture
def attend_early(use_machine, emulator):
    """attend_early(operands) starts the kernel while q and the tokens of this step hold NaN.

    Given `num_stored`, the kernel is told that instead.
    """

    def attend(operands, num_stored=None):
        use_machine(LARGE)
        late, page_size = {}, operands.k_pages.shape[2]
        for row, (stored, held) in enumerate(
            zip(operands.num_stored.tolist(), operands.kv_lens.tolist(), strict=True)
        ):
            for token in range(stored, held):
                page, offset = operands.page_table[row, token // page_size], token % page_size
                late[int(page), offset] = [pages[page, 0, offset] for pages in (operands.k_pages, operands.v_pages)]
        with emulator.coming_late(operands.q, *(tensor for pair in late.values() for tensor in pair)):
            stored = operands.num_stored if num_stored is None else num_stored
            told = replace(operands, dependent=True, num_stored=stored)
            return decode_attention.implementations["cuda"].function(told)

    return attend


PAGES = [(None, 16, False), (None, 32, True), (1, 16, True), (100, 32, False)]


@pytest.mark.parametrize(("window", "page_size", "is_fp8"), PAGES, ids=str)
@pytest.mark.parametrize("lens", SEVERAL, ids=str)
def test_tokens_of_this_step_are_read_when_they_are_ready(lens, window, page_size, is_fp8, attend_early):
    operands = make_operands(lens, page_size=page_size, window=window, is_fp8=is_fp8)
    expected = decode_attention.reference(operands.clone())
    for _ in range(EARLY_LAUNCHES):
        actual = attend_early(operands)
        assert_close(actual=actual, expected=expected, tolerance=decode_attention.tolerance)


@pytest.mark.parametrize("lens", [((34, 4),), ((18, 3), 5), ((129, 2),)], ids=str)
def test_early_reads_of_all_tiles_but_the_newest_of_each_row_are_found(lens, attend_early):
    """The last row's newest tile is not that of the first: the tile before it was read while it held NaN."""
    operands = make_operands(lens)
    actual = [attend_early(operands, num_stored=operands.kv_lens - 1) for _ in range(EARLY_LAUNCHES)]
    assert any(mixed[lens[0][1] - 1].isnan().any() for mixed in actual)


@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_among_visible_tokens_reaches_the_result(where, is_fp8, hold_emulated):
    operands = make_operands((40, 33, 5), window=128, is_fp8=is_fp8)
    page = operands.page_table[1, 1]
    spoilt = {"q": operands.q[1, 3], "k": operands.k_pages[page, 0, 9], "v": operands.v_pages[page, 0, 9]}[where]
    spoilt[7] = float("nan")
    hold_emulated(decode_attention, LARGE, operands)
    is_nan = decode_attention.reference(operands).unflatten(1, (8, 64)).isnan()
    assert is_nan[1].any() and not is_nan[0].any() and not is_nan[2].any()


@pytest.fixture
def hold_sharing(use_machine, monkeypatch):
    def hold(sharing, operands):
        use_machine(SMALL)
        module = importlib.import_module("firesteel.kernels.decode.attention")
        monkeypatch.setattr(module, "share_tokens", lambda machine, num_heads, most_held, window: sharing)
        assert (
            check(decode_attention, decode_attention.implementations["cuda"], Sample("shared", (operands,))) is None
        )

    return hold


@pytest.mark.usefixtures("spoilt_memory")
@pytest.mark.parametrize(("programs", "is_fp8"), [(2, False), (5, False), (3, True)], ids=str)
def test_last_cta_joins_the_results_of_all(programs, is_fp8, hold_sharing):
    """Launches of the same module follow each other and continue its counters."""
    for lens in ((1100, 3, 129), (16,), (1, 300), (700, 17, 64, 2, 31)):
        hold_sharing(Sharing(programs, in_memory=True), make_operands(lens, heads=16, kv_heads=2, is_fp8=is_fp8))


WAYS = [Sharing(size) for size in (1, 2, 4, 8, 16)] + [Sharing(size, in_memory=True) for size in (2, 3, 6, 16, 21)]


@pytest.mark.slow
@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("heads", [(8, 1), (10, 2), (6, 6), (16, 2)], ids=str)
@pytest.mark.parametrize("sharing", WAYS, ids=str)
def test_any_split_and_number_of_heads(sharing, heads, is_fp8, hold_sharing):
    for window in (None, 33, 300):
        operands = make_operands((1, 290, 17), window=window, heads=heads[0], kv_heads=heads[1], is_fp8=is_fp8)
        hold_sharing(sharing, operands)


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [False, True])
def test_every_length_up_to_a_few_tiles(in_memory, hold_sharing):
    for first in range(1, 97, 8):
        hold_sharing(Sharing(2, in_memory=in_memory), make_operands(range(first, first + 8), page_size=32))


@pytest.mark.slow
def test_every_window_up_to_a_few_tiles(hold_sharing):
    for window in range(1, 50):
        hold_sharing(Sharing(), make_operands((1, 16, 33, 47, 48, 49, 50, 95), window=window))
