"""moe_matmul=cuda:wgmma_fp8 and cuda:wgmma_split: emulated on a CPU, and run on a GPU at real shapes."""

import importlib
from dataclasses import replace

import pytest
import torch

from firesteel.formats import e4m3, fp8
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.op.verdict import disassemble, judge_compiled, read_code
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.plan import machine_of
from tests.kernels.wgmma.routing import COUNTS, EXPERTS, HIDDEN, TWO, choose, draw_tokens, share_out

MODULE = importlib.import_module("firesteel.kernels.wgmma.e4m3")
BF16 = importlib.import_module("firesteel.kernels.wgmma.bf16")
FP8, SPLIT = 1, 2
BOTH = pytest.mark.parametrize("columns", [FP8, SPLIT], ids=["fp8", "split"])


def small_shapes(columns):
    return MODULE._shape(columns, 2, 2, 16, 8), MODULE._shape(columns, 3, 1, 24, 8)


def draw(columns, ids, **options):
    """Draws operands for the implementation that has `columns` columns per token."""
    return draw_tokens(ids, activation=MODULE.ACTIVATIONS[columns], **options)


def run(columns, operands):
    return MODULE.run(columns, operands.x, operands.ids, operands.weights, operands.experts, operands.limit)


@pytest.fixture
def use_small_shapes(monkeypatch):
    """Tiles of few tokens, of which kernels compile fast."""
    monkeypatch.setattr(MODULE, "choose_shapes", lambda columns, pairs, experts: small_shapes(columns))
    monkeypatch.setattr(
        BF16, "choose_shapes", lambda pairs, experts: (BF16.Shape(3, 2, (16, 8)), BF16.Shape(3, 1, (24, 8)))
    )


@BOTH
@pytest.mark.usefixtures("use_small_shapes")
@pytest.mark.parametrize(
    "ids",
    [share_out(1, 0, 7, 8), share_out(9, 16, 17, 0), share_out(0, 0, 49, 0), choose(21, EXPERTS, 2)],
    ids=["1 0 7 8", "9 16 17 0", "0 0 49 0", "two of four"],
)
def test_each_token_gets_its_experts_however_many_tokens_share_one(hold_emulated, columns, ids):
    hold_emulated(moe_matmul, TWO, draw(columns, ids), way=MODULE.NAMES[columns])


@BOTH
@pytest.mark.slow
@pytest.mark.usefixtures("use_small_shapes")
@pytest.mark.parametrize(("hidden", "inter"), [(64, 192), (192, 64), (448, 320)])
def test_strips_of_other_sizes(hold_emulated, columns, hidden, inter):
    """The last strip of a matmul may have fewer blocks than others."""
    operands = draw(columns, choose(20, 5, 4), experts=5, hidden=hidden, inter=inter)
    hold_emulated(moe_matmul, TWO, operands, way=MODULE.NAMES[columns])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "shapes"),
    [(columns, shapes) for columns, rows in MODULE.SHAPES.items() for _, *shapes in rows],
    ids=str,
)
def test_shapes_that_ship(hold_emulated, monkeypatch, columns, shapes):
    monkeypatch.setattr(MODULE, "choose_shapes", lambda columns, pairs, experts: shapes)
    operands = draw(columns, share_out(17, 49, 0, 1), hidden=192, inter=192)
    hold_emulated(moe_matmul, TWO, operands, way=MODULE.NAMES[columns])


def test_shapes_follow_the_pairs_per_expert():
    for columns, tokens, rows, width in (
        (FP8, 512, 384, 24),
        (FP8, 513, 256, 64),
        (FP8, 2048, 192, 96),
        (FP8, 8192, 256, 96),
        (SPLIT, 256, 384, 16),
        (SPLIT, 512, 256, 32),
        (SPLIT, 1024, 192, 64),
    ):
        up, _ = MODULE.choose_shapes(columns, 4 * tokens, 128)
        assert str(up) == f"{rows}x{width}"


@BOTH
def test_kernels_of_gpt_oss_fit_an_h200_with_enough_stages_to_overlap(columns):
    for _, up, down in MODULE.SHAPES[columns]:
        for shape, is_up in ((up, True), (down, False)):
            stages, together = shape.plan_ring(is_up, 2880, 128, machine_of((9, 0)).shared_bytes)
            assert stages >= 6 and together == BF16.TOGETHER


@BOTH
@pytest.mark.usefixtures("use_small_shapes", "spoilt_memory")
def test_pairs_without_an_expert_add_nothing(use_machine, columns):
    """Padding rows of a batch have id -1, and single ranks may too. Their results would be NaN here."""
    ids = choose(12, EXPERTS, 2)
    ids[9:] = -1
    ids[0, 1], ids[1, :] = -1, -(1 << 40)
    operands = draw(columns, ids)
    operands.x[9:] = torch.nan
    use_machine(TWO)
    y = run(columns, operands)
    assert y[9:].eq(0).all() and y[1].eq(0).all()
    hold(columns, y, replace(operands, x=operands.x.nan_to_num()))


def hold(columns, y, operands):
    tolerance = MODULE.TOLERANCES[columns] or moe_matmul.tolerance
    assert_close(actual=y, expected=moe_matmul.reference(operands), tolerance=tolerance)


@BOTH
@pytest.mark.usefixtures("use_small_shapes")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_token(use_machine, columns, value):
    operands = draw(columns, choose(9, EXPERTS, 2))
    operands.x[3, 17] = value
    use_machine(TWO)
    assert run(columns, operands).isnan().all(dim=1).tolist() == [token == 3 for token in range(9)]
    assert not run(columns, operands)[[0, 1, 2, 4, 5, 6, 7, 8]].isnan().any()


@BOTH
@pytest.mark.usefixtures("use_small_shapes")
def test_tokens_of_zeros_and_of_tiny_values(use_machine, columns):
    operands = draw(columns, choose(9, EXPERTS, 2))
    operands.x[3], operands.x[4], operands.x[5] = 0, 2.0**-120, operands.x[5] * 2.0**60
    use_machine(TWO)
    hold(columns, run(columns, operands), operands)


@BOTH
@pytest.mark.usefixtures("use_small_shapes")
def test_rows_span_the_whole_range_of_scales(use_machine, columns):
    """Groups whose scales are 2^14 apart are exact, at both ends of what bf16 holds too; a zero may be negative."""
    operands = draw(columns, choose(9, EXPERTS, 2))
    experts = operands.experts
    experts.gate_up_scales[0, :, 0::2], experts.gate_up_scales[0, :, 1::2] = 126, 126 - 14
    experts.gate_up_scales[1].fill_(34)
    experts.gate_up_scales[2].fill_(160)
    experts.down_scales[3, :, 0], experts.down_scales[3, :, 1] = 110, 124
    experts.down_codes[3, :, :16] |= 0x77  # only large values count beside a scale that is larger by 2^14
    experts.down_codes[3, :, 16:].fill_(0x80)  # zeros, every other negative
    use_machine(TWO)
    assert experts.e4m3_rows.num_unfit == 0
    hold(columns, run(columns, operands), operands)


@BOTH
@pytest.mark.usefixtures("use_small_shapes", "spoilt_memory")
@pytest.mark.parametrize("unfit", [[1], [0, 1, 2, 3]], ids=["one", "all"])
def test_experts_with_rows_that_do_not_fit_are_computed_in_bf16(use_machine, columns, unfit):
    operands = draw(columns, choose(12, EXPERTS, 2))
    for expert in unfit:
        operands.experts.down_scales[expert, 5, 0] = operands.experts.down_scales[expert, 5, 1] - 15
    use_machine(TWO)
    assert operands.experts.e4m3_rows.num_unfit == len(unfit)
    assert operands.experts.e4m3_rows.fits.tolist() == [int(expert not in unfit) for expert in range(EXPERTS)]
    hold(columns, run(columns, operands), operands)


def test_rounding_of_experts_that_do_not_fit_is_left_out_of_the_reference():
    plain = draw(SPLIT, choose(12, EXPERTS, 1))
    plain.experts.gate_up_scales[1, 5, 0] = plain.experts.gate_up_scales[1, 5, 1] - 15
    y, rounded = moe_matmul.reference(plain), moe_matmul.reference(replace(plain, activation="fp8"))
    same = (y == rounded).all(dim=1)
    assert torch.equal(same, plain.ids[:, 0] == 1) and same.any()


@BOTH
def test_rows_are_rounded_to_their_places_in_the_order_that_products_read(use_machine, columns):
    """One column is formats.fp8; two are exact in bf16 down to 2^-15 of a row's largest value."""
    x = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[1] *= 2.0 ** -torch.arange(HIDDEN).remainder(30)
    x[2], x[3, 5], x[4, 6] = 0, torch.inf, torch.nan
    places, ids = torch.tensor([9, 3, 8, 0, 1, 2]).int(), torch.zeros(6, 1, dtype=torch.int64)
    out, units = torch.zeros(HIDDEN // 64, 16, columns, 64, dtype=torch.uint8), torch.zeros(16)
    use_machine(TWO)
    kernel = MODULE.plan_round(hidden=HIDDEN, active=1, columns=columns, is_inner=False)
    MODULE.launch(kernel, (6,), (x, ids, places, out, units, 16), False)
    rows = torch.arange(16 * columns)[:, None]
    parts = out.view(-1, 16 * columns, 4, 16)[:, rows, torch.arange(4) ^ rows // 2 % 4]
    codes = parts.view(-1, 16, columns, 4, 4, 4).permute(1, 2, 0, 4, 3, 5).reshape(16, columns, HIDDEN)[places]
    codes, units = codes.contiguous(), units[places]
    finite = [0, 1, 2, 5]
    assert units.isfinite().nonzero().flatten().tolist() == finite
    if columns == FP8:
        expected, scales = fp8.quantize(x.float())
        assert torch.equal(codes[finite, 0], expected[finite])
        assert torch.equal(units[finite], scales[finite, 0])
        return
    high, low = e4m3.decode(codes[finite]).unbind(1)
    error = ((high + low / 32) * units[finite, None] - x[finite].float()).abs()
    largest = x[finite].abs().amax(-1, keepdim=True).float()
    assert (error <= largest * 2.0**-22).all() and error[1].any()
    assert error[x[finite].abs() >= largest * 2.0**-15].eq(0).all()


def test_refusals_name_what_is_wrong():
    fp8, split = (moe_matmul.implementations[MODULE.NAMES[columns]].accepts for columns in (FP8, SPLIT))
    operands = draw(SPLIT, choose(9, EXPERTS, 2))
    assert split(operands) is None and fp8(replace(operands, activation="fp8")) is None
    assert "fp8 activations, not bf16: --prefill-activation fp8" in fp8(operands)
    assert "bf16 activations, not fp8" in split(replace(operands, activation="fp8"))
    assert "16x64 is pinned" in split(replace(operands, tile="16x64"))
    assert "at least one token" in split(replace(operands, x=operands.x[:0]))
    assert "by 64 rows" in split(draw(SPLIT, choose(1, 4, 2), hidden=96))
    spoilt = draw(SPLIT, choose(9, EXPERTS, 2))
    spoilt.experts.down_scales[1, 5] = 250
    assert "leaves experts that E4M3 cannot represent to cuda:wgmma" in split(spoilt)


def test_fp8_activations_have_one_implementation_and_no_other_takes_them():
    operands = draw(FP8, choose(9, EXPERTS, 2))
    takes = [name for name in moe_matmul.order if moe_matmul.implementations[name].accepts(operands) is None]
    assert takes == [MODULE.NAMES[FP8]]
    assert MODULE.NAMES[SPLIT] not in moe_matmul.order


def hold_overlapped(shape, is_up):
    """Asserts that two wgmmas share a fence: those that the compiler serialises have one each, and a wait."""
    rows = 5760 if is_up else 2880
    kernel = BF16.plan(machine_of((9, 0)), shape, is_up=is_up, columns=2880, rows=rows, experts=128)
    entry = kernel.build("sm_90a")
    code, text = read_code(entry), disassemble(entry.binary.cubin, entry.name)
    products = sum(count for name, count in code.sass.items() if name.startswith("QGMMA"))
    assert code.spills == 0 and products > 0 and judge_compiled(entry) == "fp8"
    assert text.count("WARPGROUP.ARRIVE") == products / 2


@BOTH
def test_products_are_wgmma_in_fp8_that_overlap_and_nothing_spills(columns):
    hold_overlapped(MODULE._shape(columns, 3, 1, 16), is_up=False)


@pytest.mark.slow
@pytest.mark.parametrize("is_up", [True, False], ids=["up", "down"])
@pytest.mark.parametrize("shapes", [shapes for rows in MODULE.SHAPES.values() for _, *shapes in rows], ids=str)
def test_products_of_all_shapes_overlap(shapes, is_up):
    hold_overlapped(shapes[not is_up], is_up)


@BOTH
@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 9, 64, 100, 500, 513, 1024, 1400, 2048, 8192])
def test_real_shapes_on_a_gpu(columns, tokens):
    ids = choose(tokens, 128, 4, seed=tokens)
    operands = draw(columns, ids, experts=128, hidden=2880, inter=2880, device="cuda")
    way = moe_matmul.implementations[MODULE.NAMES[columns]]
    assert check(moe_matmul, way, Sample(f"T={tokens}", (operands,))) is None


@BOTH
@pytest.mark.gpu
def test_odd_numbers_of_tokens_per_expert_on_a_gpu(columns):
    operands = draw(columns, share_out(*COUNTS), experts=len(COUNTS), hidden=2880, inter=2880, device="cuda")
    way = moe_matmul.implementations[MODULE.NAMES[columns]]
    assert check(moe_matmul, way, Sample("odd", (operands,))) is None


@BOTH
@pytest.mark.gpu
def test_experts_that_do_not_fit_on_a_gpu(columns):
    operands = draw(columns, choose(256, 128, 4), experts=128, hidden=2880, inter=2880, device="cuda")
    operands.experts.down_scales[::3, 5, 0] = operands.experts.down_scales[::3, 5, 1] - 15
    way = moe_matmul.implementations[MODULE.NAMES[columns]]
    assert check(moe_matmul, way, Sample("unfit", (operands,))) is None


@BOTH
@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [32, 2048])
def test_same_inputs_give_the_same_bits_in_a_graph_too(columns, tokens):
    operands = draw(columns, choose(tokens, 128, 4), experts=128, hidden=2880, inter=2880, device="cuda")
    first = run(columns, operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = run(columns, operands)
    for _ in range(20):
        again.fill_(torch.nan)
        graph.replay()
        assert torch.equal(first, again)
