"""Endpoints for models, health, metrics, ledger and tokens."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from firesteel.errors import EngineDied
from firesteel.server.openai.limits import MAX_CHARACTERS_TO_ENCODE
from firesteel.server.service import LONG_TEXT, VERY_LONG_TEXT

FORMATS = {"mxfp4_layers": "", "activation": "bf16", "prefill_activation": "bf16", "kv": "float32"}


def test_model_is_listed_with_its_root_and_context(open_server):
    server = open_server(model="gpt-oss-20b", served_model_name="mine, yours")
    listed = server.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["mine", "yours"]
    assert listed[0]["root"] == "openai/gpt-oss-20b" and listed[0]["max_model_len"] == 4096
    assert listed[0]["formats"] == FORMATS
    assert server.get("/v1/models/yours").json()["id"] == "yours"
    assert server.get("/v1/models/theirs").status == 404
    assert server.chat(model="yours").json()["model"] == "yours"


def test_health_is_ready_degraded_failed(server):
    assert (server.get("/health").status, server.get("/health").json()["status"]) == (200, "ready")
    server.engine.is_ready, server.engine.num_deaths = False, 1
    for path in ("/health", "/health/ready"):
        answer = server.get(path)
        assert (
            answer.status == 503 and answer.json()["status"] == "degraded" and answer.json()["engine_deaths"] == 1
        )
    assert server.get("/health/live").status == 200
    server.engine.failure = "died at /secret/place"
    answer = server.get("/health")
    assert answer.json()["status"] == "failed" and "secret" not in answer.body.decode()
    live = server.get("/health/live")
    assert live.status == 503 and not live.json()["live"], "a probe restarts it"


def test_requests_are_refused_while_no_engine_runs(server):
    server.engine.is_ready = False
    answer = server.chat()
    assert answer.status == 503 and answer.headers["retry-after"] and answer.error["code"] == "engine_starting"
    server.engine.failure = "died at /secret/place"
    answer = server.chat(stream=True)
    assert answer.status == 503 and "secret" not in answer.body.decode()
    assert answer.error["code"] == "engine_failed" and "again" not in answer.error["message"]
    assert answer.headers["retry-after"] is None, "nothing comes back here"


def test_ledger_says_what_ran(server):
    body = server.get("/ledger").json()
    assert body["device"] == "CPU" and body["kernels"] == {"linear": "reference"}
    assert body["ran"][0]["op"] == "linear" and body["ran"][0]["calls"] == 4, "requested again"
    assert body["ran"][0]["artefacts"] == server.engine.ledger[0]["artefacts"]
    assert body["formats"] == FORMATS and body["sinks"] is True and body["graphs"] == 0
    assert body["drafts"] is None


def test_ledger_says_what_was_drafted_and_accepted(open_server):
    server = open_server(speculate="ngram")
    server.engine.told = replace(
        server.engine.told, drafts=4, draft_tokens=12, accepted_tokens=6, accepted_at=[4, 2]
    )
    drafts = {"kind": "ngram", "drafts": 4, "draft_tokens": 12, "accepted_tokens": 6, "accepted_at": [4, 2]}
    assert server.get("/ledger").json()["drafts"] == drafts
    server.engine.is_ready = False
    assert server.get("/ledger").json()["drafts"] is None, "unknown"


@pytest.mark.parametrize("error", [EngineDied("gone"), TimeoutError()])
def test_last_ledger_is_shown_if_the_engine_does_not_answer(server, error):
    server.engine.refresh_error = error
    assert server.get("/ledger").json()["ran"][0]["calls"] == 3
    server.engine.refresh_error, server.engine.is_ready = None, False
    assert server.get("/ledger").json()["ran"][0]["calls"] == 3


def test_text_becomes_tokens_and_text_again(server):
    body = server.post("/tokenize", {"prompt": "ab<|end|>", "return_token_strs": True}).json()
    assert body["tokens"][:2] == [97, 98] and body["count"] == len("ab<|end|>") == len(body["token_strs"])
    assert server.post("/detokenize", {"tokens": body["tokens"]}).json() == {"prompt": "ab<|end|>"}


def test_conversation_is_tokenized_as_in_a_chat(server):
    messages = [{"role": "user", "content": "hi"}]
    body = server.post("/tokenize", {"messages": messages}).json()
    server.chat("hi")
    assert body["tokens"] == list(server.engine.requests[0].token_ids)


def test_end_of_a_conversation_is_as_asked(server):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    def tokenize(**fields):
        return server.post("/tokenize", {"messages": messages, **fields})

    def text(**fields):
        return server.post("/detokenize", {"tokens": tokenize(**fields).json()["tokens"]}).json()["prompt"]

    assert text().endswith("b<|end|><|start|>assistant")
    assert text(add_generation_prompt=False).endswith("b<|end|>")
    assert text(continue_final_message=True).endswith("<|channel|>final<|message|>b")
    assert (
        tokenize(continue_final_message=True, add_generation_prompt=True).error["param"] == "add_generation_prompt"
    )


def test_text_beyond_the_limit_is_not_tokenized(server):
    """16 MB took a thread for up to a minute, and the answer the event loop for a second."""
    text = "ab " * (MAX_CHARACTERS_TO_ENCODE // 3 + 1)
    messages = [{"role": "user", "content": text}]
    for path, body, param in (
        ("/tokenize", {"prompt": text}, "prompt"),
        ("/tokenize", {"messages": messages}, "messages"),
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/chat/completions", {"messages": messages}, "messages"),
    ):
        answer = server.post(path, body)
        assert (answer.status, answer.error["param"]) == (400, param)
        assert f"at most {MAX_CHARACTERS_TO_ENCODE} are tokenized" in answer.error["message"]


def test_others_do_not_wait_for_very_long_texts(open_server, monkeypatch):
    """Eight of them held every thread, and a text of 12 KB waited for half a minute."""
    server, gate = open_server(), threading.Event()
    encode = server.service.tokenizer.encode

    def wait_and_encode(text, **options):
        assert len(text) < VERY_LONG_TEXT or gate.wait(30)
        return encode(text, **options)

    monkeypatch.setattr(server.service.tokenizer, "encode", wait_and_encode)
    with ThreadPoolExecutor(64) as clients:
        long = [clients.submit(server.post, "/tokenize", {"prompt": "a" * VERY_LONG_TEXT}) for _ in range(64)]
        try:
            assert server.post("/tokenize", {"prompt": "a" * LONG_TEXT}).json()["count"] == LONG_TEXT
            assert not any(answer.done() for answer in long)
        finally:
            gate.set()
        assert {answer.result().status for answer in long} == {200}


@pytest.mark.slow
def test_text_that_cannot_be_tokenized_is_refused(kindling_server):
    """The tokenizer's regular expressions panicked on 16 MB of spaces."""
    key = {"authorization": "Bearer right"}
    blanks = " " * 16_000_000
    answer = kindling_server.post("/tokenize", {"prompt": blanks}, **key)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "prompt", "invalid_value")
    messages = [{"role": "user", "content": blanks}]
    answer = kindling_server.post("/v1/chat/completions", {"messages": messages}, **key)
    assert (answer.status, answer.error["param"]) == (400, "messages")


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}])
def test_tokenize_needs_either_text_or_conversation(server, body):
    assert server.post("/tokenize", body).status == 400


def test_metrics_work_without_an_engine(server):
    async def die():
        raise EngineDied("gone")

    assert "firesteel_engine_up{" in server.get("/metrics").body.decode()
    server.engine.statistics = die
    text = server.get("/metrics").body.decode()
    assert 'firesteel_engine_up{model_name="tiny"} 0.0' in text
