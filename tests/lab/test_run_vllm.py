"""vLLM's CPU build tested by the lab, with a small Llama of random weights, and with our plugin.

Its own MXFP4 needs AMX, so only the plugin runs a gpt-oss. `make vllm` installs it.
"""

import json
import shutil
from pathlib import Path

import pytest

from firesteel.hub import BUILT_IN
from firesteel.lab.run import run_lab
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab.observers import RecordingObserver
from tests.vllm_plugin.chain_checkpoint import write_chain
from tests.vllm_plugin.peers import ENVIRONMENT

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-vllm-0.28.0" / "bin"
COMMAND = f"{BIN / 'python'} {BIN / 'vllm'} serve {{model}} --port {{port}}"
OURS = {
    **dict.fromkeys(("moe", "dense", "attention"), "firesteel:reference"),
    "sinks": "on",
    "activation": "bf16",
    "kv": "bf16",
}
FLAGS = ("--max-model-len", "4200", "--enforce-eager", "--dtype", "float32")


def needs_vllm(test):
    is_missing = not (BIN.parent / "installed").is_file()
    return pytest.mark.peer(pytest.mark.skipif(is_missing, reason="needs vLLM's CPU builds: make vllm")(test))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN / name, folder / name)
    vocabulary = json.loads((BUILT_IN / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    return write_chain(tmp_path_factory.mktemp("chain"))


@needs_vllm
@pytest.mark.parametrize(
    ("engine", "model", "seen", "fault"),
    [
        ("vllm", "llama", {"attention": "cpu_attn", "kv": "fp32"}, ""),
        ("vllm+firesteel", "llama", {"attention": "cpu_attn", "kv": "fp32"}, "attention=cpu_attn"),
        ("vllm+firesteel", "gpt_oss", OURS, ""),
        (COMMAND, "gpt_oss", {"moe": "firesteel", "attention": "cpu_attn+firesteel"}, "moe=firesteel, our plugin"),
    ],
)
def test_stock_vllm_and_the_plugin_are_told_apart(engine, model, seen, fault, request, tmp_path, monkeypatch):
    for name, value in {**ENVIRONMENT, "TIKTOKEN_ENCODINGS_BASE": str(ROOT / "tests" / "data")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(BIN), prepend=":")
    folder = request.getfixturevalue(model)
    flags = FLAGS if model == "llama" else (*FLAGS[:-1], "bfloat16")  # the only type of gpt-oss in vLLM
    spec = LabSpec(engine=engine, model=str(folder), flags=flags, quick=True, level="1.5", ready_s=600.0)
    levels = {level.level.number: level for level in run_lab(spec, tmp_path, RecordingObserver()).levels}
    path = levels["1.5"]
    assert path.verdict is (Verdict.FAILED if fault else Verdict.PASSED), path.reason
    assert fault in path.reason
    shown = {row.slot: row.value for row in path.slots.rows if row.values}
    assert shown.items() >= seen.items()
    assert path.facts["imports"]["packages"]["vllm"]["file"].startswith(str(BIN.parent))
    assert path.facts["imports"]["packages"]["flashinfer"] is None


@needs_vllm
def test_vllm_is_started_verified_stressed_and_measured(llama, tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    spec = LabSpec(engine=COMMAND, model=str(llama), flags=FLAGS, quick=True, ready_s=600.0)
    result = run_lab(spec, tmp_path, RecordingObserver())
    levels = {level.level.number: level for level in result.levels}
    assert result.verdict is Verdict.UNPROVEN, [level.reason for level in result.levels]
    assert [str(level) for level in result.unjudged] == ["2"]  # no reference computes a Llama
    assert levels["1.5"].passed and levels["3"].facts["failures"] == []
    assert levels["4"].bench.rows[0].series["tg_tok_s"].values
    assert result.engine.kind == "vllm" and result.shutdown.is_clean
