"""Recorded and scrubbed requests of Claude Code 2.1.197 and the anthropic SDK 2.10.0 get well-formed answers."""

import json
from pathlib import Path

import msgspec
import pytest

from firesteel.server.anthropic.answers import AnthropicError, AnthropicMessage, MessageEvent, TokenCount

FOLDER = Path(__file__).parents[2] / "data" / "anthropic"
RECORDED = [
    pytest.param(request, id=f"{path.stem}: {request['name']}")
    for path in sorted(FOLDER.glob("*.json"))
    for request in json.loads(path.read_text(encoding="utf-8"))
]


@pytest.fixture
def roomy(server):
    """A server with a context for long prompts: its tokenizer knows bytes only."""
    server.engine.facts = msgspec.structs.replace(server.engine.facts, max_context=1 << 17)
    return server


def check_stream(body):
    events = [block.split("\n")[1].removeprefix("data: ") for block in body.decode().strip().split("\n\n")]
    for event in events:
        msgspec.json.decode(event, type=MessageEvent)
    assert '"message_stop"' in events[-1]


@pytest.mark.parametrize("request_", RECORDED)
def test_recorded_request_is_answered(roomy, request_):
    body = {**request_["body"], "model": "tiny"}
    answer = roomy.post(request_["path"], body, **request_["headers"])
    assert answer.status == request_["status"], answer.body
    if answer.status != 200:
        msgspec.json.decode(answer.body, type=AnthropicError)
    elif "count_tokens" in request_["path"]:
        assert msgspec.json.decode(answer.body, type=TokenCount).input_tokens > 0
    elif body.get("stream"):
        check_stream(answer.body)
    else:
        assert msgspec.json.decode(answer.body, type=AnthropicMessage).stop_reason


def test_recordings_hold_no_traces_of_a_machine():
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in ("/root", "/home", "/tmp", "/work", "sk-") if word in text]
