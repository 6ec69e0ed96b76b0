"""The endpoints /v1/messages and /v1/messages/count_tokens, in front of a scripted engine."""

import json
import logging

import pytest

PATH = "/v1/messages"
HI = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {"city": {}}}}
CALLS = (
    "<|channel|>analysis<|message|>Weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)


def ask(server, **fields):
    return server.post(PATH, {**HI, **fields})


def read_events(answer):
    """Returns the objects of a stream after checking that each event has the name of its type."""
    events = []
    for block in answer.body.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def add_up(events):
    """Returns the message that a stream's events add up to, as a client would."""
    message = events[0]["message"]
    inputs = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                kind = delta.pop("type")
                [(name, text)] = delta.items()
                if kind == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + text
                else:
                    block[name] += text
            case "message_delta":
                message |= event["delta"]
                message["usage"] = event["usage"]
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message


def test_message_has_text_usage_and_its_reason(server):
    answer = ask(server, system="Be kind.")
    message = answer.json()
    assert answer.status == 200 and answer.headers["request-id"] == answer.headers["x-request-id"]
    assert message["id"].startswith("msg_") and (message["type"], message["role"]) == ("message", "assistant")
    assert message["content"] == [{"type": "text", "text": "Hello."}] and message["model"] == "tiny"
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    [request] = server.engine.requests
    usage = message["usage"]
    assert usage["cache_read_input_tokens"] == 2 and usage["input_tokens"] == request.num_prompt - 2
    assert usage["output_tokens"] == 38 and usage["output_tokens_details"] == {"thinking_tokens": 3}
    assert "Be kind." in server.engine.tokenizer.decode(request.token_ids)


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}])
def test_thinking_is_shown_if_it_was_asked_for(server, thinking):
    content = ask(server, thinking=thinking).json()["content"]
    is_shown = thinking is not None and thinking["type"] == "enabled"
    assert [block["type"] for block in content] == ["thinking", "text"][not is_shown :]
    assert not is_shown or (content[0]["thinking"] == "Hm." and content[0]["signature"])


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_stream_adds_up_to_the_whole(open_server, display):
    server = open_server(script=CALLS)
    fields = {"tools": [TOOL], "thinking": {"type": "adaptive", "display": display}}
    whole = ask(server, **fields).json()
    events = read_events(ask(server, stream=True, **fields))
    streamed = add_up(events)
    for message in (whole, streamed):
        message.pop("id")
        message["content"][2].pop("id")
    assert streamed == whole and whole["stop_reason"] == "tool_use"
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][2]["input"] == {"city": "Paris"}
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def test_what_comes_back_continues_the_turn(open_server):
    server = open_server(script=CALLS)
    content = ask(server, tools=[TOOL], thinking={"type": "adaptive"}).json()["content"]
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "sunny"}
    turns = [*HI["messages"], {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    assert ask(server, tools=[TOOL], messages=turns).status == 200
    prompt = server.engine.tokenizer.decode(server.engine.requests[-1].token_ids)
    places = [prompt.index(text) for text in ("Weather.", "One moment.", '{"city":"Paris"}', "sunny")]
    assert places == sorted(places)


def test_stop_sequence_is_named(server):
    message = ask(server, stop_sequences=["never", "lo"]).json()
    assert message["content"][0]["text"] == "Hel"
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "lo")


def test_limits_of_length_have_their_reasons(server):
    assert ask(server, max_tokens=5).json()["stop_reason"] == "max_tokens"
    server.engine.script = "<|channel|>final<|message|>" + "x" * 5000
    prompt = {"role": "user", "content": "x" * 3000}
    assert ask(server, max_tokens=5000, messages=[prompt]).json()["stop_reason"] == "model_context_window_exceeded"


def test_forced_call_and_format_become_grammars(server):
    ask(server, tools=[TOOL], tool_choice={"type": "tool", "name": "look"})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    ask(server, output_config={"format": {"type": "json_schema", "schema": schema}})
    ask(server, tools=[TOOL])
    forced, formatted, free = [request.params.grammar for request in server.engine.requests]
    assert "functions.look" in forced and '"a"' in formatted and free is None


def test_name_of_a_tool_may_have_128_characters(server):
    tool = {**TOOL, "name": "mcp__" + "x" * 123}
    assert ask(server, tools=[tool], tool_choice={"type": "any"}).status == 200
    assert ask(server, tools=[{**tool, "name": tool["name"] + "x"}]).status == 400


def test_tokens_are_counted_as_they_are_prompted(server):
    body = {**HI, "system": "Be kind.", "tools": [TOOL]}
    count = server.post(f"{PATH}/count_tokens?beta=true", {**body, "max_tokens": None}).json()
    server.post(f"{PATH}?beta=true", body)
    assert count == {"input_tokens": server.engine.requests[0].num_prompt}


def test_prompts_of_conversations_that_differ_in_accounting_are_equal(server):
    for version in ("1.c40", "1.d55"):
        accounting = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version};"}
        ask(server, system=[accounting, {"type": "text", "text": "Be kind."}])
    first, second = server.engine.requests
    assert first.token_ids == second.token_ids


def test_unknown_fields_are_logged(server, caplog):
    with caplog.at_level(logging.WARNING):
        assert ask(server, speed="fast", cache_control={"type": "ephemeral"}, service_tier="auto").status == 200
    assert [record.fields for record in caplog.records if hasattr(record, "fields")] == [["speed"]]


def test_request_is_counted_and_logged_by_its_path(server):
    ask(server)
    assert f'path="{PATH}"' in server.get("/metrics").body.decode()


def test_list_of_models_has_what_clients_of_anthropic_read(server):
    listed = server.get("/v1/models?limit=20").json()
    [model] = listed["data"]
    assert (model["type"], model["display_name"], model["max_input_tokens"]) == ("model", "tiny", 4096)
    assert model["created_at"].endswith("+00:00") and (listed["first_id"], listed["has_more"]) == ("tiny", False)
