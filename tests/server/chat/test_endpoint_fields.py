"""The chat endpoint honours vLLM's fields: constraints, continued messages, scored and cut prompts, bad words."""

import threading
from dataclasses import replace
from functools import partialmethod

import pytest

from firesteel.server import service
from firesteel.server.chat import endpoint
from firesteel.server.completions import endpoint as completions
from firesteel.types import TokenLogprobs

USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "The sky"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def ask(server, *messages, **fields):
    return server.post("/v1/chat/completions", {"messages": [USER, *messages], **fields})


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"structured_outputs": {"regex": "a+"}}, "answer: /a+/"),
        ({"guided_choice": ["x", "y"]}, 'answer: "x" | "y"'),
        ({"guided_grammar": 'root ::= "z" [0-9]'}, 'start: "z" '),
        ({"structured_outputs": {"grammar": 'start: "q"'}}, 'answer: %lark {\nstart: "q"\n}'),
        ({"structured_outputs": {"json": {"type": "array"}}}, 'answer: %json {"type": "array"'),
    ],
    ids=["regex", "choice", "gbnf", "lark", "json"],
)
def test_constraint_reaches_the_engine(server, fields, rule):
    assert ask(server, **fields).status == 200
    assert rule in server.engine.requests[0].params.grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs.regex"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"structured_outputs": {"json": "[1"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"type": "no"}}}, "structured_outputs.json"),
        ({"guided_regex": "a", "tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"structured_outputs": {"choice": ["a" * 65000, "b" * 600]}}, "structured_outputs.choice"),
        ({"bad_words": [" "]}, "bad_words[0]"),
        ({"bad_words": ["a" * 1024 + str(number) for number in range(20)]}, "bad_words[0]"),
        ({"bad_words": [str(number) + "a" * 1000 for number in range(20)]}, "bad_words"),
        ({"prompt_logprobs": 20, "n": 128, "truncate_prompt_tokens": 4000}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"continue_final_message": True}, "messages"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_impossible_request_is_refused_by_name(server, fields, param):
    answer = ask(server, **fields)
    assert answer.status == 400 and answer.error["param"] == param
    assert not server.engine.requests


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": True},
        {"guided_regex": "a"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_continued_message_excludes(server, fields):
    assert ask(server, BEGUN, continue_final_message=True, **fields).status == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("echo", "content"), [(False, " is blue."), (True, "The sky is blue.")])
def test_last_message_is_continued(open_server, stream, echo, content):
    server = open_server(" is blue.<|return|>")
    answer = ask(server, BEGUN, continue_final_message=True, echo=echo, stream=stream, return_prompt_text=True)
    whole = answer.events[0] if stream else answer.json()
    assert whole["prompt_text"].endswith("<|start|>assistant<|channel|>final<|message|>The sky")
    if stream:
        choices = [event["choices"][0] for event in answer.events]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == content
        assert choices[-1]["finish_reason"] == "stop" and "prompt_text" not in answer.events[1]
    else:
        message = whole["choices"][0]["message"]
        assert message["content"] == content and message["reasoning"] is None


def test_reasoning_is_continued(open_server):
    server = open_server(" more.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>")
    thought = {"role": "assistant", "reasoning_content": "I think"}
    message = ask(server, thought, continue_final_message=True).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (" more.", "Yes.")


def test_stop_string_in_an_echoed_text_does_not_end_the_answer(open_server):
    server = open_server(" is blue.<|return|>")
    [choice] = ask(server, BEGUN, continue_final_message=True, echo=True, stop="sky").json()["choices"]
    assert choice["message"]["content"] == "The sky is blue."


def test_prompt_is_scored(server, monkeypatch):
    def output(request, token_ids, reason, count, output=server.engine.output):
        scored = [TokenLogprobs(token_id=97, logprob=-1.0, top=((98, -0.5),))] if count == 1 else None
        return replace(output(request, token_ids, reason, count), prompt_logprobs=scored)

    monkeypatch.setattr(server.engine, "output", output)
    body = ask(server, prompt_logprobs=1, n=2).json()
    assert body["prompt_logprobs"] == [
        None,
        {
            "97": {"logprob": -1.0, "rank": None, "decoded_token": "a"},
            "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        },
    ]
    assert server.engine.requests[0].params.prompt_logprobs == 1
    assert "prompt_logprobs" not in ask(server).json()


def test_long_scored_prompt_is_spelled_outside_the_event_loop(server, monkeypatch):
    """Other streams stood still for seconds while a long prompt's logprobs were spelled."""
    threads = []
    monkeypatch.setattr(service, "LONG_TEXT", 0)

    def note(*args, work):
        threads.append(threading.current_thread().name)
        return work(*args)

    for place, name in ((endpoint.Chat, "respond_with_scores"), (completions.Completions, "respond")):
        monkeypatch.setattr(place, name, partialmethod(note, work=getattr(place, name)))
    assert ask(server, prompt_logprobs=1).status == 200
    assert server.post("/v1/completions", {"prompt": "ab", "prompt_logprobs": 1}).status == 200
    assert len(threads) == 2 and all(name.startswith("asyncio_") for name in threads)


def test_prompt_is_cut(server):
    ask(server)
    whole = list(server.engine.requests[-1].token_ids)
    ask(server, truncate_prompt_tokens=5)
    assert list(server.engine.requests[-1].token_ids) == whole[-5:]
    long = ask(server, {"role": "user", "content": "a" * 9000}, truncate_prompt_tokens=-1, max_tokens=96)
    assert long.status == 200 and server.engine.requests[-1].num_prompt == 4000


def test_bad_words_reach_the_engine(server):
    ask(server, bad_words=["ab"])
    assert server.engine.requests[0].params.bad_words == ((97, 98), (32, 97, 98))


def test_tokens_are_named_by_their_ids(server):
    [choice] = ask(server, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True).json()["choices"]
    first = choice["logprobs"]["content"][0]
    assert first["token"] == "token_id:72" and first["top_logprobs"][0]["token"] == "token_id:97"
    assert first["bytes"] == [72]


def test_request_id_names_the_answer_and_may_be_used_twice(server):
    assert [ask(server, request_id="a.b").json()["id"] for _ in range(2)] == ["chatcmpl-a.b"] * 2
    assert ask(server, request_id="a b").status == 400
    names = [request.request_id for request in server.engine.requests]
    assert len(set(names)) == len(names) == 2
