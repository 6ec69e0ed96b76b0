"""vLLM's CPU build tested by the lab, with a small Llama of random weights.

Its MXFP4 needs AMX, so the model is not a gpt-oss. `make vllm` installs it.
"""

import json
import shutil
from pathlib import Path

import pytest

from firesteel.hub import BUILT_IN
from firesteel.lab.run import run_lab
from firesteel.lab.spec import LabSpec
from tests.lab.observers import RecordingObserver

BIN = Path(__file__).parents[2] / ".venv-vllm-0.28.0" / "bin"
FLAGS = ("--max-model-len", "4200", "--enforce-eager", "--dtype", "float32")


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


@pytest.mark.peer
@pytest.mark.skipif(not (BIN / "vllm").is_file(), reason="needs vLLM's CPU build: make vllm")
def test_vllm_is_started_verified_stressed_and_measured(llama, tmp_path, monkeypatch):
    for name, value in {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    engine = f"{BIN / 'python'} {BIN / 'vllm'} serve {{model}} --port {{port}}"
    spec = LabSpec(engine=engine, model=str(llama), flags=FLAGS, quick=True, ready_s=600.0)
    result = run_lab(spec, tmp_path, RecordingObserver())
    levels = {level.level.number: level for level in result.levels}
    assert result.passed, [level.reason for level in result.levels]
    assert set(levels["1.5"].backend.seen) == {"cpu"}
    assert levels["1.5"].facts["packages"]["vllm"].startswith(str(BIN.parent))
    assert "not judged" in levels["2"].reason and levels["3"].facts["failures"] == []
    assert levels["4"].bench.rows[0].series["tg_tok_s"].values
    assert result.engine.kind == "vllm" and result.shutdown.is_clean
