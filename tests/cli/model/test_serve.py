"""The verb serve: its flags, and errors before anything is loaded. tests/server starts it."""

import asyncio
import re
import shlex
from types import SimpleNamespace

import pytest

from firesteel.cli.model import serving
from firesteel.cli.model.serving import announcer
from firesteel.config import resolve
from firesteel.device.catalogue import CATALOGUE
from firesteel.server.http.keys import KeyCheck

VLLM = shlex.split("""
--quantization mxfp4 --tensor-parallel-size 1 --load-format auto --async-scheduling --enable-auto-tool-choice
--tool-call-parser openai --reasoning-parser openai_gptoss --gpu-memory-utilization 0.9 --max-model-len 4096
--max-num-seqs 8 --max-num-batched-tokens 1024 --enable-prefix-caching --kv-cache-dtype auto --enforce-eager
--host 127.0.0.1 --port 0 --api-key k --served-model-name m
--speculative-config '{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}'
""")


def test_help_lists_every_flag_of_vllm(run):
    text = run("serve", "--help-all", COLUMNS="300", TERMINAL_WIDTH="300").stdout
    missing = [flag for flag in VLLM if flag.startswith("--") and not re.search(rf"{flag}\b", text)]
    assert missing == [], text


def test_command_line_of_vllm_is_understood(run):
    """The model does not exist, but all flags are parsed before that is noticed."""
    result = run("serve", "/no/such/folder", *VLLM)
    assert result.exit_code == 1 and "/no/such/folder is not a folder" in str(result.exception)
    assert "--quantization mxfp4: " in result.stderr and "--reasoning-parser openai_gptoss: " in result.stderr
    assert "--speculative-config prompt_lookup_max 4: " in result.stderr


@pytest.fixture
def start(run, monkeypatch, tmp_path):
    """start("gb10", "--port", "1") serves nothing: it ends before anything is loaded."""

    async def serve_nothing(config):
        return None

    def begin(gpu, *flags):
        monkeypatch.setattr("firesteel.cli.model.serving.find_device", lambda name: CATALOGUE[gpu])
        monkeypatch.setattr("firesteel.cli.model.serving.run", serve_nothing)
        return run("serve", str(tmp_path), *flags, COLUMNS="400").stderr

    return begin


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tensor-parallel-size", "2"], "one GPU"),
        (["-sc", '{"method": "medusa"}'], "Eagle3"),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 16}'], "from 0 to 15"),
        (["--num-speculative-tokens", "3"], "num_speculative_tokens = 3 (flag): nothing is drafted"),
        (["--quantization", "awq"], "MXFP4"),
        (["--tool-call-parser", "hermes"], "openai"),
        (["--load-format", "gguf"], "safetensors"),
        (["a", "--model", "b"], "two models"),
        (["--port", "99999"], "65535"),
        (["--host", "no such host"], "no such host"),
    ],
)
def test_impossible_flags_are_refused_with_a_reason(run, flags, words):
    result = run("serve", *flags)
    assert result.exit_code != 0 and words in str(result.exception) + result.output


def test_only_the_address_goes_to_stdout(capsys):
    announcer(SimpleNamespace(names=["m"], keys=KeyCheck(["secret"])), "http://127.0.0.1:1")()
    shown = capsys.readouterr()
    assert shown.out == "http://127.0.0.1:1\n"
    assert "curl http://127.0.0.1:1/v1/chat/completions" in shown.err and "secret" not in shown.err


def test_other_verbs_do_not_have_server_flags(run):
    assert "--api-key" not in run("generate", "--help", COLUMNS="300").stdout


def test_key_is_hidden_among_the_settings(run):
    result = run("env", FIRESTEEL_API_KEY="secret")
    assert "secret" not in result.output and "(hidden)" in result.output


def test_start_shows_what_was_chosen_for_the_gpu(start):
    shown = start("gb10", "--prefill-activation", "bf16")
    assert "defaults for NVIDIA GB10: preset spark" in shown
    assert "not measured on gpt-oss" in shown and '--mxfp4-layers ""' in shown
    assert "prefill_activation" not in shown


@pytest.mark.parametrize("flags", [[], ["--device", "cpu"]])
def test_nothing_is_shown_where_no_default_differs(start, flags):
    assert "preset" not in start("h200", *flags)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, None),
        ({"speculate": "ngram"}, "drafts: ngram; "),
        ({"speculate": "dflash", "draft_model": "here"}, "drafts: dflash by here; "),
    ],
    ids=str,
)
def test_start_says_what_drafts(monkeypatch, capsys, tmp_path, settings, said):
    facts = SimpleNamespace(
        load_s=1.0,
        device="CPU",
        max_context=64,
        cache_bytes=1 << 30,
        pages=2,
        page_size=64,
        max_num_seqs=1,
        kernels={},
    )

    async def start(directory, config, **progress):
        return SimpleNamespace(facts=facts)

    monkeypatch.setattr(serving.EngineClient, "start", start)
    asyncio.run(serving.load(tmp_path, resolve(settings).config))
    printed = capsys.readouterr().err
    assert "up to 1 concurrent requests" in printed
    assert (said or "") in printed and ("drafts: " in printed) == bool(settings)
