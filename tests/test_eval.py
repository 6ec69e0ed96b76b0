"""Grading, counting, and perplexity against its definition."""

import json
import math

import pytest
import torch

from firesteel import LLM
from firesteel.chat.harmony import Harmony, Message
from firesteel.eval import Score, encode_documents, evaluate, grade, measure_perplexity, take, tally
from firesteel.exam import TEXT, ExamItem, read_items
from firesteel.types import Generation

USER = Message(role="user", content="?")


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


def generation(llm, *messages, finish_reason="stop"):
    """Returns the output of a model that answers with these messages."""
    harmony = Harmony(llm.tokenizer)
    prompt = harmony.encode_for_completion([USER])
    token_ids = harmony.encode_for_training([USER, *messages], keep_reasoning=True)[len(prompt) :]
    return Generation(token_ids=token_ids, text=llm.tokenizer.decode(token_ids), finish_reason=finish_reason)


def final(content):
    return Message(role="assistant", content=content, channel="final")


def call(name, content):
    return Message(
        role="assistant",
        content=content,
        channel="commentary",
        recipient=f"functions.{name}",
        content_type="<|constrain|>json",
    )


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ([final("Paris")], True),
        ([Message(role="assistant", content="hm", channel="analysis"), final("Paris")], True),
        ([final("Paris.")], False),
        ([Message(role="assistant", content="Paris", channel="analysis")], False),
        ([call("f", '{"a":1}')], False),
    ],
)
def test_answer_is_right_only_word_for_word_in_the_final_channel(kindling, said, right):
    item = ExamItem(family="x", messages=[USER], answer="Paris")
    assert grade(Harmony(kindling.tokenizer), item, generation(kindling, *said)) == right


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (call("f", '{"a": 1, "b": "x"}'), True),
        (call("f", '{"b":"x","a":1}'), True),
        (call("f", '{"a":2,"b":"x"}'), False),
        (call("g", '{"a":1,"b":"x"}'), False),
        (call("f", '{"a":1,'), False),
        (final('{"a":1,"b":"x"}'), False),
    ],
)
def test_call_is_right_by_name_and_values(kindling, said, right):
    item = ExamItem(family="x", messages=[USER], call={"name": "f", "arguments": {"a": 1, "b": "x"}})
    assert grade(Harmony(kindling.tokenizer), item, generation(kindling, said)) == right


def test_answer_that_does_not_stop_by_itself_is_wrong(kindling):
    item = ExamItem(family="x", messages=[USER], answer="Paris")
    cut = generation(kindling, final("Paris"), finish_reason="length")
    assert not grade(Harmony(kindling.tokenizer), item, cut)


def test_tokens_outside_the_format_are_wrong_not_an_error(kindling):
    item = ExamItem(family="x", messages=[USER], answer="Paris")
    for token_ids in ([], [5, 6, 7], [kindling.tokenizer.special_ids["<|message|>"]] * 3):
        noise = Generation(token_ids=token_ids, text="", finish_reason="stop")
        assert not grade(Harmony(kindling.tokenizer), item, noise)


def test_plain_text_is_right_if_it_continues_with_the_answer(kindling):
    item = ExamItem(family="x", text="The capital of France is", answer=" Paris.")
    for text, right in ((" Paris. More.", True), (" Rome.", False), ("Paris.", False)):
        said = Generation(token_ids=[1], text=text, finish_reason="length")
        assert grade(Harmony(kindling.tokenizer), item, said) == right


def test_limit_counts_by_family_and_tally_keeps_the_order():
    items = [ExamItem(family=name) for name in "abababc"]
    kept = take(items, 2)
    assert [item.family for item in kept] == ["a", "b", "a", "b", "c"]
    scores = tally(kept, [True, False, True, True, False])
    assert scores == [
        Score(family="a", items=2, right=2),
        Score(family="b", items=2, right=1),
        Score(family="c", items=1, right=0),
    ]


def test_perplexity_equals_its_definition_on_the_logits(kindling):
    text = read_items(TEXT)[:3]
    perplexity, count = measure_perplexity(kindling, text)
    harmony = Harmony(kindling.tokenizer)
    losses = []
    for item in text:
        ids = harmony.encode_for_training(item.messages, keep_reasoning=True)
        losses.append(
            torch.nn.functional.cross_entropy(kindling.logits(ids)[:-1], torch.tensor(ids[1:]), reduction="sum")
        )
        count -= len(ids) - 1
    assert count == 0
    assert math.isclose(perplexity, math.exp(sum(losses) / measure_perplexity(kindling, text)[1]), rel_tol=1e-4)


@pytest.mark.slow
def test_part_of_the_exam_is_passed(kindling, monkeypatch):
    monkeypatch.setattr("firesteel.eval.read_items", lambda path: read_items(path)[: 12 if path == TEXT else None])
    report = evaluate(kindling, limit=1)
    assert report.overall.items == 15 and report.overall.share >= 0.85
    assert report.perplexity < 2.0 and report.perplexity_tokens > 50
    json.dumps(report.as_dict())


def test_limit_holds_for_the_texts_of_the_perplexity_too(kindling, monkeypatch):
    asked = []
    monkeypatch.setattr("firesteel.eval.grade_all", lambda llm, items, progress: [True] * len(items))
    monkeypatch.setattr("firesteel.eval.measure_perplexity", lambda llm, texts: (1.0, asked.append(len(texts))))
    for limit in (3, None):
        evaluate(kindling, limit=limit)
    assert asked == [3, len(read_items(TEXT))]


@pytest.mark.slow
def test_report_has_the_format_of_keys_and_values_and_the_clipped_count(monkeypatch):
    monkeypatch.setattr("firesteel.eval.read_items", lambda path: read_items(path)[:2])
    llm = LLM(device="cpu", kv_dtype="fp8")
    llm.model.weights.layers[0].qkv_bias[-1] = 1000.0  # a value that fp8 cannot hold
    settings = evaluate(llm, limit=1).settings
    assert (settings["kv_dtype"], settings["kv_scales"]) == ("fp8", "")
    assert settings["saturated_values"] >= sum(len(ids) for ids in encode_documents(llm, read_items(TEXT)[:2]))
