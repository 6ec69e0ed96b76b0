"""Namespaces, custom tools and stored items over /v1/responses with the openai client, and recorded requests."""

import json
from pathlib import Path

import msgspec
import openai
import pytest
from openai import OpenAI

DATA = Path(__file__).parents[2] / "data" / "clients"
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Runs agents.",
    "tools": [{"type": "function", "name": "close", "parameters": {"type": "object"}}],
}
PATCH = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "+" /.*/'},
}
CLOSE = '<|channel|>commentary to=functions.agents__close <|constrain|>json<|message|>{"id": 7}<|call|>'
PATCHED = "<|channel|>commentary to=functions.patch<|message|>+a<|call|>"
LOOK = (
    "<|channel|>analysis<|message|>Weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)
EXEC = '<|channel|>commentary to=functions.exec_command <|constrain|>json<|message|>{"cmd": "ls"}<|call|>'


@pytest.fixture
def open_client(open_server):
    """open_client(script): a client and the server that it asks."""
    clients = []

    def open_it(script, **settings):
        server = open_server(script, **settings)
        clients.append(OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0))
        return clients[-1], server

    yield open_it
    for client in clients:
        client.close()


def ask(client, **fields):
    return client.responses.create(**{"model": "tiny", "input": "hi", **fields})


def prompt_of(server):
    return server.engine.tokenizer.decode(server.engine.requests[-1].token_ids)


def test_call_in_a_namespace_has_both_names_apart_and_goes_back(open_client):
    client, server = open_client(CLOSE)
    [call] = ask(client, tools=[AGENTS]).output
    assert (call.type, call.namespace, call.name, call.arguments) == (
        "function_call",
        "agents",
        "close",
        '{"id": 7}',
    )
    assert "type agents__close = (_: {\n}) => any;" in prompt_of(server)
    added, *_, done = [
        event.item
        for event in ask(client, tools=[AGENTS], stream=True)
        if event.type in ("response.output_item.added", "response.output_item.done")
    ]
    assert (added.namespace, added.name, done.namespace, done.name) == ("agents", "close") * 2
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "closed"}
    ask(client, input=[{"role": "user", "content": "hi"}, call, result], tools=[AGENTS])
    stateless = prompt_of(server)
    assert "to=functions.agents__close<|channel|>commentary <|constrain|>json<|message|>" in stateless
    assert "<|start|>functions.agents__close to=assistant<|channel|>commentary<|message|>closed<|end|>" in stateless


def test_custom_tool_call_has_text_and_goes_back(open_client):
    client, server = open_client(PATCHED)
    first = ask(client, tools=[PATCH], tool_choice={"type": "custom", "name": "patch"})
    [call] = first.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", "+a")
    assert "%lark" in server.engine.requests[-1].params.grammar
    assert first.tools[0].format.definition == PATCH["format"]["definition"] and first.tool_choice.type == "custom"
    events = list(ask(client, tools=[PATCH], stream=True))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    [done] = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == "+a"
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"}
    ask(client, input=[result], previous_response_id=first.id, tools=[PATCH])
    assert prompt_of(server).endswith(
        "<|start|>assistant to=functions.patch<|channel|>commentary<|message|>+a<|call|>"
        "<|start|>functions.patch to=assistant<|channel|>commentary<|message|>patched<|end|><|start|>assistant"
    )


def test_grammar_that_cannot_be_compiled_is_refused(open_client):
    client, _ = open_client(PATCHED)
    bad = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: missing"}}
    with pytest.raises(openai.BadRequestError, match="tool 'patch' grammar"):
        ask(client, tools=[bad])


def test_error_in_a_namespace_names_its_place(open_client):
    client, _ = open_client(CLOSE)
    flat = {"type": "function", "name": "agents__close"}
    with pytest.raises(openai.BadRequestError, match="two tools are named agents__close") as raised:
        ask(client, tools=[{"type": "web_search"}, flat, AGENTS])
    assert raised.value.param == "tools[2].tools[0].name"


def test_referenced_items_are_found_in_the_store(open_client):
    client, server = open_client(LOOK)
    tools = [{"type": "function", "name": "look"}]
    question = {"role": "user", "content": "weather?"}
    first = ask(client, input=[question], tools=tools)
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "rain"}
    ask(client, input=[question, *first.output, result], tools=tools)
    expected = prompt_of(server)
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    second = ask(client, input=[question, *references, result], tools=tools)
    assert prompt_of(server) == expected
    kinds = [item.type for item in client.responses.input_items.list(second.id, order="asc").data]
    assert kinds == ["message", "reasoning", "message", "function_call", "function_call_output"]
    client.responses.delete(first.id)
    ask(client, input=[question, *references, result], tools=tools)  # the second response holds them too
    with pytest.raises(openai.NotFoundError, match="item 'rs_none' not found") as raised:
        ask(client, input=[question, {"type": "item_reference", "id": "rs_none"}])
    assert raised.value.param == "input[1].id"


def test_referenced_items_of_another_client_are_not_found(open_server):
    server = open_server(LOOK, api_key="a\nb")
    first = server.post("/v1/responses", {"input": "hi"}, authorization="Bearer a").json()
    body = {"input": [{"type": "item_reference", "id": first["output"][0]["id"]}]}
    assert server.post("/v1/responses", body, authorization="Bearer b").status == 404
    assert server.post("/v1/responses", body, authorization="Bearer a").status == 200


def test_sampling_fields_of_chats_are_honoured(open_client):
    client, server = open_client("<|channel|>final<|message|>Hello.<|return|>")
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"97": -100},
        "stop": ["llo"],
        "stop_token_ids": [7],
        "min_tokens": 2,
        "allowed_token_ids": [1, 2],
        "seed": 9,
    }
    made = ask(client, extra_body=extra, temperature=0.5, top_p=0.5)
    params = server.engine.requests[-1].params
    assert made.output_text == "He" and made.status == "completed"
    assert (params.top_k, params.min_p, params.seed, params.temperature, params.top_p) == (5, 0.1, 9, 0.5, 0.5)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.5, 1.5)
    assert (params.logit_bias, params.stop, params.stop_token_ids) == ({97: -100.0}, ("llo",), (7,))
    assert (params.min_tokens, params.allowed_token_ids) == (2, (1, 2))
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, extra_body={"top_k": -7})
    assert raised.value.param == "top_k"


def test_input_tokens_are_those_of_the_prompt(open_client):
    client, server = open_client(CLOSE)
    fields = {"model": "tiny", "input": "hi", "instructions": "Be kind.", "tools": [AGENTS]}
    used = client.responses.create(**fields).usage.input_tokens
    counted = client.responses.input_tokens.count(**fields)
    assert (counted.input_tokens, counted.object) == (used, "response.input_tokens")
    assert client.responses.input_tokens.count(model="tiny", instructions="Be kind.").input_tokens < used
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.input_tokens.count(model="tiny", input="hi", tools=[{"type": "web_search"}])
    assert raised.value.param == "tools[0].type"
    assert len(server.engine.requests) == 1


def test_compaction_is_refused_and_methods_are_named(open_client):
    client, server = open_client(CLOSE)
    with pytest.raises(openai.BadRequestError, match="compaction is not available"):
        client.responses.compact(model="tiny", input="hi")
    answer = server.post("/v1/responses/resp_x", {})
    assert answer.status == 405 and {"GET", "DELETE"} <= set(answer.headers["allow"].split(", "))


def replay(server, name, scripts):
    """Sends the recorded requests of a client; ids of the server's items are those of its own answers."""
    recorded = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    server.engine.facts = msgspec.structs.replace(server.engine.facts, max_context=16384)
    answers, given = [], {}
    for items, script in zip(recorded["inputs"], scripts, strict=True):
        server.engine.script = script
        items = [{**item, "id": given.get(item["id"], item["id"])} if "id" in item else item for item in items]
        answer = server.post("/v1/responses", {**recorded["request"], "model": "tiny", "input": items})
        assert answer.status == 200, answer.body
        answers.append(read(answer))
        output = answers[-1]["output"]
        given |= {f"{item['id'].split('_')[0]}_1": item["id"] for item in output}
    return answers


def read(answer):
    """Returns the response, of a stream the last one."""
    if "event-stream" not in answer.headers["content-type"]:
        return answer.json()
    last = answer.body.decode().rstrip("\n").rpartition("data: ")[2]
    return json.loads(last)["response"]


def test_recorded_tool_run_of_codex(open_server):
    server = open_server()
    close = '<|channel|>commentary to=functions.multi_agent_v1__close_agent<|message|>{"target": "x"}<|call|>'
    final = "<|channel|>final<|message|>Done.<|return|>"
    first, second, third = replay(server, "codex_tools", [EXEC, close, final])
    assert first["output"][0]["name"] == "exec_command" and first["status"] == "completed"
    assert (second["output"][0]["namespace"], second["output"][0]["name"]) == ("multi_agent_v1", "close_agent")
    assert third["output"][0]["content"][0]["text"] == "Done."
    assert "<|start|>functions.multi_agent_v1__close_agent to=assistant" in prompt_of(server)


def test_recorded_patch_of_codex(open_server):
    server = open_server()
    patch = "*** Begin Patch\n*** Add File: a\n+b\n*** End Patch"
    called = f"<|channel|>commentary to=functions.apply_patch<|message|>{patch}<|call|>"
    first, second = replay(server, "codex_patch", [called, "<|channel|>final<|message|>Done.<|return|>"])
    assert first["output"][0]["type"] == "custom_tool_call" and first["output"][0]["input"] == patch
    assert second["status"] == "completed" and "begin_patch" in server.engine.requests[-1].params.grammar


def test_recorded_tool_run_of_the_ai_sdk(open_server):
    server = open_server()
    first, second = replay(server, "ai_sdk_tools", [LOOK, "<|channel|>final<|message|>Rain.<|return|>"])
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    assert second["output"][0]["content"][0]["text"] == "Rain."
    assert "<|channel|>analysis<|message|>Weather.<|end|>" in prompt_of(server)
