"""The verb env: the table of settings."""

import json

import pytest

from firesteel.config import all_settings


def test_env_table_shows_every_setting_in_full(run):
    """Long names were once cut off with an ellipsis, and brackets in a value vanished as markup."""
    result = run("env", "--model", "/models/[bold]x", FIRESTEEL_MAX_NUM_BATCHED_TOKENS="77")
    for setting in all_settings().values():
        assert f" {setting.name} " in result.stdout and f" {setting.env} " in result.stdout
    row = next(line for line in result.stdout.splitlines() if "max_num_batched_tokens" in line)
    assert " 77 " in row and " environment FIRESTEEL_MAX_NUM_BATCHED_TOKENS " in row
    assert "/models/[bold]x" in result.stdout


@pytest.mark.parametrize("name", ["gb10", "DGX Spark"])
def test_defaults_of_a_gpu_are_shown_without_it(run, name):
    result = run("env", "--gpu", name, COLUMNS="400")
    row = next(line for line in result.stdout.splitlines() if " mxfp4_layers " in line)
    assert " qkv,o,lm_head " in row and " preset spark " in row
    assert "defaults for NVIDIA GB10: preset spark" in result.stdout
    assert "not measured on gpt-oss" in result.stdout


def test_defaults_of_a_gpu_as_json(run):
    answer = json.loads(run("env", "--gpu", "gb10", "--max-decode-delay-ms", "77", "--json").stdout)
    assert (answer["gpu"], answer["preset"]) == ("NVIDIA GB10", "spark")
    chosen = {choice["setting"]: choice["value"] for choice in answer["choices"]}
    assert chosen == {
        "mxfp4_layers": "qkv,o,lm_head",
        "prefill_activation": "mxfp8",
        "memory_reserve_gib": 12.0,
        "kv_cache_gib": "4 requests of full length",
    }
    values = {row["name"]: row["value"] for row in answer["settings"]}
    assert values["max_decode_delay_ms"] == 77 and set(values) == set(all_settings())


def test_gpu_whose_defaults_do_not_differ_says_so(run):
    assert "NVIDIA H200: preset as-shipped, no default differs" in run("env", "--gpu", "h200").stdout


def test_unknown_gpu_is_refused(run):
    result = run("env", "--gpu", "tpu")
    assert result.exit_code != 0 and "it has gb10, h100" in str(result.exception)
