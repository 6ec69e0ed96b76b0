"""vLLM's server with the plugin: completions, chat and streams, through vLLM's own parsers."""

import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from firesteel.lab.servers.supervisor import ServerCommand, SupervisedServer, find_free_port
from tests.vllm_plugin.chain_checkpoint import REPLY, write_chain
from tests.vllm_plugin.peers import ENVIRONMENT, INSTALLED, ROOT, folder_of

pytestmark = pytest.mark.peer
VOCABULARY = {"TIKTOKEN_ENCODINGS_BASE": str(ROOT / "tests" / "data")}  # else vLLM downloads it
QUESTION = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module", params=INSTALLED)
def server(request, checkpoint, tmp_path_factory):
    python, vllm = (folder_of(request.param) / name for name in ("python", "vllm"))
    port = find_free_port()
    words = [python, vllm, "serve", checkpoint, "--port", port, "--dtype", "bfloat16", "--max-model-len", 2048]
    command = ServerCommand(
        words=[str(word) for word in words],
        url=f"http://127.0.0.1:{port}",
        environment=ENVIRONMENT | VOCABULARY,
        ready_s=600.0,
    )
    with SupervisedServer(command, tmp_path_factory.mktemp("server")) as running:
        yield running


def send(server, path, **body):
    data = json.dumps({"model": server.command.words[3], "temperature": 0, "max_tokens": 40, **body}).encode()
    request = urllib.request.Request(
        server.command.url + path, data, {"content-type": "application/json"}, method="POST"
    )
    return urllib.request.urlopen(request, timeout=120)


def post(server, path, **body):
    with send(server, path, **body) as answer:
        return answer.read().decode()


def complete(server, **body):
    """Returns the text of a completion of "Hello"."""
    return json.loads(post(server, "/v1/completions", prompt="Hello", **body))["choices"][0]["text"]


def events(text):
    """Returns the JSON of each server-sent event."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_completion_continues_the_prompt(server):
    choice = json.loads(post(server, "/v1/completions", prompt="Hello"))["choices"][0]
    assert "Hello" + choice["text"] == REPLY and choice["finish_reason"] == "stop"


def test_streamed_completion_has_the_same_text(server):
    answer = events(post(server, "/v1/completions", prompt="Hello", stream=True))
    text = "".join(event["choices"][0]["text"] for event in answer if event["choices"])
    assert "Hello" + text == REPLY and len(answer) > 3


def test_logprobs_of_a_completion_are_those_of_the_likeliest_tokens(server):
    choice = json.loads(post(server, "/v1/completions", prompt="Hello", logprobs=2))["choices"][0]
    chosen = choice["logprobs"]["token_logprobs"]
    listed = choice["logprobs"]["top_logprobs"]
    assert all(logprob == max(others.values()) for logprob, others in zip(chosen, listed, strict=True))


def test_grammar_restricts_its_own_request_only(server):
    """vLLM writes the mask into our logits, which the next step computes anew."""
    grammar = {"structured_outputs": {"regex": "[0-9]{6}"}}
    with ThreadPoolExecutor(3) as pool:
        plain, restricted, again = pool.map(lambda body: complete(server, **body), ({}, grammar, grammar))
    assert re.fullmatch("[0-9]{6}", restricted) and restricted == again
    assert "Hello" + plain == REPLY == "Hello" + complete(server)


def test_abandoned_streams_change_no_other_request(server):
    """vLLM frees their pages while steps may be in flight."""
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(complete, server) for _ in range(3)]
        for _ in range(3):
            stream = send(server, "/v1/completions", prompt="Hello", stream=True, max_tokens=1500, ignore_eos=True)
            assert stream.readline().startswith(b"data: ")
            stream.close()
        texts = [other.result() for other in others]
    assert {"Hello" + text for text in (*texts, complete(server))} == {REPLY}


def test_chat_is_parsed_by_vllm(server):
    choice = json.loads(post(server, "/v1/chat/completions", messages=QUESTION))["choices"][0]
    assert choice["message"]["content"] == REPLY and choice["finish_reason"] == "stop"


def test_streamed_chat_has_the_same_content(server):
    answer = events(post(server, "/v1/chat/completions", messages=QUESTION, stream=True))
    deltas = [event["choices"][0]["delta"].get("content") for event in answer if event["choices"]]
    assert "".join(filter(None, deltas)) == REPLY and len(answer) > 3


def test_server_says_that_the_plugin_runs(server):
    assert "firesteel: rank 0 of 1: gpt-oss plugin" in server.log.read_text()
