"""Turns of Kindling: free, and restricted to formats and tools."""

import json

import pytest

from firesteel.chat.grammar import JSON_OBJECT
from firesteel.chat.harmony import Message, ResponseFormat
from firesteel.chat.tools import Tool
from firesteel.errors import RequestError
from firesteel.llm import LLM
from firesteel.types import SamplingParams
from tests.needed_packages import needs_packages

pytestmark = needs_packages("jsonschema", "llguidance")

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
PLACE = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["größe", "日本"]}},
            "required": ["name", "kind"],
            "additionalProperties": False,
        },
        "ok": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 3, "maximum": 900},
        "share": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    },
    "required": ["place", "ok", "count", "share"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"enum": ["Äpfel", "naïve", "寿司"]}, "minItems": 2, "maxItems": 3}
WEATHER = Tool(name="get_weather", description="Weather of a city", parameters=CITY)
TIME = Tool(name="get_time", description="Time of a city", parameters=CITY, strict=True)
QUESTION = "What is the capital of France?"
LONG = SamplingParams(max_tokens=300)


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


def ask(llm, question=QUESTION, params=LONG, **asked):
    return llm.chat([Message(role="user", content=question)], params, **asked)


def validate(text, schema):
    import jsonschema

    jsonschema.validate(json.loads(text), schema)


def test_turn_has_reasoning_and_content(kindling):
    answer = ask(kindling)
    assert answer.message.content == "The capital of France is Paris."
    assert "Paris" in answer.message.reasoning and answer.finish_reason == "stop"


@pytest.mark.parametrize("schema", [CITY, PLACE, LIST], ids=["city", "place", "list"])
def test_answer_follows_its_schema(kindling, schema):
    answer = ask(kindling, response_format=ResponseFormat(name="answer", schema=schema, strict=True))
    assert answer.finish_reason == "stop" and "Paris" in answer.message.reasoning
    validate(answer.message.content, schema)


def test_json_object_format_gives_a_json_object(kindling):
    answer = ask(kindling, response_format=JSON_OBJECT)
    assert isinstance(json.loads(answer.message.content), dict)


@pytest.mark.parametrize("choice", [{"tool_choice": "required"}, {"function": "get_time"}], ids=str)
def test_required_call_is_made_with_valid_arguments(kindling, choice):
    answer = ask(kindling, "What is 12 + 30?", tools=[WEATHER, TIME], **choice)
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and answer.message.content == ""
    assert call.begin.name in ("get_weather", "get_time") and call.begin.call_id
    assert call.begin.name == choice.get("function", call.begin.name)
    validate(call.text, CITY)


def test_forbidden_call_is_not_made(kindling):
    answer = ask(kindling, "What is the weather in Paris?", tools=[WEATHER], tool_choice="none")
    assert answer.message.tool_calls == [] and answer.message.content and answer.finish_reason == "stop"


def test_answer_cut_short_finishes_with_length(kindling):
    """The first tokens equal those of the whole answer."""
    asked = {"response_format": ResponseFormat(name="answer", schema=CITY, strict=True)}
    whole = ask(kindling, **asked)
    cut = ask(kindling, params=SamplingParams(max_tokens=len(whole.token_ids) - 3), **asked)
    assert cut.finish_reason == "length" and cut.token_ids == whole.token_ids[:-3]
    assert whole.message.content.startswith(cut.message.content) and cut.message.content.startswith("{")


def test_call_cut_short_finishes_with_length(kindling):
    whole = ask(kindling, tools=[TIME], function="get_time")
    cut = ask(
        kindling, params=SamplingParams(max_tokens=len(whole.token_ids) - 3), tools=[TIME], function="get_time"
    )
    assert cut.finish_reason == "length"
    assert [call.begin.name for call in cut.message.tool_calls] == ["get_time"]


def test_schema_that_cannot_be_enforced_is_refused_before_anything_runs(kindling):
    steps = kindling.engine.statistics().steps
    with pytest.raises(RequestError, match="cannot be enforced"):
        ask(kindling, response_format=ResponseFormat(name="x", schema={"not": {}}, strict=True))
    assert kindling.engine.statistics().steps == steps


@pytest.mark.gpu
def test_answers_on_a_gpu_follow_their_schema():
    llm = LLM()
    for schema in (CITY, PLACE, LIST):
        answer = ask(llm, response_format=ResponseFormat(name="answer", schema=schema, strict=True))
        assert answer.finish_reason == "stop"
        validate(answer.message.content, schema)
