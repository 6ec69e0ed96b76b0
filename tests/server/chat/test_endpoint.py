"""The chat endpoint: whole and streamed answers are equal, fields reach the engine, invalid ones are refused."""

import pytest

from firesteel.server.chat.conversation import render_chat
from firesteel.server.openai.requests import ChatRequest, UserMessage

CALL = (
    "<|channel|>analysis<|message|>Weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city": "Paris"}<|call|>'
)
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def joined(events, index=0):
    """Returns the message that the chunks of a choice join to."""
    message = {"content": "", "reasoning_content": "", "calls": {}, "reason": None, "token_ids": []}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        delta = choice["delta"]
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        message["token_ids"] += choice.get("token_ids", [])
        message["reason"] = choice["finish_reason"] or message["reason"]
        for call in delta.get("tool_calls", []):
            kept = message["calls"].setdefault(call["index"], {"id": None, "name": None, "arguments": ""})
            kept["id"] = call.get("id") or kept["id"]
            kept["name"] = call["function"].get("name") or kept["name"]
            kept["arguments"] += call["function"].get("arguments", "")
    return message


def test_whole_answer_separates_reasoning_and_content(server):
    answer = server.chat()
    assert answer.status == 200
    body = answer.json()
    assert body["object"] == "chat.completion" and body["model"] == "tiny"
    [choice] = body["choices"]
    assert choice["message"]["content"] == "Hello." and choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] == "Hm."
    assert "tool_calls" not in choice["message"]
    usage = body["usage"]
    prompt = server.engine.requests[0].num_prompt
    assert usage["prompt_tokens"] == prompt and usage["total_tokens"] == prompt + usage["completion_tokens"]
    assert usage["completion_tokens"] == 38 and usage["prompt_tokens_details"] == {"cached_tokens": 2}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_stream_equals_the_whole_answer(server):
    events = server.chat(stream=True).events
    message = joined(events)
    assert (message["content"], message["reasoning_content"], message["reason"]) == ("Hello.", "Hm.", "stop")
    assert all(event["object"] == "chat.completion.chunk" and event["id"] == events[0]["id"] for event in events)
    assert [event["choices"][0]["delta"].get("role") for event in events] == ["assistant"] + [None] * (
        len(events) - 1
    )
    assert all("usage" not in event for event in events)


def test_stream_has_usage_if_requested(server):
    events = server.chat(stream=True, stream_options={"include_usage": True}).events
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 38
    assert all(event["usage"] is None for event in events[:-1])
    steady = server.chat(stream=True, stream_options={"continuous_usage_stats": True}).events
    assert [event["usage"]["completion_tokens"] for event in steady][-1] == 38


def test_every_token_is_in_one_chunk(server, tokenizer):
    events = server.chat(stream=True, return_token_ids=True).events
    assert len(joined(events)["token_ids"]) == 38
    assert events[0]["prompt_token_ids"] == list(server.engine.requests[0].token_ids)
    assert all("prompt_token_ids" not in event for event in events[1:])
    assert all(event["choices"][0]["token_ids"] for event in events)
    whole = server.chat(return_token_ids=True).json()
    assert whole["choices"][0]["token_ids"] == joined(events)["token_ids"]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_call_is_equal_whole_and_streamed(open_server, stream):
    server = open_server(CALL)
    answer = server.chat(tools=TOOLS, stream=stream)
    if stream:
        message = joined(answer.events)
        [call] = message["calls"].values()
        assert message["reason"] == "tool_calls" and message["content"] == ""
    else:
        [choice] = answer.json()["choices"]
        [tool_call] = choice["message"]["tool_calls"]
        call = {"id": tool_call["id"], **tool_call["function"]}
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["name"] == "get_weather" and call["arguments"] == '{"city": "Paris"}'
    assert call["id"].startswith("call_")


def test_stop_string_ends_content_but_not_reasoning(open_server):
    server = open_server(
        "<|channel|>analysis<|message|>a lot<|end|><|start|>assistant<|channel|>final<|message|>all lost<|return|>"
    )
    [choice] = server.chat(stop=["lo"]).json()["choices"]
    assert choice["message"]["content"] == "all " and choice["message"]["reasoning_content"] == "a lot"
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "lo"
    assert server.engine.finished == {server.engine.requests[0].request_id}
    events = server.chat(stop="lo", stream=True).events
    assert joined(events)["content"] == "all "
    [kept] = server.chat(stop="lo", include_stop_str_in_output=True).json()["choices"]
    assert kept["message"]["content"] == "all lo"


def test_length_is_the_reason_when_tokens_run_out(server):
    [choice] = server.chat(max_tokens=37).json()["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == "Hello."
    assert server.chat(max_completion_tokens=2, max_tokens=9).json()["usage"]["completion_tokens"] == 2


def test_choices_have_different_seeds(server):
    body = server.chat(n=3, seed=7, temperature=0.5).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"Hello."}
    assert sorted(request.params.seed for request in server.engine.requests) == [7, 8, 9]
    assert body["usage"]["completion_tokens"] == 114
    assert body["usage"]["prompt_tokens"] == server.engine.requests[0].num_prompt
    events = server.chat(n=2, stream=True).events
    assert [joined(events, index)["content"] for index in (0, 1)] == ["Hello.", "Hello."]


def test_logprobs_are_those_of_the_content(server):
    [choice] = server.chat(logprobs=True, top_logprobs=2).json()["choices"]
    logprobs = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in logprobs) == "Hello."
    assert logprobs[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "a", "logprob": -1.0, "bytes": [97]},
            {"token": "b", "logprob": -2.0, "bytes": [98]},
        ],
    }
    events = server.chat(logprobs=True, stream=True).events
    streamed = [entry for event in events for entry in (event["choices"][0]["logprobs"]["content"] or [])]
    assert "".join(entry["token"] for entry in streamed) == "Hello." and streamed[0]["top_logprobs"] == []


def test_fields_reach_the_engine(server):
    fields = {
        "temperature": 0.3,
        "top_p": 0.4,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "min_tokens": 3,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "allowed_token_ids": [1, 2],
        "logit_bias": {"5": -7},
        "seed": 11,
        "cache_prompt": False,
    }
    server.chat(**fields)
    params = server.engine.requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.3, 0.4, 5, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.5)
    assert params.min_tokens == 3 and params.ignore_eos and params.seed == 11 and not params.cache_prompt
    assert params.allowed_token_ids == (1, 2) and params.logit_bias == {5: -7.0}
    assert server.engine.requests[0].stops == {9}


def test_default_max_tokens_is_the_rest_of_the_context(server):
    server.chat()
    request = server.engine.requests[0]
    assert request.num_prompt + request.params.max_tokens == server.engine.facts.max_context


def test_stop_tokens_are_those_of_checkpoint_and_harmony(server, tokenizer):
    server.chat()
    ends = {tokenizer.special_ids[name] for name in ("<|return|>", "<|call|>", "<|endoftext|>")}
    assert server.engine.requests[0].stops == ends


def test_answer_with_a_required_form_has_a_grammar(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    server.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert "integer" in server.engine.requests[0].params.grammar
    server.chat(response_format={"type": "json_object"})
    assert "%json" in server.engine.requests[1].params.grammar
    server.chat(response_format={"type": "text"})
    assert server.engine.requests[2].params.grammar is None
    server.chat(tools=TOOLS, tool_choice="required")
    assert "functions.get_weather" in server.engine.requests[3].params.grammar
    server.chat(tools=TOOLS)
    assert server.engine.requests[4].params.grammar is None


@pytest.mark.parametrize(("strict", "status"), [(False, 200), (None, 200), (True, 400)])
def test_look_around_in_a_tool_is_an_error_only_if_it_is_strict(server, strict, status):
    """A required call with any tool that holds zod's z.email() was refused."""
    mail = {"type": "string", "pattern": r"^(?!\.)[a-z.]+@[a-z.]+$"}
    schema = {"type": "object", "properties": {"mail": mail}, "required": ["mail"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "send", "parameters": schema, "strict": strict}}
    answer = server.chat(tools=[tool], tool_choice="required")
    assert answer.status == status, answer.body
    if status == 400:
        assert answer.error["param"] == "tools" and "look-around" in answer.error["message"]


def test_reasoning_can_be_omitted(server):
    [choice] = server.chat(include_reasoning=False).json()["choices"]
    assert choice["message"]["reasoning_content"] is None
    message = joined(server.chat(include_reasoning=False, stream=True, return_token_ids=True).events)
    assert message["reasoning_content"] == "" and message["content"] == "Hello." and len(message["token_ids"]) == 38


def test_prompt_is_the_conversation_in_harmony(server):
    server.chat("Who?", reasoning_effort="high")
    text = server.service.tokenizer.decode(server.engine.requests[0].token_ids)
    assert text.endswith("<|start|>user<|message|>Who?<|end|><|start|>assistant")
    assert "Reasoning: high" in text and "Current date" not in text
    asked = ChatRequest(messages=[UserMessage(content="Who?")], reasoning_effort="high")
    assert server.service.harmony.encode_for_completion(render_chat(asked)) == server.engine.requests[0].token_ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "no"}]}, "messages[0].tool_call_id"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS * 2}, "tools[1].function.name"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
            "response_format",
        ),
    ],
)
def test_error_names_the_invalid_field(server, fields, param):
    answer = server.chat(**fields)
    assert answer.status == 400, answer.body
    assert answer.error["type"] == "invalid_request_error" and answer.error["message"]
    assert (answer.error["param"] or "").startswith(param)
    assert server.engine.requests == []


def test_image_is_declined_as_unsupported(server):
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    answer = server.chat([part])
    assert answer.status == 422 and "text only" in answer.error["message"]


def test_prompt_longer_than_the_context_is_refused(server):
    answer = server.chat("x" * 5000)
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
    assert answer.error["message"].startswith("This model's maximum context length is 4096 tokens. However, ")
    assert "4096" in answer.error["message"]


def test_unknown_model_is_not_found(server):
    answer = server.chat(model="gpt-4")
    assert answer.status == 404 and answer.error["code"] == "model_not_found" and "tiny" in answer.error["message"]


def test_null_counts_as_not_given(server):
    names = [name for name in ChatRequest.__struct_fields__ if name != "messages"]
    assert server.chat(**dict.fromkeys(names)).status == 200
