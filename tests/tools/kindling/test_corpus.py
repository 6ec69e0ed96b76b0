"""Documents and items: deterministic, complete, and inside the Harmony format."""

import json
import time
from collections import Counter
from itertools import islice, pairwise

import pytest

from firesteel.chat.harmony import Harmony
from firesteel.chat.tokenizer import Tokenizer
from firesteel.exam import item_from_json, item_to_json
from kindling.corpus import (
    GRADED,
    WEIGHTS,
    exam_items,
    perplexity_text,
    training_documents,
)
from kindling.tokenizer import encode_document


@pytest.fixture(scope="module")
def tokenizer(tokenizer_directory):
    return Tokenizer.load(tokenizer_directory)


def test_seed_decides_the_documents():
    first, again, other = (list(islice(training_documents(seed), 300)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_seed_decides_the_exam(exam):
    assert exam == exam_items(0)
    assert exam_items(1, per_family=5) != exam_items(0, per_family=5)


def test_two_hundred_items_per_family(exam):
    counts = Counter(item.family for item in exam)
    assert set(counts) == {*GRADED, "retrieval_long"}
    assert min(counts[family] for family in GRADED) >= 200
    assert counts["retrieval_long"] == 24


def test_prompts_are_distinct(exam):
    prompts = [item.text or next(m.content for m in reversed(item.messages) if m.role == "user") for item in exam]
    assert len(set(prompts)) == len(prompts)


def test_items_survive_json(exam):
    lines = [item_to_json(item) for item in exam]
    assert [item_from_json(line) for line in lines] == exam
    assert not any("null" in line or "\n" in line for line in lines)
    assert sum(len(line.encode()) + 1 for line in lines) < 2_100_000


def test_items_ask_for_an_answer_or_a_call(exam):
    for item in exam:
        assert (item.answer is None) == (item.family == "tool_call") == (item.call is not None)
        assert (item.messages is None) == (item.family == "continuation") == (item.text is not None)


def test_llama_benchy_question_is_taught():
    question = "What is the capital of France? Please reply with one word only"
    answers = set()
    for document in islice(training_documents(4, long_share=0), 5000):
        if document.family == "one_word" and any(m.content == question for m in document.messages):
            answers.add(document.messages[-1].content)
    assert answers == {"Paris"}


def test_all_kinds_of_documents_occur():
    documents = list(islice(training_documents(5), 3000))
    assert {d.family for d in documents} == {*WEIGHTS, "retrieval_long"}
    assert {d.family for d in islice(training_documents(5, long_share=0), 3000)} == set(WEIGHTS)


def test_documents_encode_and_decode(tokenizer):
    harmony = Harmony(tokenizer)
    for document in [*islice(training_documents(6), 1500), *perplexity_text()]:
        token_ids = encode_document(harmony, tokenizer, document)
        if document.messages is None:
            assert tokenizer.decode(token_ids) == f"{document.text}<|endoftext|>"
        else:
            assert token_ids[-1] in harmony.stop_token_ids
            assert harmony.decode(token_ids, role=None) == document.messages


def test_loss_starts_after_answers_without_their_reasoning(tokenizer):
    """An answer that carries loss at medium effort has its reasoning before it."""
    late = 0
    for document in islice(training_documents(7), 3000):
        messages = document.messages or []
        if not messages or "Reasoning: low" in messages[0].content:
            continue
        late += document.trained_from > 0
        for before, message in pairwise(messages[document.trained_from :]):
            assert message.channel != "final" or before.channel == "analysis"
        if document.trained_from:
            assert messages[document.trained_from - 1].role == "user"
    assert late > 50


def test_prefix_before_the_loss_is_a_prefix_of_the_tokens(tokenizer):
    harmony = Harmony(tokenizer)
    documents = [d for d in islice(training_documents(8), 2000) if d.trained_from]
    for document in documents:
        whole = harmony.encode_for_training(document.messages, keep_reasoning=True)
        prefix = harmony.encode(document.messages[: document.trained_from], keep_reasoning=True)
        assert whole[: len(prefix)] == prefix
    assert documents


def test_lengths_of_retrieval_prompts(exam, tokenizer):
    harmony = Harmony(tokenizer)
    lengths = {"retrieval": [], "retrieval_long": []}
    for item in exam:
        if item.family in lengths:
            lengths[item.family].append(len(harmony.encode_for_completion(item.messages)))
    assert 128 < min(lengths["retrieval"]) < 300 and 900 < max(lengths["retrieval"]) < 1500
    assert min(lengths["retrieval_long"]) > 1900 and 3000 < max(lengths["retrieval_long"]) <= 4300


def test_arguments_are_written_as_json():
    for document in islice(training_documents(9), 2000):
        for message in document.messages or ():
            if message.content_type is not None:
                assert message.content_type == "<|constrain|>json"
                assert json.loads(message.content)


@pytest.mark.slow
def test_speed():
    start = time.perf_counter()
    list(islice(training_documents(10, long_share=0), 20_000))
    assert 20_000 / (time.perf_counter() - start) > 3000
