"""decode_qkv's kernel on an emulated GPU: rotated pairs, slots in pages, late inputs, NaN."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.decode.qkv import decode_qkv, plan
from firesteel.kernels.decode.qkv_operands import DecodeQkvOperands
from firesteel.kernels.rope import RopeSpec, rope_table
from firesteel.kernels.stream.build import with_all_arriving
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

LARGE, SMALL = Machine(6, 232_448), Machine(5, 101_376)
PACKED = {True: "mxfp4", False: "bf16"}
HEADS, KV_HEADS, PAGES = 3, 1, 5  # 20 strips
FP8 = torch.float8_e4m3fn


def make_operands(tokens, hidden, is_fp4, page_size=16):
    """Builds operands: the first token starts a page, the second ends one; positions reach the table's end."""
    draw, rows = Draw(torch.device("cpu")), (HEADS + 2 * KV_HEADS) * 64
    weight = draw.mxfp4_weight(rows, hidden) if is_fp4 else draw.weight(rows, hidden)
    slots = torch.cat([torch.tensor([2 * page_size, 2 * page_size - 1]), 3 * page_size + 1 + torch.arange(6)])
    positions = torch.tensor([4095, 0, 1, 2047, 77, 128, 4000, 3])
    return DecodeQkvOperands(
        k_pages=draw.normal(PAGES, KV_HEADS, page_size, 64),
        v_pages=draw.normal(PAGES, KV_HEADS, page_size, 64),
        r=draw.normal(tokens, hidden),
        norm=draw.normal(hidden),
        eps=1e-5,
        weight=weight,
        bias=draw.normal(rows, scale=0.1),
        table=rope_table(RopeSpec(theta=150000.0, factor=32.0), 64, 4096, draw.device),
        positions=positions[:tokens].clone(),
        slots=slots[:tokens].clone(),
    )


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize(("tokens", "is_fp4"), [(3, True), (5, False), (8, False)], ids=str)
def test_queries_are_rotated_and_keys_and_values_are_in_their_slots(tokens, is_fp4, page_size, hold_emulated):
    """Six CTAs share twenty strips."""
    hold_emulated(decode_qkv, LARGE, make_operands(tokens, 320, is_fp4, page_size))


@pytest.mark.parametrize(
    ("tokens", "is_fp4", "shared_bytes", "held", "chunks"),
    [(5, True, 48_000, 4, 1), (8, True, 48_000, 4, 1), (6, False, 60_000, 8, 6)],
    ids=str,
)
def test_little_shared_memory_still_holds_two_stages(tokens, is_fp4, shared_bytes, held, chunks, hold_emulated):
    """As on a GB10: x of four tokens at a time before packed weights, smaller parts of rows of bf16."""
    machine = Machine(5, shared_bytes)
    stream = plan(machine, is_fp4=is_fp4, tokens=tokens, hidden=1344, heads=HEADS, kv_heads=KV_HEADS).stream
    assert (stream.stages, stream.num_held, stream.chunks) == (2, held, chunks)
    hold_emulated(decode_qkv, machine, make_operands(tokens, 1344, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
@pytest.mark.parametrize("tokens", [5, 8])
def test_plans_of_a_gb10_at_real_widths(tokens, is_fp4, hold_emulated):
    hold_emulated(decode_qkv, SMALL, make_operands(tokens, 2880, is_fp4))


def test_residual_is_not_read_early_if_it_is_held_in_turns(hold_early):
    late = ("r", "positions", "slots")
    hold_early(decode_qkv, Machine(5, 48_000), late, make_operands(5, 1344, True))


def with_fp8_pages(operands, *, activation="bf16", counts=True):
    """Returns operands with FP8 pages; only every seventh value exceeds the range."""
    operands.bias[-64 * KV_HEADS :: 7] = -100.0
    return replace(
        operands,
        k_pages=operands.k_pages.to(FP8),
        v_pages=operands.v_pages.to(FP8),
        activation=activation,
        key_scale=0.023,
        value_scale=0.037,
        clipped=torch.full((1,), 7) if counts else None,
    )


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize(("tokens", "is_fp4"), [(1, False), (3, True), (8, False)], ids=str)
def test_keys_and_values_are_divided_and_stored_in_fp8(tokens, is_fp4, page_size, hold_emulated):
    operands = with_fp8_pages(make_operands(tokens, 320, is_fp4, page_size))
    hold_emulated(decode_qkv, LARGE, operands)
    *_, counter = decode_qkv.reference(operands)
    assert int(counter) == 7 + 10 * tokens


@pytest.mark.parametrize("tokens", [1, 8])
def test_codes_at_scale_one_are_those_of_the_reference(tokens, use_machine):
    """A few codes differ because their sums lie close to a rounding boundary of bf16."""
    use_machine(LARGE)
    operands = make_operands(tokens, 320, False)
    operands = replace(operands, k_pages=operands.k_pages.to(FP8), v_pages=operands.v_pages.to(FP8))
    operands.norm.mul_(0.1)  # subnormal codes too
    run, slots = decode_qkv.implementations["cuda"].function, operands.slots
    actual, expected = (
        torch.cat([pages[slots // 16, 0, slots % 16].view(torch.uint8) for pages in made[1:]]).int()
        for made in (way(operands.clone()) for way in (run, decode_qkv.reference))
    )
    apart = (actual - expected).abs()
    assert apart.max() <= 1 and (apart > 0).sum() <= 2
    assert (actual & 127 < 8).any() and len(actual.unique()) > 40


def test_values_too_large_for_fp8_are_clipped_and_counted_once(use_machine):
    """Biases are so large that rounding changes no count: seven values and three keys per token."""
    use_machine(LARGE)
    operands = replace(with_fp8_pages(make_operands(5, 320, False)), key_scale=0.5, value_scale=0.25)
    bias = operands.bias.zero_()
    operands.positions.zero_()  # keys are not rotated
    bias[HEADS * 64 : HEADS * 64 + 3] = 1000.0
    bias[(HEADS + KV_HEADS) * 64 + 5 : (HEADS + KV_HEADS) * 64 + 12] = -1000.0
    _, k_pages, v_pages, counter = decode_qkv.implementations["cuda"].function(operands)
    assert counter is operands.clipped and int(counter) == 7 + 5 * 10
    for slot in operands.slots.tolist():
        keys, values = (pages[slot // 16, 0, slot % 16].float() for pages in (k_pages, v_pages))
        assert (keys == 448).sum() == 3 and (keys[:3] == 448).all()
        assert (values == -448).sum() == 7 and (values[5:12] == -448).all()


def test_fp8_pages_need_no_counter(hold_emulated):
    hold_emulated(decode_qkv, LARGE, with_fp8_pages(make_operands(3, 320, True), counts=False))


def test_only_weight_and_norm_are_read_before_the_inputs_are_ready_for_fp8_pages(hold_early):
    late = ("r", "bias", "table", "positions", "slots", "k_pages", "v_pages")
    hold_early(decode_qkv, LARGE, late, with_fp8_pages(make_operands(5, 320, False), counts=False))


@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_all_lanes_may_arrive_instead_of_one_per_warp(is_fp4, hold_emulated):
    """A barrier with the wrong count would hang or open too early; the ring goes around several times."""
    with with_all_arriving():
        hold_emulated(decode_qkv, LARGE, make_operands(3, 320, is_fp4))


@pytest.mark.parametrize(("tokens", "is_fp4"), [(3, True), (5, False)], ids=str)
def test_only_weight_and_norm_are_read_before_the_inputs_are_ready(tokens, is_fp4, hold_early):
    late = ("r", "bias", "table", "positions", "slots", "k_pages", "v_pages")
    hold_early(decode_qkv, LARGE, late, make_operands(tokens, 320, is_fp4))


@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize(("tokens", "is_fp4"), [(3, True), (5, False)], ids=str)
def test_nan_reaches_every_value_of_its_token(tokens, is_fp4, is_fp8, hold_emulated):
    operands = make_operands(tokens, 320, is_fp4)
    operands = with_fp8_pages(operands) if is_fp8 else operands
    operands.r[1, 5] = float("nan")
    hold_emulated(decode_qkv, LARGE, operands)
    q, k_pages, *_ = decode_qkv.reference(operands)
    assert q.isnan().all((1, 2)).tolist() == [token == 1 for token in range(tokens)] and k_pages.isnan().any()


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "machine"), [(64, LARGE), (128, SMALL), (192, LARGE), (1344, SMALL)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_every_number_of_tokens_and_split_of_rows(tokens, hidden, is_fp4, machine, hold_emulated):
    hold_emulated(decode_qkv, machine, make_operands(tokens, hidden, is_fp4))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("is_fp4", [True, False], ids=PACKED.get)
def test_every_number_of_tokens_in_fp8(tokens, is_fp4, hold_emulated):
    hold_emulated(decode_qkv, SMALL, with_fp8_pages(make_operands(tokens, 128, is_fp4)))


def test_rounded_activations_beside_fp8_pages(hold_emulated):
    hold_emulated(decode_qkv, LARGE, with_fp8_pages(make_operands(3, 192, True), activation="mxfp8"))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_rounded_activations(tokens, hold_emulated):
    hold_emulated(decode_qkv, LARGE, replace(make_operands(tokens, 192, True), activation="mxfp8"))
