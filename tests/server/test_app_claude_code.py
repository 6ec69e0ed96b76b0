"""Claude Code, unmodified and configured as docs/clients.md says, gets well-formed answers to all its requests."""

import json
import os
import re
import subprocess

import msgspec
import pytest

from tests.server.conftest import FINAL
from tests.server.recipes import ADDRESS, MODEL, find_client, find_node, read_recipe

TITLE = "Claude Code"
PROGRAM = "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"
CALL = (
    "<|channel|>analysis<|message|>I run it.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>"
    '{"command": "echo fire$((6 * 7))steel", "description": "Prints a word"}<|call|>'
)


@pytest.fixture
def program():
    return [find_node(), str(find_client(PROGRAM))]


def fill_in(server, model):
    """Returns the recipe for a server with the key "right"."""
    recipe = read_recipe(TITLE, url=server.url, model=model)
    assert "=anything\n" in recipe
    return recipe.replace("=anything\n", "=right\n")


def run(program, recipe, folder, *flags):
    """Returns the result that Claude Code prints; it has a new home and reaches loopback only."""
    home = folder / "home"
    home.mkdir()
    script = re.sub(r"^claude$", '"$@" --output-format json', recipe, flags=re.MULTILINE)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HTTPS_PROXY": "http://127.0.0.1:9",  # nothing listens there
        "NO_PROXY": "127.0.0.1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64",
    }
    done = subprocess.run(
        ["bash", "-euc", script, "bash", *program, "-p", *flags],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout)


def statuses(server, begin):
    """Returns the statuses of the server's requests to /v1/messages since a line of its log."""
    lines = [line for line in server.log[begin:] if "path=/v1/messages" in line]
    return [int(re.search(r"status=(\d+)", line)[1]) for line in lines]


def test_recipe_sets_every_model_and_keeps_traffic_home():
    recipe = read_recipe(TITLE, url=ADDRESS, model=MODEL)
    names = re.findall(r"^export (\w+)=", recipe, re.MULTILINE)
    assert {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"} <= set(names)
    assert len([name for name in names if name.endswith("_MODEL")]) == 4
    assert recipe.splitlines()[-1] == "claude"


@pytest.mark.peer
def test_question_is_answered(program, kindling_server, tmp_path):
    recipe = fill_in(kindling_server, "kindling")
    begin = len(kindling_server.log)
    result = run(
        program, recipe, tmp_path, "What is the capital of France?", "--tools", "", "--system-prompt", "Be brief."
    )
    assert not result["is_error"] and result["result"] and result["usage"]["output_tokens"] > 0, result
    assert set(statuses(kindling_server, begin)) == {200}


@pytest.mark.peer
def test_long_prompt_is_an_error_that_it_understands(program, kindling_server, tmp_path):
    """All tools and instructions exceed Kindling's context of 16384 tokens."""
    recipe = fill_in(kindling_server, "kindling")
    result = run(program, recipe, tmp_path, "hi")
    assert result["is_error"] and result["api_error_status"] == 400, result
    assert result["result"].startswith("Prompt is too long") and "16384" in result["result"]


@pytest.mark.peer
@pytest.mark.parametrize("variable", ["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"])
def test_tool_is_run_and_its_result_read(program, open_server, tmp_path, variable):
    server = open_server(api_key="right")
    engine, prompts = server.engine, []
    engine.facts = msgspec.structs.replace(engine.facts, max_context=1 << 18)  # its tokenizer knows bytes only
    generate = engine.generate

    async def choose(request):
        prompts.append(engine.tokenizer.decode(request.token_ids))
        engine.script = FINAL if "functions.Bash to=assistant" in prompts[-1] else CALL
        async for output in generate(request):
            yield output

    engine.generate = choose
    recipe = fill_in(server, "tiny").replace("ANTHROPIC_AUTH_TOKEN", variable)
    recipe = f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS=500\n{recipe}"
    result = run(program, recipe, tmp_path, "Run it.", "--allowedTools", "Bash")
    assert (result["is_error"], result["result"], result["num_turns"]) == (False, "Hello.", 2), result
    assert "fire42steel" in prompts[-1] and "I run it." in prompts[-1]
    assert "x-anthropic-billing-header" not in prompts[-1]
