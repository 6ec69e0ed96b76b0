"""Grammars restrict a turn to what the client asked for, in both vocabularies."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

import firesteel
from firesteel.chat.grammar import JSON_OBJECT, grammar_for
from firesteel.chat.harmony import Harmony, ResponseFormat
from firesteel.chat.stream import read_turn
from firesteel.chat.tokenizer import Tokenizer
from firesteel.chat.tools import TextRule, Tool
from firesteel.engine.sample.grammar import Grammars
from firesteel.errors import RequestError

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

KINDLING = Path(firesteel.__file__).parent / "kindling"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
WEATHER = Tool(name="get_weather", description="", parameters=CITY)
STRICT = Tool(name="get_time", description="", parameters=CITY, strict=True)
NODE = {"type": "object", "properties": {"of": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
NODE |= {"required": ["of"], "additionalProperties": False}
SCHEMAS = [
    CITY,
    {"type": "object"},
    {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["größe", "日本", 7]}},
                "required": ["name", "kind"],
                "additionalProperties": False,
            },
            "ok": {"type": ["boolean", "null"]},
            "count": {"type": "integer", "minimum": -3, "maximum": 900},
        },
        "required": ["place", "ok", "count"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 4},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"]},
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
]


class Turns:
    """Grammars compiled for one vocabulary."""

    def __init__(self, directory: Path) -> None:
        self.harmony = Harmony(Tokenizer.load(directory))
        self.grammars = Grammars(directory, self.harmony.tokenizer.vocab_size)
        encode, special = self.harmony.tokenizer.encode, self.harmony.tokenizer.special_ids
        wanted = ['"', "}", "]", '"}', "1", ",", "é", "日本"]
        self.favourites = np.array([encode(text)[0] for text in wanted] + list(special.values()))

    def tokens(self, text: str) -> list[int]:
        special, encode = self.harmony.tokenizer.special_ids, self.harmony.tokenizer.encode
        parts = re.split(r"(<\|\w+\|>)", text)
        return [token for part in parts for token in ([special[part]] if part in special else encode(part))]

    def takes(self, grammar: str, text: str) -> bool:
        """Returns whether the grammar allows this text as a complete turn."""
        mask, token_ids = self.grammars.mask(grammar), self.tokens(text)
        if not all(mask.allowed(token_ids[:count])[token] for count, token in enumerate(token_ids)):
            return False
        last = np.flatnonzero(mask.allowed(token_ids).numpy())
        return last.tolist() == [self.harmony.tokenizer.special_ids["<|endoftext|>"]]

    def walk(self, grammar: str, seed: int) -> list[int]:
        """Draws random allowed tokens, preferring those that end the turn."""
        rng, mask, token_ids = random.Random(seed), self.grammars.mask(grammar), []
        stops = self.harmony.stop_token_ids
        while not token_ids or token_ids[-1] not in stops:
            allowed = np.flatnonzero(mask.allowed(token_ids).numpy())
            liked = np.intersect1d(allowed, self.favourites)
            token_ids.append(int(rng.choice(liked if len(liked) and rng.random() < 0.6 else allowed)))
            assert len(token_ids) < 3000, self.harmony.tokenizer.decode(token_ids)
        return token_ids


@pytest.fixture(scope="module")
def kindling():
    return Turns(KINDLING)


@pytest.fixture(scope="module")
def public(o200k_directory):
    return Turns(o200k_directory)


def test_free_turns_need_no_grammar():
    assert grammar_for() is None
    assert grammar_for(tools=[WEATHER]) is None
    assert grammar_for(parallel_tool_calls=False) is None
    assert grammar_for(tool_choice="none") is not None


THOUGHT = "<|channel|>analysis<|message|>Hm,\n<b> 日本?<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bonn"}'
BEFORE = ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Bonn"}<|call|>'
FINAL = "<|channel|>final<|message|>{}<|return|>"
TEXT = FINAL.format("Yes.")


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["kindling", "public"])
def test_turns_are_allowed_as_requested(vocabulary, request):
    turns = request.getfixturevalue(vocabulary)
    asked = {
        "none": grammar_for(tools=[WEATHER], tool_choice="none"),
        "required": grammar_for(tools=[WEATHER, STRICT], tool_choice="required"),
        "one": grammar_for(tools=[WEATHER, STRICT], function="get_weather", parallel_tool_calls=False),
        "strict": grammar_for(tools=[WEATHER, STRICT]),
        "json": grammar_for(response_format=JSON_OBJECT),
        "city": grammar_for(response_format=ResponseFormat(name="c", schema=CITY), tools=[WEATHER]),
    }
    other = CALL.replace("weather", "time")
    loose = CALL.replace("Bonn", 'Bonn", "x": "y')
    expected = {
        THOUGHT + TEXT: {"none", "strict"},
        TEXT: {"none", "strict"},
        THOUGHT * 2 + CALL + "<|call|>": {"required", "one", "strict", "city"},
        THOUGHT * 3 + CALL + "<|call|>": {"strict", "city"},
        THOUGHT.replace("analysis", "commentary") + CALL + "<|call|>": {"required", "one", "strict"},
        BEFORE: {"required", "one", "strict", "city"},
        other + "<|call|>": {"required", "strict"},
        CALL + "<|end|><|start|>assistant" + other + "<|call|>": {"required", "strict"},
        CALL.replace("weather", "other") + "<|call|>": set(),
        loose + "<|call|>": {"strict", "city"},
        loose.replace("weather", "time") + "<|call|>": set(),
        CALL.replace("{", "[") + "<|call|>": set(),
        CALL + "<|return|>": set(),
        FINAL.format('{"a": [1, {"é": null}]}'): {"none", "strict", "json"},
        THOUGHT + FINAL.format('{\n  "city": "Bonn"\n}'): {"none", "strict", "json", "city"},
        FINAL.format('{"city": 3}'): {"none", "strict", "json"},
        FINAL.format('{"city": "Bonn"} and more'): {"none", "strict"},
        FINAL.format(""): {"none", "strict"},
        THOUGHT.replace("<|end|>", "<|return|>"): set(),
        "Yes.": set(),
    }
    for text, names in expected.items():
        assert {name for name, grammar in asked.items() if turns.takes(grammar, text)} == names, text


def read_json(turns, token_ids):
    message = read_turn(turns.harmony, token_ids)
    assert message.tool_calls == []
    return json.loads(message.content)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_any_draw_follows_the_schema(kindling, schema):
    grammar = grammar_for(response_format=ResponseFormat(name="x", schema=schema, strict=True))
    for seed in range(20):
        answer = read_json(kindling, kindling.walk(grammar, seed))
        jsonschema.validate(answer, schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.slow
def test_any_draw_from_the_public_vocabulary_follows_the_schema(public):
    grammar = grammar_for(response_format=ResponseFormat(name="x", schema=SCHEMAS[2], strict=True))
    for seed in range(5):
        jsonschema.validate(read_json(public, public.walk(grammar, seed)), SCHEMAS[2])


@pytest.mark.parametrize("choice", [{"tool_choice": "required"}, {"function": "get_time"}], ids=str)
@pytest.mark.parametrize("parallel", [True, False])
def test_any_draw_calls_a_requested_function(kindling, choice, parallel):
    grammar = grammar_for(tools=[WEATHER, STRICT], parallel_tool_calls=parallel, **choice)
    counts = set()
    for seed in range(20):
        calls = read_turn(kindling.harmony, kindling.walk(grammar, seed)).tool_calls
        counts.add(len(calls))
        for call in calls:
            assert call.begin.name in ({"get_time"} if "function" in choice else {"get_time", "get_weather"})
            jsonschema.validate(json.loads(call.text), CITY)
    assert 0 not in counts and (len(counts) > 1) == (parallel and "function" not in choice)


PATCH = Tool(
    name="patch",
    description="",
    text=TextRule(
        syntax="lark", definition='start: "*** Begin" LF line+ "*** End"\nline: "+" /.*/ LF\n%import common.LF'
    ),
)
PATCHED = "<|channel|>commentary to=functions.patch<|message|>{}<|call|>"


def test_text_of_a_tool_follows_its_lark_grammar(kindling):
    grammar = grammar_for(tools=[WEATHER, PATCH])
    assert kindling.takes(grammar, PATCHED.format("*** Begin\n+a { b /* <b>\n+\n*** End"))
    assert not kindling.takes(grammar, PATCHED.format("*** Begin\n*** End"))
    assert not kindling.takes(grammar, PATCHED.format('{"input": "a"}'))
    assert kindling.takes(grammar, CALL + "<|call|>") and kindling.takes(grammar, TEXT)


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        (r"[0-9]+/[0-9]+", "1/2", "1-2"),
        (r"a\/b", "a/b", "ab"),
        ("a\nb", "a\nb", "a b"),
        (r"^a\$$", "a$", "^a$"),
        (r"\d+|none", "none", "x"),
    ],
)
def test_text_of_a_tool_follows_its_regular_expression(kindling, definition, good, bad):
    tool = Tool(name="patch", description="", text=TextRule(syntax="regex", definition=definition))
    grammar = grammar_for(tools=[tool], function="patch")
    assert kindling.takes(grammar, PATCHED.format(good))
    assert not kindling.takes(grammar, PATCHED.format(bad))


def test_free_text_of_a_tool_needs_a_grammar_only_if_a_call_is_required(kindling):
    tool = Tool(name="patch", description="", text=TextRule())
    assert grammar_for(tools=[tool]) is None
    grammar = grammar_for(tools=[tool], tool_choice="required")
    assert kindling.takes(grammar, PATCHED.format("any\ntext {")) and not kindling.takes(grammar, TEXT)


def test_grammar_of_a_tool_that_cannot_be_compiled_is_refused():
    tool = Tool(name="patch", description="", text=TextRule(syntax="lark", definition="start: missing"))
    with pytest.raises(RequestError, match="tool 'patch'"):
        grammar_for(tools=[tool])


def test_words_of_a_schema_are_not_part_of_the_grammar(kindling):
    odd = 'start: "x" {many} {channels} {last} <|return|> %json # //'
    schema = {
        "type": "object",
        "properties": {odd: {"const": odd}},
        "required": [odd],
        "additionalProperties": False,
    }
    grammar = grammar_for(response_format=ResponseFormat(name="x", schema=schema, strict=True))
    assert read_json(kindling, kindling.walk(grammar, 1)) == {odd: odd}


def test_lenient_schemas_are_enforced_as_far_as_possible(kindling):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3, "uniqueItems": True}
    grammar = grammar_for(response_format=ResponseFormat(name="x", schema=schema))
    assert kindling.takes(grammar, FINAL.format("[1, 1]")) and not kindling.takes(grammar, FINAL.format("[1, 3]"))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"tool_choice": "required"}, "required' without tools"),
        ({"tool_choice": "any"}, "auto, none, required"),
        ({"function": "f", "tools": [WEATHER]}, "names 'f', but tools are get_weather"),
        ({"tools": [Tool(name='a" b', description="")], "tool_choice": "required"}, "letters, digits"),
        ({"schema": {"type": "obj"}}, "^response_format: the JSON schema cannot be enforced: Invalid type: obj$"),
        ({"schema": {"type": "string", "not": {}}}, r'Unimplemented keys: \["not"\]'),
        ({"schema": {"type": "string", "pattern": "(?=a)"}}, "look-around.* is not supported$"),
        ({"schema": {"$ref": "http://example.org/x"}}, "not present in a registry"),
        (
            {"schema": {"$ref": "#"}},
            "cannot be enforced: no text satisfies it: it refers only to itself, or to special tokens$",
        ),
        ({"schema": {"anyOf": [{"$ref": "#"}]}}, "refers only to itself"),
        ({"schema": {"enum": [float("nan")]}}, "response_format: the schema is not JSON"),
        ({"schema": []}, "the schema must be an object, not list"),
        ({"tools": [Tool(name="f", description="", parameters={"type": 3}, strict=True)]}, "tool 'f': the JSON"),
    ],
    ids=str,
)
def test_request_that_cannot_be_enforced_is_refused_with_the_reason(asked, reason):
    if "schema" in asked:
        asked = {"response_format": ResponseFormat(name="x", schema=asked["schema"], strict=True)}
    with pytest.raises(RequestError, match=reason):
        grammar_for(**asked)


@pytest.mark.parametrize(
    ("depth", "reason"), [(100_000, "levels deep"), (500, "levels deep"), (127, "recursion limit")]
)
def test_schema_that_is_too_deep_is_refused(depth, reason):
    schema: dict = {}
    for _ in range(depth):
        schema = {"items": schema}
    with pytest.raises(RequestError, match=reason):
        grammar_for(response_format=ResponseFormat(name="x", schema=schema))
