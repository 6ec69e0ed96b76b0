"""Variables that are read, shown, recorded and passed to children."""

import os
from pathlib import Path

import pytest

from firesteel.config import (
    all_settings,
    child_environment,
    find_user_cache,
    hide_secrets,
    is_secret,
    shown_environment,
    told_environment,
)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/caches", "HOME": "/home/one"}, "/caches"),
        ({"HOME": "/home/one"}, "/home/one/.cache"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/one"}, "/home/one/.cache"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/one"}, "/home/one/.cache"),
    ],
)
def test_cache_folder_follows_the_xdg_base_directories(environ, folder):
    assert find_user_cache(environ) == Path(folder)


def test_user_without_a_home_has_no_cache_folder(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert find_user_cache({}) is None and find_user_cache({"HOME": "relative"}) is None
    assert find_user_cache({"XDG_CACHE_HOME": "/caches"}) == Path("/caches")


def test_shown_environment_hides_secrets():
    environ = {
        "FIRESTEEL_PAGE_SIZE": "16",
        "FIRESTEEL_API_KEY": "abc",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": "def",
        "PATH": "/bin",
    }
    assert shown_environment(environ) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "FIRESTEEL_API_KEY": "(hidden)",
        "FIRESTEEL_PAGE_SIZE": "16",
        "HF_TOKEN": "(hidden)",
    }


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
        "ONEDNN_MAX_CPU_ISA",
        "HF_HUB_OFFLINE",
        "CUDA_MODULE_LOADING",
        "NCCL_DEBUG",
        "FLASHINFER_CUDA_ARCH_LIST",
        "VLLM_MXFP4_MOE_KERNEL",
        "VIRTUAL_ENV",
    ],
)
def test_variables_that_change_how_an_engine_runs_are_recorded(name):
    assert shown_environment({name: "x", "EDITOR": "vi"}) == {name: "x"}


def test_shown_environment_includes_other_engines():
    environ = {
        "VLLM_USE_V1": "1",
        "SGLANG_X": "2",
        "GGML_CUDA_DEBUG": "3",
        "OMP_NUM_THREADS": "1",
        "LLAMA_ARG_HF_TOKEN": "s",
        "VLLM_API_KEY": "s",
        "LAB_REFERENCE_API_KEY": "s",
        "HOME": "/home/one",
    }
    assert shown_environment(environ) == {
        "GGML_CUDA_DEBUG": "3",
        "LLAMA_ARG_HF_TOKEN": "(hidden)",
        "OMP_NUM_THREADS": "1",
        "SGLANG_X": "2",
        "VLLM_API_KEY": "(hidden)",
        "VLLM_USE_V1": "1",
    }


def test_secrets_are_recognised_by_name():
    for name in ("--api-key", "api_key", "FIRESTEEL_API_KEYS", "password", "client_secret", "--auth-token"):
        assert is_secret(name), name
    for name in ("max_tokens", "--max-num-batched-tokens", "kernels", "keyboard", "FIRESTEEL_CONFIG"):
        assert not is_secret(name), name
    assert [name for name in all_settings() if is_secret(name)] == ["api_key"]


def test_access_tokens_are_secret_and_tokens_of_text_are_not():
    for name in ("--hf-token", "HF_TOKEN", "--token", "access_tokens", "GITHUB_TOKEN", "-hft", "--hf_token"):
        assert is_secret(name), name
    for name in (
        "--max-tokens",
        "max_new_tokens",
        "eos_token",
        "--pad-token",
        "bytes_per_token",
        "us_a_token",
        "--stop-token-ids",
        "tokens",
        "prompt_tokens",
        "first_token",
        "tokenizer",
        "-t",
    ):
        assert not is_secret(name), name


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("vllm serve {model} --port {port} --api-key sk-1", "vllm serve {model} --port {port} --api-key (hidden)"),
        ("vllm  --hf-token=sk-1 --max-tokens 5", "vllm  --hf-token=(hidden) --max-tokens 5"),
        ("sh -c 'vllm --api-key sk-1 x' y", "sh -c 'vllm --api-key (hidden) x' y"),
        ("env VLLM_API_KEY=sk-1 vllm serve", "env VLLM_API_KEY=(hidden) vllm serve"),
        ('vllm --api-key "sk 1" --port 1', "vllm --api-key (hidden) --port 1"),
        ("--engine=vllm --enable-x --api-key sk-1", "--engine=vllm --enable-x --api-key (hidden)"),
        ("it's the key to 'all' --doors=open", "it's the key to 'all' --doors=open"),
    ],
)
def test_secrets_in_a_quoted_command_line_are_hidden_and_the_rest_stays(word, shown):
    assert hide_secrets([word]) == [shown] and hide_secrets(["--engine", word])[1] == shown


def test_environment_of_a_child_is_that_of_this_process_with_changes(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FIRESTEEL_PORT", "9")
    environ = child_environment({"OMP_NUM_THREADS": "2"}, without=("FIRESTEEL_PORT",))
    assert environ["OMP_NUM_THREADS"] == "2" and "FIRESTEEL_PORT" not in environ and "PATH" in environ


def test_told_environment_has_engine_variables_without_secrets():
    environ = {
        "VLLM_USE_V1": "1",
        "VLLM_API_KEY": "x",
        "HF_TOKEN": "x",
        "HF_HOME": "/h",
        "EDITOR": "vi",
        "PATH": "/b",
    }
    assert told_environment(environ) == {"HF_HOME": "/h", "PATH": "/b", "VLLM_USE_V1": "1"}
