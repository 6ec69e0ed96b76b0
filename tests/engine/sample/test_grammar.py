"""Masks of grammars over the tiny checkpoint's vocabulary, in which a token is a byte."""

import json
import sys

import pytest
import torch

from firesteel.engine.sample.grammar import Grammars
from firesteel.errors import RequestError, UserError
from firesteel.types import Request, SamplingParams

pytest.importorskip("llguidance")

WORDS = 'start: ("ab" | "ac")+ <|end|>'
VOCABULARY = 272


@pytest.fixture(scope="module")
def grammars(checkpoint):
    return Grammars.of(checkpoint)


@pytest.fixture(scope="module")
def end(llm):
    return llm.tokenizer.special_ids["<|end|>"]


def allowed(mask, text):
    mask_now = mask.allowed(list(text.encode()))
    assert mask_now.shape == (VOCABULARY,) and mask_now.dtype == torch.bool
    return mask_now.nonzero().flatten().tolist()


def test_mask_follows_the_tokens(grammars, end):
    mask = grammars.mask(WORDS)
    assert allowed(mask, "") == [ord("a")]
    assert allowed(mask, "a") == [ord("b"), ord("c")]
    assert allowed(mask, "ab") == [ord("a"), end]
    assert allowed(mask, "abac") == [ord("a"), end]
    assert allowed(mask, "abac") == [ord("a"), end]


def test_mask_restarts_if_tokens_were_removed(grammars):
    mask = grammars.mask(WORDS)
    assert allowed(mask, "aba") == allowed(mask, "a") == [ord("b"), ord("c")]
    assert allowed(mask, "") == [ord("a")]


def test_requests_with_the_same_grammar_are_independent(grammars):
    one, other = grammars.mask(WORDS), grammars.mask(WORDS)
    assert allowed(one, "a") != allowed(other, "")
    assert allowed(grammars.mask(WORDS), "") == [ord("a")]


def test_completed_grammar_allows_the_end_of_the_text(grammars, end, llm):
    mask = grammars.mask(WORDS)
    text_end = llm.tokenizer.special_ids["<|endoftext|>"]
    for more in ([], [text_end], [text_end, text_end]):
        assert mask.allowed([*b"ab", end, *more]).nonzero().flatten().tolist() == [text_end]


def test_tokens_outside_the_grammar_leave_nothing_to_draw(grammars):
    assert allowed(grammars.mask(WORDS), "x") == []


def test_ids_without_a_token_are_never_allowed(checkpoint):
    mask = Grammars(checkpoint, VOCABULARY + 50).mask("start: /(.|\n)*/")
    assert mask.allowed([]).shape == (VOCABULARY + 50,)
    assert not mask.allowed([])[VOCABULARY:].any()


def test_invalid_grammar_is_refused(grammars):
    with pytest.raises(RequestError, match=r"the grammar cannot be used: .*no_such_rule"):
        grammars.mask("start: no_such_rule")
    with pytest.raises(RequestError, match="unknown special token"):
        grammars.mask("start: <|no_such_token|>")


def test_what_passed_a_trial_has_stack_enough(grammars):
    """The compiler recurses along references; a trial has half the stack."""
    links = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "null"}]} for i in range(1200)}
    schema = {"$defs": {**links, "d1200": {"type": "string"}}, "$ref": "#/$defs/d0"}
    assert allowed(grammars.mask(f"start: %json {json.dumps(schema)}"), "") == [ord('"'), ord("n")]


def test_panic_of_the_library_is_a_short_refusal(grammars):
    with pytest.raises(RequestError, match="cannot be used") as caught:
        grammars.mask('start: %json {"type": "string", "maxLength": "' + "é" * 60 + '"}')
    assert len(str(caught.value)) < 600


def test_request_without_a_grammar_needs_no_tokenizer(tmp_path):
    grammars = Grammars(tmp_path, VOCABULARY)
    with grammars.preparing():
        pass
    free = Request(request_id="r", token_ids=[1], params=SamplingParams())
    assert grammars.bind(free) is free
    with pytest.raises(UserError, match=r"cannot use the checkpoint's tokenizer: .*tokenizer\.json"):
        grammars.bind(Request(request_id="r", token_ids=[1], params=SamplingParams(grammar=WORDS)))


def test_missing_package_is_named(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match="pip install llguidance"):
        Grammars.of(checkpoint).prepare()


def test_engine_draws_what_the_grammar_allows(llm, end):
    params = [
        SamplingParams(grammar=WORDS, max_tokens=9, temperature=5.0, seed=seed, stop_token_ids=(end,))
        for seed in range(20)
    ]
    free = SamplingParams(max_tokens=9, ignore_eos=True)
    *held, other = llm.generate([[1, 2, 3]] * 21, [*params, free])
    for completion in held:
        text = bytes(token for token in completion.token_ids if token != end).decode()
        assert not text.replace("ab", "").replace("ac", "").removesuffix("a")
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == end else "length")
    assert {completion.finish_reason for completion in held} == {"stop", "length"}
    assert other.token_ids == llm.generate([[1, 2, 3]], free)[0].token_ids
