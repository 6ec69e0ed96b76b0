"""What a real vLLM does with the registration: other models are untouched, and refusals name their cause."""

import json

import pytest

from firesteel.hub import BUILT_IN
from tests.vllm_plugin.peers import ROOT, each_version, run_python

pytestmark = pytest.mark.peer
GPT_OSS = "GptOssForCausalLM"
SPECULATION = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
UNSUPPORTED = {
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "expert parallelism": {"enable_expert_parallel": True, "tensor_parallel_size": 2},
    "data parallelism": {"data_parallel_size": 2},
    "decode context parallelism": {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
    "dual batch overlap": {"enable_dbo": True},
    "LoRA": {"enable_lora": True},
    "vLLM's speculation": {"speculative_config": SPECULATION},
    "KV connectors": {"kv_transfer_config": {"kv_connector": "SharedStorageConnector", "kv_role": "kv_both"}},
    "--kv-cache-dtype fp8": {"kv_cache_dtype": "fp8"},
    "worker extensions": {"worker_extension_cls": "tests.vllm_plugin.generate.Other"},
    "prompt embeddings": {"enable_prompt_embeds": True},
    "the load format bitsandbytes": {"load_format": "bitsandbytes"},
    "pooling": {"runner": "pooling", "convert": "embed"},
    "routed experts in the answer": {"enable_return_routed_experts": True},
    "a choice of attention": {"attention_backend": "TRITON_ATTN"},
    "a choice of the experts' kernel": {"moe_backend": "triton"},
    "a choice of the matmuls' kernel": {"linear_backend": "marlin"},
    "changes of the checkpoint's configuration": {"hf_overrides": {"sliding_window": 64}},
    "the configuration of another folder": {"hf_config_path": str(BUILT_IN)},
    "weights in the host's memory": {"cpu_offload_gb": 1},
    "weights that change": {"weight_transfer_config": {"backend": "nccl"}},
    "KV in the host's memory": {"kv_offloading_size": 1},
    "another quantization": {"quantization": "fp8_per_tensor"},
    "--block-size 48": {"block_size": 48},
}
NEWER = {
    "0.33.0": {"vLLM's kernel of a whole layer": {"monokernel": True}}
}  # options that only these versions have


def examine(vllm, *, pretended=None, options=None, **variables):
    task = {"version": pretended, "options": options or {}}
    code, output = run_python(vllm, [ROOT / "tests/vllm_plugin/examine.py"], task=task, **variables)
    assert code == 0, output[-4000:]
    return json.loads(output.splitlines()[-1])


@each_version
def test_only_gpt_oss_is_replaced_and_what_is_not_supported_is_refused_by_name(version):
    stock = examine(version, FIRESTEEL_VLLM="off")
    ours = examine(version, options={"plain": {}, **UNSUPPORTED, **NEWER.get(version, {})})
    for table in ("models", "hooks"):
        changed = {name for name in stock[table] if stock[table][name] != ours[table][name]}
        assert changed == {GPT_OSS} and stock[table].keys() == ours[table].keys()
    assert ours["models"][GPT_OSS] == "firesteel.vllm_plugin.model:FiresteelGptOss" and ours["generates"]
    assert ours["errors"].pop("plain") is None
    for name, error in ours["errors"].items():
        assert error is not None and f"firesteel does not support {name}" in error, (name, error)
        assert "FIRESTEEL_VLLM=off" in error


@each_version
def test_foreign_version_refuses_gpt_oss_and_no_other_model(version):
    stock = examine(version, FIRESTEEL_VLLM="off")
    refused = examine(version, pretended="0.31.0", options={"plain": {}})
    assert {name for name in stock["models"] if stock["models"][name] != refused["models"][name]} == {GPT_OSS}
    assert (
        refused["models"][GPT_OSS] == "firesteel.vllm_plugin.refusal.refused:RefusedGptOss" and refused["generates"]
    )
    assert "vLLM 0.31.0 is not supported" in refused["errors"]["plain"]
    assert "FIRESTEEL_VLLM=off" in refused["errors"]["plain"]
