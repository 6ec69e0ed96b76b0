"""Clients of the Responses API, unmodified and configured as docs/clients.md says: tool loops, and Kindling."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from tests.server import recipes

LOOK = (
    "<|channel|>analysis<|message|>Weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)
FINAL = "<|channel|>final<|message|>It rains in Paris.<|return|>"
CALL = "<|channel|>commentary to=functions.{}<|message|>{}<|call|>"
# A served name that Codex takes for a model with the free-form tool apply_patch.
FREE_FORM = "gpt-5.5"


@pytest.fixture
def open_scripted(open_server):
    """open_scripted(scripts): a server with room for a long prompt, whose answers are these, in order."""

    def open_it(*scripts, **settings):
        server = open_server(**settings)
        server.engine.facts = msgspec.structs.replace(server.engine.facts, max_context=1 << 18)
        server.engine.scripts = list(scripts)
        return server

    return open_it


def run(command, folder, **variables):
    """Runs a client with a home folder of its own, and returns what it printed."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**kept, "HOME": str(folder), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_codex(server, model, folder):
    """Runs `codex exec` without its sandbox, which not every machine can give; the scripts do no harm."""
    recipes.find_node()
    codex = recipes.find_client("node_modules/.bin/codex")
    home, work = folder / ".codex", folder / "work"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(recipes.read_recipe("Codex CLI", url=server.url, model=model))
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--cd", work, "--json"]
    lines = run([codex, "exec", *flags, "Say hello"], folder, CODEX_HOME=str(home)).splitlines()
    return [json.loads(line) for line in lines]


def run_node(title, server, model, folder):
    packages = recipes.find_client("node_modules")
    (folder / "node_modules").symlink_to(packages)
    (folder / "program.mjs").write_text(recipes.read_recipe(title, url=server.url, model=model))
    return run([recipes.find_node(), "program.mjs"], folder)


def last_prompt(server):
    return server.engine.tokenizer.decode(server.engine.requests[-1].token_ids)


@pytest.mark.peer
def test_codex_runs_a_command_and_a_tool_of_a_namespace(open_scripted, tmp_path):
    echo = CALL.format("exec_command", '{"cmd": "echo one-$((1 + 1))-three"}')
    close = CALL.format("multi_agent_v1__close_agent", '{"target": "nobody"}')
    server = open_scripted(echo, close, FINAL)
    events = run_codex(server, "tiny", tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert items[-1]["type"] == "agent_message" and items[-1]["text"] == "It rains in Paris."
    assert "one-2-three" in last_prompt(server)
    answered = last_prompt(server).partition("<|start|>functions.multi_agent_v1__close_agent to=assistant")[2]
    assert "nobody" in answered and "unsupported" not in answered and len(server.engine.requests) == 3


@pytest.mark.peer
def test_codex_applies_a_free_form_patch(open_scripted, tmp_path):
    patch = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch"
    server = open_scripted(CALL.format("apply_patch", patch), FINAL, served_model_name=FREE_FORM)
    run_codex(server, FREE_FORM, tmp_path)
    assert (tmp_path / "work" / "hello.txt").read_text() == "hello\n"
    assert "begin_patch" in server.engine.requests[0].params.grammar


@pytest.mark.peer
def test_codex_shows_the_answer_of_kindling(open_kindling, tmp_path):
    events = run_codex(open_kindling, "kindling", tmp_path)
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] > 0


@pytest.mark.peer
def test_ai_sdk_runs_tools_in_steps(open_scripted, tmp_path):
    server = open_scripted(LOOK, LOOK, FINAL)
    assert run_node("AI SDK", server, "tiny", tmp_path) == "It rains in Paris.\n"
    assert len(server.engine.requests) == 3 and last_prompt(server).count('"sky":"rain"') == 2
    assert last_prompt(server).count("analysis<|message|>Weather.") == 2  # found by item_reference


@pytest.mark.peer
def test_javascript_sdk_streams(open_kindling, tmp_path):
    assert "Paris" in run_node("openai (JavaScript)", open_kindling, "kindling", tmp_path)


@pytest.mark.peer
def test_agents_run_their_tools(open_scripted, tmp_path):
    server = open_scripted(LOOK, FINAL)
    python = recipes.find_client("agents/bin/python")
    program = recipes.read_recipe("openai-agents", url=server.url, model="tiny")
    assert run([python, "-c", program], tmp_path) == "It rains in Paris.\n"
    assert "rain in Paris<|end|>" in last_prompt(server)


def test_python_recipe_runs(server, tmp_path):
    program = recipes.read_recipe("openai (Python)", url=server.url, model="tiny")
    assert run([sys.executable, "-c", program], tmp_path) == "Hello.\n"
