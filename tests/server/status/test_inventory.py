"""The routes by which vLLM's clients find out what runs here."""

import json

import pytest

from firesteel.server.http.errors import ApiError
from firesteel.server.status.inventory import read_tokenizer_info
from firesteel.version import find_version


def test_version_and_load(server):
    assert server.get("/version").json() == {"version": find_version()}
    assert server.get("/load").json() == {"server_load": 0}
    with server.service.admission.admit(3):
        assert server.get("/load").json() == {"server_load": 3}


def test_ping_is_health_for_both_methods(server):
    assert server.get("/ping").status == server.post("/ping", {}).status == 200
    server.engine.is_ready = False
    assert server.get("/ping").status == server.post("/ping", {}).status == 503


def test_server_info_shows_settings_but_neither_files_nor_keys(open_server):
    server = open_server(api_key="secret-key", max_num_seqs=7)
    answer = server.get("/server_info", authorization="Bearer secret-key")
    info = answer.json()
    assert info["device"] == "CPU" and info["vllm_config"]["model"]["max_model_len"] == 4096
    assert info["vllm_config"]["batch"]["max_num_seqs"] == 7
    assert info["vllm_config"]["speculate"]["speculate"] == "off"
    assert "secret-key" not in answer.body.decode() and "server" not in info["vllm_config"]


def test_routes_need_the_key_but_ping_does_not(open_server):
    server = open_server(api_key="right")
    for path in ("/version", "/load", "/server_info", "/tokenizer_info", "/api/version", "/api/tags"):
        assert server.get(path).status == 401, path
    assert server.get("/ping").status == 200


def test_tokenizer_info_names_special_tokens_and_the_template(tmp_path):
    config = {"eos_token": {"content": "<|return|>"}, "pad_token": "<|pad|>", "chat_template": "old", "extra": 1}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    info = read_tokenizer_info(tmp_path)
    assert (info.eos_token, info.pad_token, info.chat_template) == ("<|return|>", "<|pad|>", "old")
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    assert read_tokenizer_info(tmp_path).chat_template == "{{ new }}"


def test_checkpoint_without_that_file_is_not_found(server, tmp_path):
    with pytest.raises(ApiError, match=r"no tokenizer_config\.json"):
        read_tokenizer_info(tmp_path)
    assert server.get("/tokenizer_info").status == 404
