"""vLLM's server with the plugin: completions, chat and streams, through vLLM's own parsers."""

import json
import urllib.request

import pytest

from firesteel.lab.servers.supervisor import ServerCommand, SupervisedServer, find_free_port
from tests.vllm_plugin.chain_checkpoint import REPLY, write_chain
from tests.vllm_plugin.peers import ENVIRONMENT, ROOT, each_version, folder_of

pytestmark = pytest.mark.peer
VOCABULARY = {"TIKTOKEN_ENCODINGS_BASE": str(ROOT / "tests" / "data")}  # else vLLM downloads it
QUESTION = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def servers(checkpoint, tmp_path_factory):
    """servers(version): a running server of that version; one at a time."""
    running = {}

    def start(version):
        if version not in running:
            stop()
            url = f"http://127.0.0.1:{(port := find_free_port())}"
            python, vllm = (folder_of(version) / name for name in ("python", "vllm"))
            words = [
                python,
                vllm,
                "serve",
                checkpoint,
                "--port",
                port,
                "--dtype",
                "bfloat16",
                "--max-model-len",
                2048,
            ]
            command = ServerCommand(
                words=[str(word) for word in words],
                url=url,
                environment=ENVIRONMENT | VOCABULARY,
                ready_s=600.0,
            )
            running[version] = SupervisedServer(command, tmp_path_factory.mktemp("server"))
            running[version].wait_until_ready()
        return running[version]

    def stop():
        while running:
            running.popitem()[1].stop()

    yield start
    stop()


def post(server, path, **body):
    data = json.dumps({"model": server.command.words[3], "temperature": 0, "max_tokens": 40, **body}).encode()
    request = urllib.request.Request(
        server.command.url + path, data, {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def events(text):
    """Returns the JSON of each server-sent event."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@each_version
def test_completion_continues_the_prompt(servers, version):
    choice = json.loads(post(servers(version), "/v1/completions", prompt="Hello"))["choices"][0]
    assert "Hello" + choice["text"] == REPLY and choice["finish_reason"] == "stop"


@each_version
def test_streamed_completion_has_the_same_text(servers, version):
    answer = events(post(servers(version), "/v1/completions", prompt="Hello", stream=True))
    text = "".join(event["choices"][0]["text"] for event in answer if event["choices"])
    assert "Hello" + text == REPLY and len(answer) > 3


@each_version
def test_logprobs_of_a_completion_are_those_of_the_likeliest_tokens(servers, version):
    choice = json.loads(post(servers(version), "/v1/completions", prompt="Hello", logprobs=2))["choices"][0]
    chosen = choice["logprobs"]["token_logprobs"]
    listed = choice["logprobs"]["top_logprobs"]
    assert all(logprob == max(others.values()) for logprob, others in zip(chosen, listed, strict=True))


@each_version
def test_chat_is_parsed_by_vllm(servers, version):
    choice = json.loads(post(servers(version), "/v1/chat/completions", messages=QUESTION))["choices"][0]
    assert choice["message"]["content"] == REPLY and choice["finish_reason"] == "stop"


@each_version
def test_streamed_chat_has_the_same_content(servers, version):
    answer = events(post(servers(version), "/v1/chat/completions", messages=QUESTION, stream=True))
    deltas = [event["choices"][0]["delta"].get("content") for event in answer if event["choices"]]
    assert "".join(filter(None, deltas)) == REPLY and len(answer) > 3


@each_version
def test_server_says_that_the_plugin_runs(servers, version):
    assert "firesteel: rank 0 of 1: gpt-oss plugin" in servers(version).log.read_text()
