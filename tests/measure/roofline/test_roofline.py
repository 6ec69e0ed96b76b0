"""Rooflines, checked against tables computed by hand, against the weights, and against each other."""

import dataclasses

import pytest
import torch

from firesteel.kernels.registry import ALL_OPS
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.roofline.curves import speculate
from firesteel.measure.roofline.roofline import (
    GPUS,
    NOT_RUN,
    RooflineError,
    StepShape,
    assumptions,
    expected_experts,
    find_gpu,
    predict,
    step_cost,
)
from firesteel.model.spec import PRESETS, ModelSpec
from firesteel.model.weights import empty_weights, named_tensors

BIG, SMALL = PRESETS["gpt-oss-120b"], PRESETS["gpt-oss-20b"]
ODD = ModelSpec(
    num_layers=3,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=20,
    num_experts=6,
    num_active=2,
    vocab_size=272,
    windows=(8, None, 8),
    rope=RopeSpec(theta=1e4),
    max_context=256,
)
# Tables computed by hand, as printed: GB of experts, attention, lm_head and in total.
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
    return next(entry for entry in cost.ops if (entry.op, entry.part) == (op, part))


def table_bytes(cost):
    """Counts as the tables do: every matrix, and of the vectors only the biases of the experts."""
    return sum(op.matrix_bytes + (op.vector_bytes if op.op == "moe_matmul" else 0) for op in cost.ops)


def matrix_bytes(cost):
    return sum(op.matrix_bytes for op in cost.ops)


@pytest.mark.parametrize(("spec", "dense", "experts", "attention", "lm_head", "total"), GB_A_TOKEN)
def test_bytes_per_token_match_the_table(spec, dense, experts, attention, lm_head, total):
    cost = step_cost(spec, StepShape(dense=dense))
    moe = sum(op.bytes for op in cost.ops if op.op == "moe_matmul")
    qkv, o = op_of(cost, "linear", "qkv"), op_of(cost, "linear", "o")
    assert same_figure(moe / 1e9, experts)
    assert same_figure((qkv.matrix_bytes + o.matrix_bytes) / 1e9, attention)
    assert same_figure(op_of(cost, "linear", "lm_head").matrix_bytes / 1e9, lm_head)
    assert same_figure(table_bytes(cost) / 1e9, total) and same_figure(cost.bytes / 1e9, total)


@pytest.mark.parametrize(("spec", "dense", "printed"), [(row[0], row[1], row[2:]) for row in CEILINGS])
def test_ceilings_match_the_table(spec, dense, printed):
    gb10, rtx, h100, h200, b200 = (GPUS[name] for name in ("gb10", "5090", "h100", "h200", "b200"))
    bandwidths = [
        gb10.nominal_gb_s,
        gb10.read_gb_s,
        rtx.nominal_gb_s,
        h100.nominal_gb_s,
        h200.nominal_gb_s,
        b200.nominal_gb_s,
    ]
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
def test_cache_bytes_per_token_match_the_text(context, unit, fp8, bf16):
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
def test_cost_of_verifying_matches_the_text(spec, dense, verified, printed):
    step = StepShape(dense=dense)
    by_hand = table_bytes(step_cost(spec, dataclasses.replace(step, tokens=verified)))
    assert same_figure(by_hand / table_bytes(step_cost(spec, step)), printed)
    assert same_figure(speculate(spec, step, verified - 1).cost, printed)


@pytest.mark.parametrize(("tokens", "times"), [(2, "1.97"), (4, "3.82")])
def test_few_tokens_share_few_experts(tokens, times):
    assert same_figure(expected_experts(BIG, tokens) / BIG.num_active, times)


@pytest.mark.parametrize(("batch", "printed"), [(1, "4"), (8, "29"), (32, "82")])
def test_distinct_experts_of_a_batch(batch, printed):
    assert same_figure(step_cost(BIG, StepShape(requests=batch)).distinct_experts, printed)


def test_expected_experts_match_random_choices():
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.rand(8, 32, generator=generator).topk(4).indices.unique().numel() for _ in range(2000)
    ]  # 8 tokens, 4 of 32 experts each
    assert sum(drawn) / len(drawn) == pytest.approx(expected_experts(SMALL, 8), rel=0.01)


def test_floors_of_the_h200_match_the_design():
    """The design counts matrices only: with the biases of the experts, MXFP4 gives 1690, not 1692."""
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
def test_all_experts_together_are_all_weights_except_the_embedding(spec):
    cost = step_cost(spec, StepShape(distinct_experts=spec.num_experts))
    read = sum(op.matrix_bytes + op.vector_bytes for op in cost.ops if op.op != "embedding")
    stored = named_tensors(empty_weights(spec, torch.device("meta")), spec)
    assert read == sum(tensor.nbytes for name, tensor in stored.items() if name != "model.embed_tokens.weight")


@pytest.mark.parametrize(("spec", "billions"), [(BIG, "5.13"), (SMALL, "3.61")])
def test_token_multiplies_each_active_parameter_once(spec, billions):
    assert same_figure(step_cost(spec, StepShape()).flops / 2 / 1e9, billions)


def test_flops_grow_with_tokens_and_bytes_do_not():
    one, four = (step_cost(ODD, StepShape(tokens=tokens, distinct_experts=6)) for tokens in (1, 4))
    for before, after in zip(one.ops, four.ops, strict=True):
        if before.op != "attention":
            assert after.flops == 4 * before.flops
        assert after.matrix_bytes == before.matrix_bytes


def test_batch_multiplies_the_flops_whatever_its_experts():
    assert step_cost(BIG, StepShape(requests=8)).flops == pytest.approx(
        8 * step_cost(BIG, StepShape()).flops, rel=1e-12
    )


def test_each_token_reads_its_row_of_the_embedding():
    assert op_of(step_cost(BIG, StepShape(requests=3, tokens=2)), "embedding", "rows").bytes == 6 * 2880 * 2


def test_rows_of_groups_are_rounded_up():
    """80 values per row are 3 groups of 32, the last one half empty."""
    assert op_of(step_cost(ODD, StepShape(dense="mxfp4")), "linear", "o").matrix_bytes == 3 * 96 * 3 * 17
    assert op_of(step_cost(ODD, StepShape(dense="q8_0")), "linear", "o").matrix_bytes == 3 * 96 * 3 * 34


def test_window_layers_read_no_more_than_their_window():
    """Layers see 8, all and 8 tokens, the current one included; a token has 40 keys and 40 values."""
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


def test_costs_are_those_of_network_ops():
    names = {op.name for op in ALL_OPS}
    assert {op.op for op in step_cost(BIG, StepShape()).ops} - {"embedding"} <= names


def test_mxfp4_layers_are_counted_separately():
    plain, packed = step_cost(BIG, StepShape()), step_cost(BIG, StepShape(dense="mxfp4"))
    parts = [step_cost(BIG, StepShape(mxfp4_layers=(part,))) for part in ("qkv", "o", "lm_head")]
    saved = [plain.bytes - part.bytes for part in parts]
    assert min(saved) > 0 and sum(saved) == pytest.approx(plain.bytes - packed.bytes)
    assert step_cost(BIG, StepShape(mxfp4_layers=("qkv", "o", "lm_head"))).bytes == packed.bytes


def test_predictions_list_their_assumptions():
    gb10 = assumptions(step_cost(BIG, StepShape()), GPUS["gb10"], 0.85)
    assert any("not yet run on GB10" in line for line in gb10) and any("15 % of the step" in line for line in gb10)
    assert any("independent routing" in line for line in gb10)
    h200 = assumptions(step_cost(BIG, StepShape(distinct_experts=4)), GPUS["h200"], 0.5)
    assert not any("not yet run" in line or "independent" in line for line in h200)
    assert any("4.0 distinct experts per layer, given" in line for line in h200)
    assert not any("measured read" in line for line in assumptions(step_cost(BIG, StepShape()), GPUS["b200"], 0.5))


def test_prediction_is_a_share_of_the_ceiling_and_marked_if_the_gpu_never_ran():
    cost = step_cost(BIG, StepShape(dense="mxfp4"))
    nominal, read = predict(cost, GPUS["gb10"], 0.85)
    assert (nominal.bandwidth, read.bandwidth) == ("nominal", "measured read")
    assert (round(read.predicted_tok_s), round(nominal.predicted_tok_s)) == (72, 84)
    assert read.predicted_tok_s == pytest.approx(0.85 * read.ceiling_tok_s)
    assert read.step_ms == pytest.approx(1e3 / read.ceiling_tok_s)
    assert nominal.status == read.status == "predicted, not yet run" == NOT_RUN
    assert [prediction.status for prediction in predict(cost, GPUS["h200"], 1)] == ["predicted", "predicted"]


# model, dense, GPU, published tok/s of one request: none beats the memory
PUBLISHED = [
    (BIG, "mxfp4", "gb10", 60.7), (BIG, "q8_0", "gb10", 58.7), (BIG, "bf16", "gb10", 52.0),
    (SMALL, "q8_0", "gb10", 83.4), (BIG, "bf16", "h100", 212.0), (SMALL, "bf16", "h100", 305.0),
    (SMALL, "q8_0", "5090", 298.0),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "dense", "gpu", "tok_s"), PUBLISHED)
def test_published_speeds_lie_below_the_nominal_ceiling(spec, dense, gpu, tok_s):
    assert step_cost(spec, StepShape(dense=dense)).share(tok_s, GPUS[gpu].nominal_gb_s) < 1


def test_published_speeds_have_the_order_of_their_ceilings():
    ordered = sorted(PUBLISHED, key=lambda row: row[-1])
    ceilings = [
        step_cost(spec, StepShape(dense=dense)).tok_s(GPUS[gpu].nominal_gb_s) for spec, dense, gpu, _ in ordered
    ]
    assert ceilings == sorted(ceilings)


def test_shares_of_published_speeds_match_the_text():
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
        (lambda: predict(step_cost(BIG, StepShape()), GPUS["gb10"], 0), "share = 0: must be above 0"),
        (lambda: find_gpu("tpu"), "there is no GPU 'tpu' in the table; it has gb10, h100"),
    ],
)
def test_impossible_step_is_an_error_that_names_the_value(make, message):
    with pytest.raises(RooflineError, match=message):
        make()
