"""Makes bad requests of good ones: values, fields and bytes are replaced at random, repeatably by seed."""

import copy
import json
import random

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
CHAT = {"model": "kindling", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
GOOD = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    ),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 1,
            "stop": ["x"],
            "logit_bias": {"5": 1},
            "logprobs": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "1"},
                {"role": "user", "content": "and?"},
            ],
            "n": 2,
            "reasoning_effort": "low",
            "metadata": {"a": "b"},
        },
    ),
    ("/v1/completions", {"model": "kindling", "prompt": "hi", "max_tokens": 4, "echo": True, "logprobs": 2}),
    ("/v1/completions", {"model": "kindling", "prompt": [[1, 2, 3], [4]], "max_tokens": 2, "min_tokens": 1}),
    ("/v1/responses", {"model": "kindling", "input": "hi", "max_output_tokens": 16, "store": False}),
    (
        "/v1/responses",
        {
            "model": "kindling",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "max_output_tokens": 16,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        },
    ),
    ("/v1/messages", {**CHAT, "stream": True, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    (
        "/v1/messages",
        {
            **CHAT,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]},
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "stop_sequences": ["x"],
            "output_config": {"effort": "low"},
        },
    ),
    ("/v1/messages/count_tokens", {"model": "kindling", "messages": [{"role": "user", "content": "hi"}]}),
    ("/tokenize", {"prompt": "hello"}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    1.5,
    1e308,
    -1e-320,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**40,
    "",
    "x",
    "é" * 60,
    "\x00",
    "\ud800",
    "\u202e",
    "<|start|>",
    "9" * 500,
    "a" * 20_000,
    [],
    {},
    [[]],
    [None],
    ["x"] * 50,
    [1] * 3000,
    {"a": {"b": {"c": []}}},
    {str(number): number for number in range(70)},
    {"$ref": "#"},
    {"type": "array", "items": {"$ref": "#"}},
    {"pattern": "(a|a)*b" * 20},
    {"enum": list(range(200))},
    "kindling",
    "user",
    "auto",
    "json_object",
]
NAMES = ["", "x", "model", "messages", "stream", "n", "type", "$defs", "anyOf", "allOf", "maxLength", "\x00", "é"]
DEEP = json.loads("[" * 200 + "]" * 200)


def mutate(number: int) -> tuple[str, bytes]:
    """Returns the path and the body of a mutated request."""
    rng = random.Random(number)
    path, good = rng.choice(GOOD)
    body = copy.deepcopy(good)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
        body = _change(rng, body)
    data = json.dumps(body).encode()
    return path, _damage(rng, data) if rng.random() < 0.15 else data


def _change(rng, body):
    """Returns the body with one change at a random place."""
    places = list(_places(body))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice([*VALUES, DEEP]))  # later changes must not reach the table
    owner, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.6:
        owner[key] = copy.deepcopy(rng.choice(VALUES) if rng.random() < 0.97 else DEEP)
    elif kind < 0.75:
        del owner[key]
    elif kind < 0.9 and isinstance(owner, dict):
        owner[rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
    elif isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    else:
        owner[key] = [copy.deepcopy(owner[key])]
    return body


def _places(value):
    """Yields (container, key) of every value inside `value`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from _places(inner)


def _damage(rng, data: bytes) -> bytes:
    """Returns the bytes cut, with a byte changed, or with a piece repeated."""
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(3)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data[:at] + data[at : at + 30] * rng.randrange(1, 20) + data[at:]
