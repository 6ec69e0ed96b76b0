"""The run with a profiler: which flags it gets, and how a failure is reported."""

import subprocess
from types import SimpleNamespace

import pytest

from firesteel.cli.model.generate import show_agreement
from firesteel.lab.path.cross_check import cross_check, find_device_name, model_flags


def test_model_flags_are_kept_and_server_flags_dropped():
    flags = [
        "--tile",
        "64x128",
        "--port",
        "9",
        "--no-sinks",
        "--require=moe=triton",
        "--enforce-eager",
        "--log-prompts",
    ]
    assert model_flags(flags) == ["--tile", "64x128", "--no-sinks", "--require=moe=triton", "--enforce-eager"]


def test_flags_of_vllm_are_translated():
    flags = ["--kv-cache-dtype", "fp8_e4m3", "--no-enable-prefix-caching", "--async-scheduling", "--tile=auto"]
    ours = ["--kv-dtype", "fp8", "--no-prefix-caching", "--run-ahead", "--tile=auto"]
    assert model_flags(flags) == ours
    assert model_flags(["--kv-cache-dtype=bfloat16", "--no-sinks"]) == ["--kv-dtype", "bf16", "--no-sinks"]


def test_drafts_are_kept_and_those_of_vllm_translated():
    assert model_flags(["--speculate", "ngram", "--port", "9"]) == ["--speculate", "ngram"]
    theirs = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}', "--no-sinks"]
    assert model_flags(theirs) == ["--speculate", "ngram", "--num-speculative-tokens", "5", "--no-sinks"]


@pytest.mark.slow
def test_failure_is_returned_and_the_output_kept(tmp_path):
    words = cross_check("no/such-model", [], tmp_path)
    assert "not a folder" in words and "not a folder" in (tmp_path / "cross-check.txt").read_text()


@pytest.fixture
def ends_well(monkeypatch):
    """ends_well(output): makes `generate --ledger` print this and return 0."""

    def fake(output):
        done = subprocess.CompletedProcess((), 0, output, "")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    return fake


def test_agreement_must_be_stated(ends_well, tmp_path, capsys):
    """On a CPU `generate --ledger` succeeds without a profiler, which was once taken for agreement."""
    ends_well("Paris.\n")
    assert "does not report that a profiler agrees" in cross_check("kindling", [], tmp_path)
    show_agreement(SimpleNamespace(differences=[], count=12))
    ends_well(f"Paris.\n{capsys.readouterr().out}")
    assert cross_check("kindling", [], tmp_path) == ""


@pytest.mark.parametrize(
    ("flags", "variable", "expected"),
    [
        ((), None, "auto"),
        (("--device", "cpu"), None, "cpu"),
        (("--tile", "64x128", "--device=cpu"), None, "cpu"),
        ((), "cpu", "cpu"),
        (("--device=cuda",), "cpu", "cuda"),
        (("--device=cpu", "--device", "cuda:1"), None, "cuda:1"),
        (("--served-model-name", "cpu"), None, "auto"),
    ],
)
def test_device_is_resolved_as_by_the_server(flags, variable, expected, monkeypatch):
    monkeypatch.delenv("FIRESTEEL_DEVICE", raising=False)
    if variable is not None:
        monkeypatch.setenv("FIRESTEEL_DEVICE", variable)
    assert find_device_name(flags) == expected
