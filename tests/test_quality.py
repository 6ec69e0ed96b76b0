"""Comparison of precisions: changed, lost and gained answers, and the record."""

from dataclasses import replace

from firesteel.exam import ExamItem
from firesteel.kernels.operands import activation
from firesteel.measure.record import Record
from firesteel.quality import MEASURED, PRECISIONS, Answers, compare, examine

FIRST = Answers(
    precision="as shipped",
    token_ids=[[1], [2], [3], [4]],
    marks=[True, True, False, False],
    families={"a": 2},
    perplexity=2.0,
    perplexity_tokens=9,
    seconds=1.0,
)


def test_answers_are_compared_token_for_token_and_mark_for_mark():
    other = replace(FIRST, token_ids=[[1], [5], [6], [7]], marks=[True, False, True, False], perplexity=2.1)
    quality = compare(other, FIRST)
    assert (quality.items, quality.right, quality.changed, quality.lost, quality.gained) == (4, 2, 3, 1, 1)
    assert abs(quality.perplexity_change - 0.05) < 1e-12 and quality.share == 0.5


def test_precision_compared_with_itself_has_no_changes():
    quality = compare(FIRST, FIRST)
    assert (quality.changed, quality.lost, quality.gained, quality.perplexity_change) == (0, 0, 0, 0)


def test_every_choice_of_dense_layers_and_activations_is_there():
    chosen = {
        tuple(PRECISIONS[name].get(setting, "") for setting in ("mxfp4_layers", "activation")) for name in MEASURED
    }
    assert chosen == {(layers, kind) for layers in ("", "qkv,o,lm_head") for kind in ("", "mxfp8", "mxfp4")}
    emulated = {PRECISIONS[name]["activation"] for name in PRECISIONS if name not in MEASURED}
    assert emulated == set(activation.EMULATED)


def test_error_of_emulated_mxfp6_falls_with_each_bit_of_mantissa(open_llm):
    exact = open_llm(**PRECISIONS["as shipped"]).logits([1, 2, 3])
    errors = {}
    for name in ("MXFP6 E2M3 activations", "MXFP6 E3M2 activations", "MXFP4 activations"):
        llm = open_llm(**PRECISIONS[name])
        errors[name] = float((llm.logits([1, 2, 3]) - exact).norm())
        rounded = {ran.activation for ran in llm.ledger().entries if ran.op == "moe_matmul"}
        assert rounded == {PRECISIONS[name]["activation"]}
    assert 0 < errors["MXFP6 E2M3 activations"] < errors["MXFP6 E3M2 activations"] < errors["MXFP4 activations"]


def test_answers_and_marks_come_from_the_model(open_llm, tmp_path):
    items = [ExamItem(family="a", text="ab", answer=answer) for answer in ("", "?", "")]
    texts = [ExamItem(family="b", text="some text")]
    plain, packed = (
        (llm, examine(llm, name, items, texts))
        for name in ("as shipped", "all MXFP4")
        for llm in [open_llm(**PRECISIONS[name])]
    )
    assert plain[1].marks == [True, False, True] and plain[1].perplexity_tokens == len("some text") - 1
    quality = compare(packed[1], plain[1])
    assert quality.perplexity_change != 0 and quality.changed == 3
    record = Record.load(quality.record(packed[0], 5).save(tmp_path))
    assert record.median == quality.perplexity and record.parameters["changed"] == 3
    assert record.parameters["limit"] == 5 and record.config["kernels"]["mxfp4_layers"] == "qkv,o,lm_head"
