"""Constraints of clients match whole answers, in a chat and as plain text."""

import re

import pytest

from firesteel.chat.constraint import constrain_choice, constrain_grammar, constrain_regex, is_gbnf
from firesteel.chat.grammar import BLANKS, build_grammar, build_text_grammar, constrain_json
from firesteel.chat.tokenizer import Tokenizer
from firesteel.engine.sample.grammar import Grammars
from firesteel.hub import BUILT_IN

llguidance = pytest.importorskip("llguidance")
HEADER = "<|channel|>final<|message|>"
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def takes(grammar, text):
    """Returns whether a grammar takes exactly this text; its special tokens are plain text in a trial."""
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar.trial, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


CASES = [
    (constrain_regex(r"^\d{2}/[a-c]$", name="x"), ["12/a"], ["12/d", "1/a", "12/a$"]),
    (constrain_regex("a\nb\\\nc", name="x"), ["a\nb\nc"], ["abc"]),
    (constrain_regex(r"\/\\$", name="x"), ["/\\"], ["/"]),
    (constrain_regex(r"a\$", name="x"), ["a$"], ["a"]),
    (constrain_choice(["größe", 'a "b"\n', "<|end|>"], name="x"), ["größe", 'a "b"\n', "<|end|>"], ["a", ""]),
    (constrain_grammar('start: B " " B\nB: /[xy]+/', name="x"), ["x yx"], ["x ", "xy"]),
    (constrain_json(NUMBER, name="x"), ['{"a": 1}', '{\n  "a":1}'], ['{"a": "1"}']),
    (constrain_json(NUMBER, name="x", blanks=""), ['{"a":1}'], ['{"a": 1}']),
]


@pytest.mark.parametrize(("constraint", "right", "wrong"), CASES, ids=lambda value: getattr(value, "rule", "")[:20])
def test_constraint_matches_whole_answers(constraint, right, wrong):
    chat, text = build_grammar(constraint=constraint), build_text_grammar(constraint)
    for answer in right:
        assert takes(chat, f"{HEADER}{answer}<|return|>") and takes(text, f"{answer}<|endoftext|>"), answer
    for answer in wrong:
        assert not takes(chat, f"{HEADER}{answer}<|return|>") and not takes(text, f"{answer}<|return|>"), answer


def test_reasoning_before_a_constrained_answer_is_free():
    tokenizer = Tokenizer.load(BUILT_IN)
    grammar = build_grammar(constraint=constrain_choice(["a"], name="x"))
    thought = "<|channel|>analysis<|message|>Any text.<|end|><|start|>assistant"
    token_ids = [
        token
        for part in re.split(r"(<\|\w+\|>)", thought + HEADER)
        for token in ([tokenizer.special_ids[part]] if part in tokenizer.special_ids else tokenizer.encode(part))
    ]
    mask = Grammars(BUILT_IN, tokenizer.vocab_size).mask(grammar.text)
    for count, token in enumerate(token_ids):
        assert mask.allowed(token_ids[:count])[token], tokenizer.decode(token_ids[: count + 1])
    allowed = mask.allowed(token_ids).nonzero().flatten().tolist()
    assert [tokenizer.decode([token]) for token in allowed] == ["a"]


def test_whitespace_pattern_is_used():
    grammar = build_text_grammar(constrain_json(NUMBER, name="x", blanks="_"))
    assert takes(grammar, '{"a":_1}<|return|>') and not takes(grammar, '{"a": 1}<|return|>') and BLANKS != "_"


def test_gbnf_is_told_from_lark():
    assert is_gbnf('# comment\nroot ::= "a"') and is_gbnf('my-rule::= "a"')
    assert not is_gbnf('start: "a ::= b"') and not is_gbnf("start: /a/")
