"""Clients of the chat API, unmodified and configured as docs/clients.md says, against scripted answers."""

import os
import subprocess

import msgspec
import pytest

from tests.server import recipes

pytestmark = pytest.mark.peer
PARIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|return|>"
CITY = '<|channel|>final<|message|>{"name": "Paris."}<|return|>'
# Both routers ask for the same model; only the second server has room for the prompt.
FALL_BACK = """
import sys
import litellm

litellm.suppress_debug_info = True
first, second = [{"model": "hosted_vllm/tiny", "api_base": url + "/v1", "api_key": "x"} for url in sys.argv[1:3]]
messages = [{"role": "user", "content": "word " * 2000}]
try:
    litellm.completion(messages=messages, **first)
except litellm.ContextWindowExceededError as error:
    print("recognised:", error.status_code)
router = litellm.Router(
    model_list=[
        {"model_name": "short", "litellm_params": first}, {"model_name": "long", "litellm_params": second}
    ],
    context_window_fallbacks=[{"short": ["long"]}],
)
print(router.completion(model="short", messages=messages).choices[0].message.content)
"""

TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: capitals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: [" Paris", " Berlin"]
doc_to_target: answer
metric_list: [{metric: acc}]
"""


def run(command, folder, **variables):
    """Runs a client with a home folder of its own, and returns what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def open_large(open_server, script=PARIS):
    """Opens a server with room for the long prompts of agents."""
    server = open_server(script)
    server.engine.facts = msgspec.structs.replace(server.engine.facts, max_context=1 << 18)
    return server


@pytest.mark.parametrize(
    ("title", "environment", "script"),
    [
        ("LiteLLM", "litellm", PARIS),
        ("LangChain", "langchain", PARIS),
        ("Pydantic AI", "pydantic-ai", PARIS),
        ("Instructor", "instructor", CITY),
    ],
)
def test_recipe_in_python(open_server, tmp_path, title, environment, script):
    python, server = recipes.find_client(f"{environment}/bin/python"), open_server(script)
    recipe = recipes.read_recipe(title, url=server.url, model="tiny")
    assert run([python, "-c", recipe], tmp_path) == "Paris.\n"
    [request] = server.engine.requests
    assert ("%json" in (request.params.grammar or "")) == (script is CITY)


def test_litellm_recognises_a_prompt_that_is_too_long_and_asks_the_next_model(open_server, tmp_path):
    """LiteLLM knows the error by OpenAI's sentence; it raised a plain bad request before."""
    python = recipes.find_client("litellm/bin/python")
    first, second = open_server(), open_large(open_server)
    printed = run([python, "-c", FALL_BACK, first.url, second.url], tmp_path)
    assert printed == "recognised: 400\nParis.\n"
    assert not first.engine.requests and len(second.engine.requests) == 1


def test_llm_on_the_command_line(open_server, tmp_path):
    llm, server = recipes.find_client("llm/bin/llm"), open_server(PARIS)
    recipe = recipes.read_recipe("llm", url=server.url, model="tiny")
    (tmp_path / "extra-openai-models.yaml").write_text(recipe)
    printed = run(
        [llm, "-m", "firesteel", "Hi", "--no-stream"], tmp_path, LLM_USER_PATH=str(tmp_path), OPENAI_API_KEY="x"
    )
    assert "Paris." in printed


def test_aider_writes_its_answer(open_server, tmp_path):
    aider, server = recipes.find_client("aider/bin/aider"), open_large(open_server)
    recipe = recipes.read_recipe("aider", url=server.url, model="tiny")
    once = "--message Hi --no-git --yes-always --no-check-update --analytics-disable --no-show-model-warnings"
    command = f"{recipe.strip()} {once} --no-pretty --no-stream"
    printed = run(["bash", "-c", command], tmp_path, PATH=f"{aider.parent}:{os.environ['PATH']}")
    assert "Paris." in printed and server.engine.requests


def test_codex_finds_the_model_as_ollamas(open_server, tmp_path):
    recipes.find_node()
    codex, server = recipes.find_client("node_modules/.bin/codex"), open_large(open_server)
    recipe = recipes.read_recipe("Ollama's clients", url=server.url, model="tiny").strip()
    once = "--skip-git-repo-check Hi"
    command = f"{recipe.replace('codex ', 'codex exec ')} {once}"
    path = f"{codex.parent}:{os.environ['PATH']}"
    assert "Paris." in run(["bash", "-c", command], tmp_path, PATH=path, CODEX_HOME=str(tmp_path))
    assert server.engine.requests


def test_opencode_answers(open_server, tmp_path):
    recipes.find_node()
    opencode, server = recipes.find_client("node_modules/.bin/opencode"), open_large(open_server)
    recipe = recipes.read_recipe("opencode", url=server.url, model="tiny")
    (tmp_path / "opencode.json").write_text(recipe)
    assert "Paris." in run([opencode, "run", "-m", "firesteel/tiny", "Hi"], tmp_path)


def test_lm_eval_with_the_servers_tokenizer(open_kindling, tmp_path):
    program = recipes.find_client("lm_eval/bin/lm_eval")
    (tmp_path / "capitals.yaml").write_text(TASK)
    (tmp_path / "capitals.jsonl").write_text('{"question": "The capital of France is", "answer": 0}\n')
    recipe = recipes.read_recipe("lm_eval", url=open_kindling.url, model="kindling").replace("arc_easy", "capitals")
    command = recipe.replace("--model_args", "--include_path . --output_path out --model_args")
    path = f"{program.parent}:{os.environ['PATH']}"
    printed = run(["bash", "-c", command], tmp_path, PATH=path, HF_HUB_OFFLINE="1")
    assert "|capitals|" in printed
    asked = [
        path
        for path in ("/tokenizer_info", "/tokenize", "/v1/completions")
        if f"path={path} " in "".join(open_kindling.log)
    ]
    assert asked == ["/tokenizer_info", "/tokenize", "/v1/completions"]
