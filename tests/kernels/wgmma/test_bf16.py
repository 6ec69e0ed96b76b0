"""moe_matmul=cuda:wgmma: emulated on a CPU, and run on a GPU at real shapes."""

import importlib
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.call_key import make_key
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.op.verdict import disassemble, read_code
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.plan import Machine, machine_of
from tests.kernels.wgmma.routing import COUNTS, EXPERTS, TWO, choose, draw_tokens, share_out

MODULE = importlib.import_module("firesteel.kernels.wgmma.bf16")
SMALL_SHAPES = (MODULE.Shape(3, 2, (16, 8), sync_width=8), MODULE.Shape(3, 1, (24, 8)))


def name_shapes(shapes):
    return " ".join(map(str, shapes))


def run(operands):
    return MODULE.run(operands.x, operands.ids, operands.weights, operands.experts, operands.limit)


@pytest.fixture
def small_shapes(monkeypatch):
    """Tiles of few tokens, of which kernels compile fast."""
    monkeypatch.setattr(MODULE, "choose_shapes", lambda pairs, experts: SMALL_SHAPES)


@pytest.mark.usefixtures("small_shapes")
@pytest.mark.parametrize(
    "ids",
    [share_out(1, 0, 7, 8), share_out(9, 16, 17, 0), share_out(0, 0, 49, 0), choose(21, EXPERTS, 2)],
    ids=["1 0 7 8", "9 16 17 0", "0 0 49 0", "two of four"],
)
def test_each_token_gets_its_experts_however_many_tokens_share_one(hold_emulated, ids):
    hold_emulated(moe_matmul, TWO, draw_tokens(ids), way="cuda:wgmma")


@pytest.mark.slow
@pytest.mark.usefixtures("small_shapes")
@pytest.mark.parametrize(("hidden", "inter"), [(64, 192), (192, 64), (448, 320)])
def test_strips_of_other_sizes(hold_emulated, hidden, inter):
    """The last strip of a matmul may have fewer blocks than others."""
    hold_emulated(
        moe_matmul, TWO, draw_tokens(choose(20, 5, 4), experts=5, hidden=hidden, inter=inter), way="cuda:wgmma"
    )


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [shapes for _, *shapes in MODULE.SHAPES], ids=name_shapes)
def test_shapes_that_ship(hold_emulated, monkeypatch, shapes):
    monkeypatch.setattr(MODULE, "choose_shapes", lambda pairs, experts: shapes)
    ids = share_out(17, 49, 0, 1)
    hold_emulated(moe_matmul, TWO, draw_tokens(ids, hidden=192, inter=192), way="cuda:wgmma")


def test_shapes_follow_the_pairs_per_expert():
    for tokens, rows, width in ((192, 384, 24), (512, 384, 24), (513, 384, 40), (2048, 384, 96), (8192, 256, 144)):
        up, _ = MODULE.choose_shapes(4 * tokens, 128)
        assert str(up) == f"{rows}x{width}"


def test_kernels_of_gpt_oss_fit_an_h200_with_enough_stages_to_overlap():
    for _, up, down in MODULE.SHAPES:
        for shape, is_up in ((up, True), (down, False)):
            stages, together = shape.plan_ring(is_up, 2880, 128, machine_of((9, 0)).shared_bytes)
            assert stages >= 6 and together == MODULE.TOGETHER


@pytest.mark.usefixtures("small_shapes", "spoilt_memory")
def test_pairs_without_an_expert_add_nothing(use_machine):
    """Padding rows of a batch have id -1, and single ranks may too. Their results would be NaN here."""
    ids = choose(12, EXPERTS, 2)
    ids[9:] = -1
    ids[0, 1], ids[1, :] = -1, -(1 << 40)
    operands = draw_tokens(ids)
    operands.x[9:] = torch.nan
    use_machine(TWO)
    y = run(operands)
    assert y[9:].eq(0).all() and y[1].eq(0).all()
    clean = replace(operands, x=operands.x.nan_to_num())
    assert_close(actual=y, expected=moe_matmul.reference(clean), tolerance=moe_matmul.tolerance)


@pytest.mark.usefixtures("small_shapes", "spoilt_memory")
def test_all_pairs_without_an_expert_give_zeros(use_machine):
    use_machine(TWO)
    assert run(draw_tokens(torch.full((3, 2), -1))).eq(0).all()


def test_pairs_of_an_expert_keep_their_order_over_chunks(use_machine):
    """2500 pairs are three chunks, which as many CTAs place; an expert begins at a multiple of 8."""
    ids = choose(1250, EXPERTS, 2)
    ids[100:120] = -1
    weights = torch.rand(ids.shape)
    use_machine(TWO)
    places, order, starts, counts = (torch.full((count,), -7).int() for count in (2500, 2600, EXPERTS, EXPERTS))
    by_place = torch.zeros(2600)
    MODULE.launch(
        MODULE.plan_place(experts=EXPERTS),
        (3,),
        (ids, weights, places, order, by_place, starts, counts, 2500),
        False,
    )
    begin = 0
    for expert in range(EXPERTS):
        pairs = (ids.flatten() == expert).nonzero().flatten()
        assert (starts[expert], counts[expert]) == (begin, len(pairs))
        assert torch.equal(order[begin : begin + len(pairs)], pairs.int())
        assert torch.equal(by_place[begin : begin + len(pairs)], weights.flatten()[pairs])
        assert torch.equal(places[pairs], torch.arange(begin, begin + len(pairs)).int())
        begin += -(-len(pairs) // 8) * 8
    assert places.view(-1, 2)[100:120].eq(-7).all()


@pytest.mark.usefixtures("small_shapes")
def test_nan_stays_in_its_token(use_machine):
    operands = draw_tokens(choose(9, EXPERTS, 2))
    operands.x[3, 17] = torch.nan
    use_machine(TWO)
    assert run(operands).isnan().any(dim=1).tolist() == [token == 3 for token in range(9)]


@pytest.mark.usefixtures("small_shapes")
def test_scales_far_from_one_are_exact_enough(use_machine):
    """Weights are widened times 2^-32: neither small nor large scales of gate and up leave the range of bf16."""
    operands = draw_tokens(choose(9, EXPERTS, 2))
    operands.experts.gate_up_scales[0].fill_(40)
    operands.experts.gate_up_scales[1].fill_(150)
    use_machine(TWO)
    assert_close(actual=run(operands), expected=moe_matmul.reference(operands), tolerance=moe_matmul.tolerance)


@pytest.mark.parametrize("scale", [33, 161, 255])
def test_scales_that_bf16_cannot_hold_are_refused(scale):
    """Scales are examined once per set of experts, and the key of calls tells sets with such scales from others."""
    operands, spoilt = draw_tokens(choose(9, EXPERTS, 2)), draw_tokens(choose(9, EXPERTS, 2))
    spoilt.experts.down_codes[2, 5, 16:32] = 0x10
    spoilt.experts.down_scales[2, 5, 1] = scale
    refuse = moe_matmul.implementations["cuda:wgmma"].accepts
    assert refuse(operands) is None
    assert "scales from 2^-93 to 2^33" in refuse(spoilt)
    assert make_key((operands,)) != make_key((spoilt,))


@pytest.mark.parametrize("scale", [0, 33])
def test_groups_of_zeros_may_have_smaller_scales(scale):
    operands = draw_tokens(choose(9, EXPERTS, 2))
    operands.experts.down_codes[2, 5, 16:32] = 0x80
    operands.experts.down_scales[2, 5, 1] = scale
    assert moe_matmul.implementations["cuda:wgmma"].accepts(operands) is None


def test_refusals_name_what_is_wrong():
    refuse = moe_matmul.implementations["cuda:wgmma"].accepts
    operands = draw_tokens(choose(9, EXPERTS, 2))
    assert refuse(operands) is None
    assert "bf16 activations, not mxfp8" in refuse(replace(operands, activation="mxfp8"))
    assert "16x64 is pinned" in refuse(replace(operands, tile="16x64"))
    assert "at least one token" in refuse(replace(operands, x=operands.x[:0]))
    assert "contiguous" in refuse(replace(operands, ids=operands.ids.T.contiguous().T))
    assert "by 64 rows" in refuse(draw_tokens(choose(1, 4, 2), hidden=96))
    assert "fp32" in refuse(replace(operands, weights=operands.weights.double()))
    assert "int64" in refuse(replace(operands, ids=operands.ids.int()))
    many = torch.zeros(1 << 14, 4, dtype=torch.int64)
    assert "up to 65535 pairs" in refuse(replace(operands, ids=many, x=torch.zeros(1 << 14, 128).bfloat16()))


def test_a_machine_with_too_little_memory_is_refused_before_the_launch():
    operands = draw_tokens(choose(9, EXPERTS, 2))
    shapes = MODULE.choose_shapes(operands.ids.numel(), EXPERTS)
    assert MODULE._refuse_memory(TWO, operands.experts, shapes) is None
    refused = MODULE._refuse_memory(Machine(3, 4096), operands.experts, shapes)
    assert "bytes of shared memory, this GPU has 4096" in refused


def test_every_place_has_room_and_tiles_read_inside():
    """Experts begin at multiples of 8, and the last tile reads as many places as its width."""
    for pairs, experts in ((1, 128), (256, 128), (32_768, 128), (5, 3)):
        used = min(pairs, experts)
        assert MODULE.count_places(pairs, experts) >= pairs + 7 * used + MODULE.WIDEST
        assert MODULE.count_places(pairs, experts) % 8 == 0


def hold_overlapped(shape, is_up):
    """Asserts that two wgmmas share a fence: those that the compiler serialises have one each, and a wait."""
    rows = 5760 if is_up else 2880
    kernel = MODULE.plan(machine_of((9, 0)), shape, is_up=is_up, columns=2880, rows=rows, experts=128)
    entry = kernel.build("sm_90a")
    code, text = read_code(entry), disassemble(entry.binary.cubin, entry.name)
    products = sum(count for name, count in code.sass.items() if name.startswith("HGMMA"))
    assert code.spills == 0 and products > 0
    assert text.count("WARPGROUP.ARRIVE") == products / 2


def test_products_are_wgmma_that_overlap_and_nothing_spills():
    hold_overlapped(MODULE.Shape(3, 1, (16,)), is_up=False)


@pytest.mark.slow
@pytest.mark.parametrize("is_up", [True, False], ids=["up", "down"])
@pytest.mark.parametrize("shapes", [shapes for _, *shapes in MODULE.SHAPES[1:]], ids=name_shapes)
def test_products_of_all_shapes_overlap(shapes, is_up):
    hold_overlapped(shapes[not is_up], is_up)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 9, 64, 100, 500, 1024, 1400, 2048, 8192])
def test_real_shapes_on_a_gpu(tokens):
    """From 500 on, each number of tokens is computed by another pair of shapes."""
    ids = choose(tokens, 128, 4, seed=tokens)
    operands = draw_tokens(ids, experts=128, hidden=2880, inter=2880, device="cuda")
    assert check(moe_matmul, moe_matmul.implementations["cuda:wgmma"], Sample(f"T={tokens}", (operands,))) is None


@pytest.mark.gpu
def test_odd_numbers_of_tokens_per_expert_on_a_gpu():
    operands = draw_tokens(share_out(*COUNTS), experts=len(COUNTS), hidden=2880, inter=2880, device="cuda")
    assert check(moe_matmul, moe_matmul.implementations["cuda:wgmma"], Sample("odd", (operands,))) is None


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [32, 2048])
def test_same_inputs_give_the_same_bits_in_a_graph_too(tokens):
    operands = draw_tokens(choose(tokens, 128, 4), experts=128, hidden=2880, inter=2880, device="cuda")
    first = run(operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = run(operands)
    for _ in range(20):
        again.fill_(torch.nan)
        graph.replay()
        assert torch.equal(first, again)
