"""Rooflines against figures worked out elsewhere by hand, against the weights themselves, and their own algebra."""

import dataclasses

import pytest
import torch

from firesteel.kernels.registry import ALL_OPS
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.roofline.roofline import (
    GPUS,
    NOT_RUN,
    RooflineError,
    Speculation,
    StepShape,
    assumptions,
    expected_experts,
    find_gpu,
    predict,
    speculate,
    step_cost,
)
from firesteel.model.spec import PRESETS, ModelSpec
from firesteel.model.weights import empty_weights, named_tensors

BIG, SMALL = PRESETS["gpt-oss-120b"], PRESETS["gpt-oss-20b"]
ODD = ModelSpec(
    num_layers=3, hidden_size=96, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=20, num_experts=6,
    num_active=2, vocab_size=272, windows=(8, None, 8), rope=RopeSpec(theta=1e4), max_context=256,
)  # fmt: skip
# The hand-made tables, as printed: GB of experts, attention, lm_head and in all.
GB_A_TOKEN = [
    (BIG, "bf16", "1.906", "1.911", "1.158", "5.00"),
    (BIG, "q8_0", "1.906", "1.015", "0.615", "3.56"),
    (BIG, "fp8", "1.906", "0.956", "0.579", "3.47"),
    (BIG, "mxfp4", "1.906", "0.508", "0.308", "2.75"),
    (SMALL, "bf16", "1.271", "1.274", "1.158", "3.71"),
    (SMALL, "q8_0", "1.271", "0.677", "0.615", "2.57"),
    (SMALL, "mxfp4", "1.271", "0.338", "0.308", "1.92"),
]
# tok/s at 273 and 232 (gb10), 1792 (5090, pro6000), 3350 (h100), 4800 (h200), 8000 (b200) GB/s
CEILINGS = [
    (BIG, "bf16", "54.6", "46.4", "358", "670", "960", "1599"),
    (BIG, "q8_0", "76.6", "65.1", "503", "940", "1347", "2245"),
    (BIG, "mxfp4", "99.3", "84.4", "652", "1219", "1747", "2911"),
    (SMALL, "bf16", "73.6", "62.6", "483", "904", "1295", "2158"),
    (SMALL, "q8_0", "106", "90", "698", "1305", "1870", "3116"),
    (SMALL, "mxfp4", "142", "121", "933", "1744", "2498", "4164"),
]


def same_figure(value, printed):
    decimals = len(printed.partition(".")[2])
    return f"{value:.{decimals}f}" == printed


def op_of(cost, op, part):
    return next(one for one in cost.ops if (one.op, one.part) == (op, part))


def table_bytes(cost):
    """As the hand-made tables count: every matrix, and of the vectors the experts' biases only."""
    return sum(op.matrix_bytes + (op.vector_bytes if op.op == "moe_matmul" else 0) for op in cost.ops)


def matrix_bytes(cost):
    return sum(op.matrix_bytes for op in cost.ops)


@pytest.mark.parametrize(("spec", "dense", "experts", "attention", "lm_head", "total"), GB_A_TOKEN)
def test_bytes_a_token_are_those_of_the_table(spec, dense, experts, attention, lm_head, total):
    cost = step_cost(spec, StepShape(dense=dense))
    moe = sum(op.bytes for op in cost.ops if op.op == "moe_matmul")
    qkv, o = op_of(cost, "linear", "qkv"), op_of(cost, "linear", "o")
    assert same_figure(moe / 1e9, experts)
    assert same_figure((qkv.matrix_bytes + o.matrix_bytes) / 1e9, attention)
    assert same_figure(op_of(cost, "linear", "lm_head").matrix_bytes / 1e9, lm_head)
    assert same_figure(table_bytes(cost) / 1e9, total) and same_figure(cost.bytes / 1e9, total)


@pytest.mark.parametrize(("spec", "dense", "printed"), [(row[0], row[1], row[2:]) for row in CEILINGS])
def test_ceilings_are_those_of_the_table(spec, dense, printed):
    gb10, rtx, h100, h200, b200 = (GPUS[name] for name in ("gb10", "5090", "h100", "h200", "b200"))
    bandwidths = [
        gb10.nominal_gb_s, gb10.read_gb_s, rtx.nominal_gb_s, h100.nominal_gb_s, h200.nominal_gb_s,
        b200.nominal_gb_s,
    ]  # fmt: skip
    cost = step_cost(spec, StepShape(dense=dense))
    for gb_s, figure in zip(bandwidths, printed, strict=True):
        assert same_figure(gb_s * 1e9 / table_bytes(cost), figure)
        # what the table leaves out (norms, other biases, the token's own key and value) is under 0.05 %
        assert 0 < 1 - cost.tok_s(gb_s) * table_bytes(cost) / (gb_s * 1e9) < 5e-4
    assert GPUS["pro6000"].nominal_gb_s == rtx.nominal_gb_s


@pytest.mark.parametrize(
    ("context", "unit", "fp8", "bf16"),
    [(8192, 1e6, "153", "307"), (32768, 1e9, "0.61", "1.21"), (131072, 1e9, "2.4", "4.8")],
)
def test_cache_read_by_a_token_is_that_of_the_text(context, unit, fp8, bf16):
    for kv, printed in (("fp8", fp8), ("bf16", bf16)):
        cost = step_cost(BIG, StepShape(kv=kv, context=context))
        assert same_figure(op_of(cost, "attention", "all").kv_bytes / unit, printed)


def test_cache_at_32k_costs_44_percent_of_the_weights():
    cost = step_cost(BIG, StepShape(dense="mxfp4", context=32768))
    assert same_figure(100 * op_of(cost, "attention", "all").kv_bytes / table_bytes(cost), "44")


@pytest.mark.parametrize(
    ("spec", "dense", "verified", "printed"),
    [
        (BIG, "bf16", 2, "1.37"), (BIG, "bf16", 4, "2.07"), (BIG, "mxfp4", 2, "1.67"), (BIG, "mxfp4", 4, "2.95"),
        (SMALL, "bf16", 4, "1.79"), (SMALL, "mxfp4", 4, "2.53"),
    ],
)  # fmt: skip
def test_verifying_costs_what_the_text_says(spec, dense, verified, printed):
    step = StepShape(dense=dense)
    by_hand = table_bytes(step_cost(spec, dataclasses.replace(step, tokens=verified)))
    assert same_figure(by_hand / table_bytes(step_cost(spec, step)), printed)
    assert same_figure(speculate(spec, step, verified - 1).cost, printed)


def test_accepting_2_7_of_4_gains_30_percent_with_bf16_and_loses_with_mxfp4():
    assert round(2.7 / speculate(BIG, StepShape(), 3).cost, 2) == 1.30
    assert 2.7 / speculate(BIG, StepShape(dense="mxfp4"), 3).cost < 1


@pytest.mark.parametrize(("tokens", "times"), [(2, "1.97"), (4, "3.82")])
def test_tokens_share_few_experts(tokens, times):
    assert same_figure(expected_experts(BIG, tokens) / BIG.num_active, times)


@pytest.mark.parametrize(("batch", "printed"), [(1, "4"), (8, "29"), (32, "82")])
def test_distinct_experts_of_a_batch(batch, printed):
    assert same_figure(step_cost(BIG, StepShape(requests=batch)).distinct_experts, printed)


def test_expectation_is_what_random_choices_reach():
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.rand(8, 32, generator=generator).topk(4).indices.unique().numel() for _ in range(2000)
    ]  # 8 tokens, 4 of 32 experts each
    assert sum(drawn) / len(drawn) == pytest.approx(expected_experts(SMALL, 8), rel=0.01)


def test_floors_of_the_h200_are_those_of_the_design():
    """The design counts matrices alone: with the biases of the experts MXFP4 makes 1690, not 1692."""
    read = GPUS["h200"].read_gb_s * 1e9
    as_shipped, packed = step_cost(BIG, StepShape()), step_cost(BIG, StepShape(dense="mxfp4"))
    q8 = step_cost(BIG, StepShape(dense="q8_0"))
    assert [round(read / matrix_bytes(cost)) for cost in (as_shipped, packed, q8)] == [929, 1692, 1305]
    assert [round(read / table_bytes(cost)) for cost in (as_shipped, packed, q8)] == [929, 1690, 1304]
    assert same_figure(matrix_bytes(packed) / read * 1e3, "0.591")
    assert same_figure(as_shipped.seconds(4645) * 1e3, "1.08")


def test_weight_streams_of_a_step_are_181():
    assert sum(op.calls for op in step_cost(BIG, StepShape()).ops if op.matrix_bytes) == 181


@pytest.mark.parametrize("spec", [BIG, SMALL, ODD], ids=["120b", "20b", "odd"])
def test_all_experts_together_are_every_byte_of_the_weights_but_the_embedding(spec):
    cost = step_cost(spec, StepShape(distinct_experts=spec.num_experts))
    read = sum(op.matrix_bytes + op.vector_bytes for op in cost.ops if op.op != "embedding")
    stored = named_tensors(empty_weights(spec, torch.device("meta")), spec)
    assert read == sum(tensor.nbytes for name, tensor in stored.items() if name != "model.embed_tokens.weight")


@pytest.mark.parametrize(("spec", "billions"), [(BIG, "5.13"), (SMALL, "3.61")])
def test_a_token_multiplies_each_active_parameter_once(spec, billions):
    assert same_figure(step_cost(spec, StepShape()).flops / 2 / 1e9, billions)


def test_flops_grow_with_tokens_and_bytes_do_not():
    one, four = (step_cost(ODD, StepShape(tokens=tokens, distinct_experts=6)) for tokens in (1, 4))
    for before, after in zip(one.ops, four.ops, strict=True):
        if before.op != "attention":
            assert after.flops == 4 * before.flops
        assert after.matrix_bytes == before.matrix_bytes


def test_a_batch_multiplies_the_flops_whatever_experts_it_meets():
    assert step_cost(BIG, StepShape(requests=8)).flops == pytest.approx(
        8 * step_cost(BIG, StepShape()).flops, rel=1e-12
    )


def test_each_token_reads_its_row_of_the_embedding():
    assert op_of(step_cost(BIG, StepShape(requests=3, tokens=2)), "embedding", "rows").bytes == 6 * 2880 * 2


def test_rows_of_groups_are_rounded_up():
    """80 values of a row are 3 groups of 32, the last half empty."""
    assert op_of(step_cost(ODD, StepShape(dense="mxfp4")), "linear", "o").matrix_bytes == 3 * 96 * 3 * 17
    assert op_of(step_cost(ODD, StepShape(dense="q8_0")), "linear", "o").matrix_bytes == 3 * 96 * 3 * 34


def test_window_layers_read_no_more_than_their_window():
    """Layers see 8, all, 8 tokens, their own included; a token has 40 keys and 40 values."""
    reads = [op_of(step_cost(ODD, StepShape(context=n)), "attention", "all").kv_bytes for n in (0, 3, 7, 100)]
    assert reads == [0, 160 * (3 + 3 + 3), 160 * (7 + 7 + 7), 160 * (7 + 100 + 7)]


def test_attention_multiplies_by_the_keys_each_token_sees():
    attention = op_of(step_cost(ODD, StepShape(context=6, tokens=3, requests=5)), "attention", "all")
    seen = (7 + 8 + 8) + (7 + 8 + 9) + (7 + 8 + 8)
    assert attention.flops == 5 * seen * 2 * 2 * 80
    assert attention.kv_bytes == 5 * 160 * (6 + 6 + 6)


def test_batch_multiplies_cache_and_tokens_but_reads_dense_weights_once():
    one, eight = step_cost(BIG, StepShape(context=1000)), step_cost(BIG, StepShape(context=1000, requests=8))
    for part in ("qkv", "o", "lm_head"):
        assert op_of(eight, "linear", part).bytes == op_of(one, "linear", part).bytes
    for op in ("attention", "rope_kv_write"):
        assert op_of(eight, op, "all").kv_bytes == 8 * op_of(one, op, "all").kv_bytes
    assert eight.tok_s(1000) == pytest.approx(8e12 / eight.bytes)


def test_given_experts_replace_the_expectation():
    few = step_cost(BIG, StepShape(requests=8, distinct_experts=10))
    assert few.distinct_experts == 10
    moe = op_of(few, "moe_matmul", "down").bytes / op_of(step_cost(BIG, StepShape()), "moe_matmul", "down").bytes
    assert moe == pytest.approx(10 / 4)


def test_rows_are_ops_of_the_network():
    names = {op.name for op in ALL_OPS}
    assert {op.op for op in step_cost(BIG, StepShape()).ops} - {"embedding"} <= names


def test_mxfp4_layers_are_counted_one_by_one():
    plain, packed = step_cost(BIG, StepShape()), step_cost(BIG, StepShape(dense="mxfp4"))
    parts = [step_cost(BIG, StepShape(mxfp4_layers=(part,))) for part in ("qkv", "o", "lm_head")]
    saved = [plain.bytes - one.bytes for one in parts]
    assert min(saved) > 0 and sum(saved) == pytest.approx(plain.bytes - packed.bytes)
    assert step_cost(BIG, StepShape(mxfp4_layers=("qkv", "o", "lm_head"))).bytes == packed.bytes


def test_predictions_say_what_they_stand_on():
    gb10 = assumptions(step_cost(BIG, StepShape()), GPUS["gb10"], 0.85)
    assert any("not yet run on GB10" in line for line in gb10) and any("15 % of the step" in line for line in gb10)
    assert any("independent routing" in line for line in gb10)
    h200 = assumptions(step_cost(BIG, StepShape(distinct_experts=4)), GPUS["h200"], 0.5)
    assert not any("not yet run" in line or "independent" in line for line in h200)
    assert any("4.0 distinct experts a layer, given" in line for line in h200)
    assert not any("measured read" in line for line in assumptions(step_cost(BIG, StepShape()), GPUS["b200"], 0.5))


def test_prediction_is_a_share_of_the_ceiling_and_says_where_nothing_ran():
    cost = step_cost(BIG, StepShape(dense="mxfp4"))
    nominal, read = predict(cost, GPUS["gb10"], 0.85)
    assert (nominal.bandwidth, read.bandwidth) == ("nominal", "measured read")
    assert (round(read.predicted_tok_s), round(nominal.predicted_tok_s)) == (72, 84)
    assert read.predicted_tok_s == pytest.approx(0.85 * read.ceiling_tok_s)
    assert read.step_ms == pytest.approx(1e3 / read.ceiling_tok_s)
    assert nominal.status == read.status == "predicted, not yet run" == NOT_RUN
    assert [one.status for one in predict(cost, GPUS["h200"], 1)] == ["predicted", "predicted"]


def test_break_even_is_where_speed_is_the_same():
    speculation = speculate(BIG, StepShape(), 3)
    assert speculation.speedup(speculation.break_even()) == pytest.approx(1)
    assert speculation.speedup(speculation.break_even() - 0.01) < 1 < speculation.speedup(1.0)
    assert speculation.length(0) == 1 and speculation.length(1) == 4 and speculation.length(0.5) == 1.875


def test_drafts_can_cost_more_than_they_can_gain():
    dear = speculate(BIG, StepShape(dense="mxfp4"), 3, draft_bytes=4e9)
    assert dear.cost == pytest.approx(speculate(BIG, StepShape(dense="mxfp4"), 3).cost + 4e9 / 2.75e9, rel=1e-3)
    assert dear.break_even() is None
    assert Speculation(drafted=3, cost=4.0).break_even() == pytest.approx(1)


def test_measured_overlap_of_experts_lowers_the_cost():
    step = StepShape(dense="mxfp4", distinct_experts=4)
    assert speculate(BIG, step, 3, verify_experts=4).cost == pytest.approx(1, rel=1e-3)
    assert 1.5 < speculate(BIG, step, 3, verify_experts=8).cost < speculate(BIG, StepShape(dense="mxfp4"), 3).cost


# model, dense, GPU, published tok/s of one request: none beats the memory
PUBLISHED = [
    (BIG, "mxfp4", "gb10", 60.7), (BIG, "q8_0", "gb10", 58.7), (BIG, "bf16", "gb10", 52.0),
    (SMALL, "q8_0", "gb10", 83.4), (BIG, "bf16", "h100", 212.0), (SMALL, "bf16", "h100", 305.0),
    (SMALL, "q8_0", "5090", 298.0),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "dense", "gpu", "tok_s"), PUBLISHED)
def test_published_speeds_lie_below_the_nominal_ceiling(spec, dense, gpu, tok_s):
    assert step_cost(spec, StepShape(dense=dense)).share(tok_s, GPUS[gpu].nominal_gb_s) < 1


def test_published_speeds_come_in_the_order_of_their_ceilings():
    ordered = sorted(PUBLISHED, key=lambda row: row[-1])
    ceilings = [
        step_cost(spec, StepShape(dense=dense)).tok_s(GPUS[gpu].nominal_gb_s) for spec, dense, gpu, _ in ordered
    ]
    assert ceilings == sorted(ceilings)


def test_shares_of_published_speeds_are_those_of_the_text():
    packed, q8, shipped = (step_cost(BIG, StepShape(dense=dense)) for dense in ("mxfp4", "q8_0", "bf16"))
    assert (round(100 * q8.share(58.7, 273)), round(100 * q8.share(58.7, 232))) == (77, 90)
    assert (round(100 * packed.share(60, 273)), round(100 * packed.share(60, 232))) == (60, 71)
    assert shipped.share(57, 273) > 1, "57 tok/s with bf16 would need more than the nominal bandwidth"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepShape(dense="int8"), "dense = int8: must be one of bf16, q8_0, fp8, mxfp4"),
        (lambda: StepShape(kv="q4"), "kv = q4: must be one of bf16, fp8"),
        (lambda: StepShape(context=-1), "context = -1: must be at least 0"),
        (lambda: StepShape(requests=0), "requests = 0: must be at least 1"),
        (lambda: StepShape(tokens=0), "tokens = 0: must be at least 1"),
        (lambda: step_cost(BIG, StepShape(distinct_experts=3)), "distinct_experts = 3: must lie between 4 and 128"),
        (lambda: step_cost(BIG, StepShape(distinct_experts=129)), "distinct_experts = 129"),
        (lambda: speculate(BIG, StepShape(), 0), "drafted = 0: must be at least 1"),
        (
            lambda: speculate(BIG, StepShape(distinct_experts=5), 1),
            "of the plain and of the verifying step, or of neither",
        ),
        (
            lambda: speculate(BIG, StepShape(), 1, verify_experts=5),
            "of the plain and of the verifying step, or of neither",
        ),
        (lambda: speculate(BIG, StepShape(), 1).length(1.1), "acceptance = 1.1: must lie between 0 and 1"),
        (lambda: predict(step_cost(BIG, StepShape()), GPUS["gb10"], 0), "share = 0: must be above 0"),
        (lambda: find_gpu("tpu"), "there is no GPU 'tpu' in the table; it has gb10, h100"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_so(make, message):
    with pytest.raises(RooflineError, match=message):
        make()
