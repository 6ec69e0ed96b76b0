"""Command lines of engines."""

import sys
from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.servers.commands import find_key, find_kind, find_model, make_command


def words(engine, **fields):
    return list(make_command(engine, model="M", port=81, folder=Path("/out"), **fields).words)


def test_own_server_uses_this_interpreter_and_the_folder_of_the_run():
    command = words("firesteel", flags=("--tile", "auto"))
    assert command[:4] == [sys.executable, "-m", "firesteel", "serve"] and command[-2:] == ["--tile", "auto"]
    assert (
        command[command.index("--crash-dir") + 1] == "/out/crashes" and command[command.index("--port") + 1] == "81"
    )


def test_other_engines_get_the_folder_of_a_named_model():
    assert find_model("firesteel", "kindling") == "kindling"
    assert (Path(find_model("vllm", "kindling")) / "config.json").is_file()
    assert find_model("vllm", "some/model") == "some/model"


def test_key_is_that_of_the_servers_command(monkeypatch):
    monkeypatch.setenv("FIRESTEEL_API_KEY", "ours")
    assert find_key(("--tile", "auto")) == "ours"
    assert find_key(("--api-key", "a")) == "a" and find_key(("--api-key=b", "-x")) == "b"
    command = "vllm serve {model} --port {port} --api-key c"
    assert find_key((), engine=command) == "c" and find_key(("--api-key", "a"), engine=command) == "a"
    assert find_key((), engine="vllm") == "ours"


def test_key_is_the_first_of_several(monkeypatch, tmp_path):
    (tmp_path / "keys").write_text("in-file\nother\n")
    monkeypatch.delenv("FIRESTEEL_API_KEY", raising=False)
    assert find_key(()) == "" and find_key(("--api-key-file", str(tmp_path / "keys"))) == "in-file"
    monkeypatch.setenv("FIRESTEEL_API_KEY", "first\nsecond")
    assert find_key(()) == "first"


@pytest.mark.parametrize("engine", ["vllm", "vllm+firesteel", "sglang", "llamacpp"])
def test_other_engines_get_model_and_port(engine):
    assert {"M", "81"} <= set(words(engine))


def test_llama_server_is_told_to_log_where_the_layers_are_unless_the_user_says_otherwise():
    command = words("llamacpp", flags=("-lv", "5"))
    assert command[-4:] == ["--verbosity", "4", "-lv", "5"]  # it takes the last one


def test_custom_commands_place_model_and_port():
    assert words("serve 'a b' {model} -p {port}", flags=("-x",)) == ["serve", "a b", "M", "-p", "81", "-x"]
    with pytest.raises(UserError, match=r"neither one of firesteel, vllm, vllm\+firesteel, sglang, llamacpp"):
        words("serve")


def test_container_gets_port_model_flags_and_variables():
    engine = "docker run -p {port}:8000 -v {model}:/m vllm/vllm-openai --model /m"
    command = make_command(engine, model="/M", port=81, folder=Path("/out"), flags=("--x",), debug=True)
    assert command.url == "http://127.0.0.1:81" and command.container.image == "vllm/vllm-openai"
    assert command.words[2:] == ("-p", "81:8000", "-v", "/M:/m", *command.words[6:])
    assert command.words[-4:] == ("--model", "/m", "--enforce-eager", "--x")
    assert command.environment["CUDA_LAUNCH_BLOCKING"] == "1"


def test_fixed_port_of_a_container_is_the_one_that_is_asked():
    command = make_command("docker run -p 8123:8000 vllm/vllm-openai", model="M", port=81, folder=Path("/out"))
    assert command.url == "http://127.0.0.1:8123"


def test_debug_blocks_launches_and_disables_graphs():
    command = make_command("firesteel", model="M", port=81, folder=Path("/out"), debug=True)
    assert command.environment["CUDA_LAUNCH_BLOCKING"] == command.environment["TORCH_SHOW_CPP_STACKTRACES"] == "1"
    assert "--enforce-eager" in command.words
    assert not make_command("sglang", model="M", port=81, folder=Path("/out")).environment


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("engine", "switch"),
    [("vllm", "off"), ("vllm+firesteel", "on"), ("sglang", None), ("vllm serve {model} --port {port}", None)],
)
def test_vllm_is_measured_with_the_plugin_only_if_it_is_named(engine, switch, debug):
    """If firesteel is installed beside vLLM, `--engine vllm` would measure our kernels otherwise."""
    command = make_command(engine, model="M", port=81, folder=Path("/out"), debug=debug)
    assert command.environment.get("FIRESTEEL_VLLM") == switch
    assert ("CUDA_LAUNCH_BLOCKING" in command.environment) == debug
    assert ("--enforce-eager" in command.words) == (debug and engine != "sglang")


def test_debug_flags_follow_the_engine_that_a_command_names():
    """They were once looked up by the whole command line."""
    assert words("/x/python -m vllm.serve {port}", debug=True)[-1] == "--enforce-eager"
    assert words("thing {port}", debug=True) == ["thing", "81"]


@pytest.mark.parametrize("make", [words, find_kind])
def test_unclosed_quote_is_refused(make):
    with pytest.raises(UserError, match="No closing quotation"):
        make("x '{port}")


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("vllm", "vllm"),
        ("/x/bin/python -m vllm.serve {port}", "vllm"),
        ("vllm+firesteel", "vllm+firesteel"),
        ("env FIRESTEEL_VLLM=on vllm serve --port {port}", "vllm+firesteel"),
        ("env FIRESTEEL_VLLM=off vllm serve --port {port}", "vllm"),
        ("env FIRESTEEL_VLLM=on thing {port}", "other"),
        ("llama-server -p {port}", "llamacpp"),
        ("/venv/vllm/bin/python -m sglang.launch_server {port}", "sglang"),
        ("/srv/firesteel/thing {port}", "other"),
        ("python -m firesteel serve --port {port}", "firesteel"),
        ("thing {port}", "other"),
        ("docker run --name vllm -v vllm:/x -p 8000:8000 lmsysorg/sglang:v0.6 --port 8000", "sglang"),
        ("docker run -p {port}:8000 vllm/vllm-openai:v0.32 --model m", "vllm"),
        ("docker run -e FIRESTEEL_VLLM=on -p {port}:8000 vllm/vllm-openai", "vllm+firesteel"),
        ("podman run --network host nvcr.io/nvidia/pytorch:26.04-py3 vllm serve m --port {port}", "vllm"),
        ("docker run --entrypoint /app/llama-server -p 8080:8080 x", "llamacpp"),
        ("docker run -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server-cuda", "llamacpp"),
        ("docker run -p 8080:8080 thing", "other"),
    ],
)
def test_rules_follow_the_engine_that_a_command_names(engine, kind):
    assert find_kind(engine) == kind
