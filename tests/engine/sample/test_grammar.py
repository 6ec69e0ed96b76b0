"""Masks of grammars over the tiny checkpoint's vocabulary, in which a token is a byte."""

import json
import sys
import threading
import time

import pytest
import torch

from firesteel.engine.sample import grammar
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


def test_cache_is_bounded_by_the_work_in_it(checkpoint, monkeypatch):
    """128 grammars of any size were kept: gigabytes of compiled schemas, and of states that masks add to them."""
    grammars, texts = Grammars.of(checkpoint), [f'start: "{number}"' for number in range(4)]
    for text in texts:
        grammars.mask(text)
    assert list(grammars._cached) == texts
    grammars._cached[texts[1]].count_mask(grammar.MOST_COST_S)
    grammars.mask(texts[3])
    assert list(grammars._cached) == [texts[2], texts[3]], "the work of masks counts, the oldest go first"
    monkeypatch.setattr(grammar, "CACHE_SIZE", 1)
    grammars.mask(texts[0])
    assert list(grammars._cached) == [texts[0]]


def test_expensive_grammar_is_cached_while_it_is_the_last(grammars):
    first = grammars._find(WORDS)
    first.count_mask(grammar.MOST_COST_S + 1)
    assert grammars._find(WORDS) is first and list(grammars._cached) == [WORDS]
    first.retire()
    assert grammars._find(WORDS) is not first


class SlowMatcher:
    """A matcher whose masks take longer than a step may wait, each time the gate was opened."""

    def __init__(self, matcher, gate):
        self.matcher, self.gate = matcher, gate

    def __getattr__(self, name):
        return getattr(self.matcher, name)

    def deep_copy(self):
        return SlowMatcher(self.matcher.deep_copy(), self.gate)

    def unsafe_compute_mask_ptr(self, *where):
        assert self.gate.acquire(timeout=10)
        until = time.thread_time() + 2 * grammar.SLOW_S
        while time.thread_time() < until:
            pass
        self.matcher.unsafe_compute_mask_ptr(*where)


def test_slow_mask_is_computed_by_a_thread(checkpoint):
    grammars, gate = Grammars.of(checkpoint), threading.Semaphore(1)
    compiled = grammars._find(WORDS)
    compiled.matcher = SlowMatcher(compiled.matcher, gate)
    bound = grammars.bind(Request(request_id="r", token_ids=[1], params=SamplingParams(grammar=WORDS)))
    assert compiled.is_slow and bound.mask.is_ready([]), "the first mask is part of binding"
    assert allowed(bound.mask, "") == [ord("a")]
    assert not bound.mask.is_ready(b"a") and not bound.mask.is_ready(b"a")
    gate.release()
    deadline = time.monotonic() + 10
    while not bound.mask.is_ready(b"a"):
        assert time.monotonic() < deadline
    assert allowed(bound.mask, "a") == allowed(bound.mask, "a") == [ord("b"), ord("c")]
    for _ in range(20):
        compiled.count_mask(0.0)
    assert not compiled.is_slow and bound.mask.is_ready(b"ab"), "masks that became fast are computed by the step"


def test_grammar_that_reads_tokens_too_slowly_leaves_nothing_to_draw(checkpoint, monkeypatch):
    """Reading a token of an ambiguous grammar held the GIL longer with every token, and all streams with it."""
    mask = Grammars.of(checkpoint).mask("start: a\na: a a | /[a-z]/")
    assert allowed(mask, "a")
    monkeypatch.setattr(grammar, "MOST_READ_S", -1.0)  # every token is too slow
    assert not allowed(mask, "aa")
    monkeypatch.undo()
    assert not allowed(mask, "aaa")
    assert allowed(mask, "a"), "shorter texts are read anew"


def test_others_decode_while_a_mask_is_computed(llm):
    """One slow mask held up every request of the step."""
    grammars, gate = Grammars.of(llm.directory), threading.Semaphore(1)
    compiled = grammars._find(WORDS)
    compiled.matcher = SlowMatcher(compiled.matcher, gate)
    held = Request(request_id="held", token_ids=[1, 2], params=SamplingParams(grammar=WORDS, max_tokens=2))
    free = Request(request_id="free", token_ids=[1, 2], params=SamplingParams(max_tokens=9, ignore_eos=True))
    engine = llm.engine
    engine.submit(grammars.bind(held))
    engine.submit(free)
    outputs = []
    while len([output for output in outputs if output.request_id == "free"]) < 9:
        outputs += engine.step()
    assert len([output for output in outputs if output.request_id == "held"]) == 1, "its second mask is not ready"
    assert engine.step() == [] and engine.has_work
    gate.release()
    while engine.has_work:
        outputs += engine.step()
    tokens = [token for output in outputs if output.request_id == "held" for token in output.token_ids]
    assert bytes(tokens) in (b"ab", b"ac")


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
        SamplingParams(grammar=WORDS, max_tokens=5, temperature=5.0, seed=seed, stop_token_ids=(end,))
        for seed in range(40)  # about every fourth goes on to its last token, with the weights of any torch
    ]
    free = SamplingParams(max_tokens=9, ignore_eos=True)
    *held, other = llm.generate([[1, 2, 3]] * 41, [*params, free])
    for completion in held:
        text = bytes(token for token in completion.token_ids if token != end).decode()
        assert not text.replace("ab", "").replace("ac", "").removesuffix("a")
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == end else "length")
    assert {completion.finish_reason for completion in held} == {"stop", "length"}
    assert other.token_ids == llm.generate([[1, 2, 3]], free)[0].token_ids


def test_drafts_are_cut_where_the_grammar_refuses_them(grammars, end):
    mask = grammars.mask(WORDS)
    text, drafts = list(b"ab"), [*b"acab", end, ord("a")]
    assert mask.count_allowed(text, drafts) == 5
    assert mask.count_allowed(text, [ord("b")]) == 0
    assert mask.count_allowed([*text, end], [ord("a")]) == 0, "the text has ended"


def test_masks_along_drafts_are_those_of_the_texts(grammars):
    mask, drafts = grammars.mask(WORDS), list(b"abacab")
    for start in range(len(drafts) + 1):
        masks = mask.allowed_along(drafts[:start], drafts[start:])
        fresh = [grammars.mask(WORDS).allowed(drafts[:end]) for end in range(start, len(drafts) + 1)]
        assert [own.tolist() for own in masks] == [own.tolist() for own in fresh]
        assert allowed(mask, "abacab"[:start]) == fresh[0].nonzero().flatten().tolist(), "the state has not moved"


def test_drafts_beyond_the_end_of_a_grammar_leave_no_trace(grammars):
    """A token too many was taken back, since the matcher reads none after the grammar's end: none was allowed."""
    text = 'start: "ab" | "acb"'
    [end] = allowed(grammars.mask(text), "acb")
    mask, drafts = grammars.mask(text), [*b"acb", end]
    assert mask.count_allowed([], drafts) == 4
    assert [masked.nonzero().tolist() for masked in mask.allowed_along([], drafts)][3:] == [[[end]], [[end]]]
    assert allowed(mask, "a") == [ord("b"), ord("c")]
    assert allowed(mask, "ab") == [end], "the drafts were wrong"


def test_draft_that_is_read_too_slowly_spoils_no_other_text(grammars, monkeypatch):
    """If the last draft took too long and another token was drawn in its place, nothing was allowed after that."""
    mask = grammars.mask(WORDS)
    assert mask.count_allowed(list(b"ab"), list(b"ab")) == 2
    monkeypatch.setattr(grammar, "MOST_READ_S", -1.0)
    assert not mask.allowed_along(list(b"ab"), list(b"ab"))[-1].any()
    monkeypatch.undo()
    assert allowed(mask, "abac") == allowed(grammars.mask(WORDS), "abac")


def test_slow_grammar_takes_no_drafts(grammars, monkeypatch):
    mask = grammars.mask(WORDS)
    monkeypatch.setattr(grammar.CompiledGrammar, "is_slow", True)
    assert mask.count_allowed([], [ord("a")]) == 0
