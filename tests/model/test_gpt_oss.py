"""The network compared with transformers' GptOss in float32 on exactly dequantised weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM

from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import find_device
from firesteel.engine.engine import Engine
from firesteel.formats import mxfp4
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec, read_spec, write_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import load_weights, named_tensors
from firesteel.types import Request, SamplingParams

CPU = find_device("cpu")
PARTS = Path(__file__).with_name("network_parts.py")
BASE = ModelSpec(
    num_layers=4,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=6,
    num_active=4,
    vocab_size=300,
    windows=(8, None, 8, None),
    rope=RopeSpec(theta=150000.0, factor=32.0, original_context=64),
    max_context=2048,
)
SPECS = {
    "base": BASE,
    "no yarn, multi-query": replace(BASE, rope=RopeSpec(theta=10000.0), num_kv_heads=1),
    "window wider than the prompt": replace(BASE, windows=(128, None, 128, None), num_experts=16, num_active=2),
    "all heads their own, all experts active": replace(BASE, num_kv_heads=4, num_experts=4, hidden_size=64),
    "two layers, head_dim 64, wide": replace(
        BASE, num_layers=2, windows=(5, None), head_dim=64, hidden_size=160, intermediate_size=288, vocab_size=97
    ),
    "truncated yarn, one expert": replace(
        BASE, rope=replace(BASE.rope, truncate=True, factor=4.0, beta_fast=16.0), num_active=1, rms_eps=1e-3
    ),
    "full layers only, small clamp": replace(BASE, windows=(None,) * 4, swiglu_limit=0.5, num_heads=8),
    "one layer, window of one token": replace(BASE, num_layers=1, windows=(1,), num_experts=3, num_active=3),
}


def transformers_model(spec, weights):
    """Returns the oracle with our weights, its experts dequantised exactly and transposed."""
    content = write_spec(spec)
    del content["quantization_config"]
    rope = content.pop("rope_scaling") or {"rope_type": "default"}
    content["rope_parameters"] = {**rope, "rope_theta": content.pop("rope_theta")}
    oracle = GptOssForCausalLM(GptOssConfig(**content, attn_implementation="eager")).float().eval()
    state = {}
    for name, tensor in named_tensors(weights, spec).items():
        if name.endswith("_blocks"):
            scales = named_tensors(weights, spec)[name.replace("_blocks", "_scales")]
            state[name.removesuffix("_blocks")] = mxfp4.dequantize(tensor.flatten(-2), scales).transpose(1, 2)
        elif not name.endswith("_scales"):
            state[name] = tensor.float()
    oracle.load_state_dict(state, strict=True)
    return oracle


def engine_of(directory):
    spec = read_spec(directory)
    weights, _ = load_weights(directory, spec, CPU, workers=2, reserve_gib=0.0)
    model = GptOss(spec, weights, Kernels(CPU, {}, Ledger()), CPU, max_context=spec.max_context)
    config = BatchConfig(page_size=16, max_num_batched_tokens=23, max_num_seqs=2)
    return Engine(model, CPU, config, CacheConfig(), max_context=spec.max_context)


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
@pytest.mark.parametrize("label", SPECS)
def test_logits_and_greedy_tokens_equal_transformers(label, sharded, tmp_path, score):
    spec = SPECS[label]
    seed = sorted(SPECS).index(label)
    weights = synthetic_weights(spec, CPU, seed=seed)
    save_checkpoint(tmp_path, spec, weights, shard_bytes=50_000 if sharded else None)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 2) == sharded
    prompt = torch.randint(spec.vocab_size, (40,), generator=torch.Generator().manual_seed(seed)).tolist()
    engine = engine_of(tmp_path)
    oracle = transformers_model(spec, weights)
    with torch.inference_mode():
        expected = oracle(torch.tensor([prompt])).logits[0]
    actual = score(engine, prompt)
    assert actual.dtype == torch.float32
    assert (actual - expected).norm() / expected.norm() < 1e-4
    assert (actual - expected).abs().max() / expected.abs().max() < 1e-4

    engine.submit(Request(request_id="a", token_ids=prompt, params=SamplingParams(max_tokens=24)))
    new = [token for _ in range(25) for output in engine.step() for token in output.token_ids]
    assert not engine.has_work
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        for _ in range(24):
            ids = torch.cat((ids, oracle(ids).logits[:, -1:].argmax(-1)), dim=1)
    assert [*prompt, *new] == ids[0].tolist()


def test_weights_of_the_oracle_test_are_not_trivial():
    named = named_tensors(synthetic_weights(BASE, CPU, seed=0), BASE)
    for name in (
        "model.layers.0.self_attn.sinks",
        "model.layers.0.mlp.experts.down_proj_bias",
        "model.norm.weight",
    ):
        assert named[name].float().std() > 0.05, name


def test_sinks_off_changes_the_logits(tmp_path, score):
    save_checkpoint(tmp_path, BASE, synthetic_weights(BASE, CPU, seed=0))
    engine = engine_of(tmp_path)
    with_sinks = score(engine, [1, 2, 3])
    engine.runner.model.sinks = False
    without = score(engine, [1, 2, 3])
    assert (with_sinks - without).norm() / with_sinks.norm() > 1e-2


@pytest.mark.parametrize(
    "activation",
    ["mxfp8", pytest.param("bf16", marks=pytest.mark.slow), pytest.param("mxfp4", marks=pytest.mark.slow)],
)
def test_norms_store_for_the_matmuls_that_follow_to_the_same_bits(activation, run_interpreted):
    """Runs in Triton's interpreter: no kernel stores rows after a norm, and nothing else changes."""
    run_interpreted(PARTS, activation)


def test_references_are_given_plain_rows(tmp_path, score):
    save_checkpoint(tmp_path, BASE, synthetic_weights(BASE, CPU, seed=0))
    engine = engine_of(tmp_path)
    score(engine, [1, 2, 3])
    assert "rms_norm_fed" not in {ran.op for ran in engine.runner.model.kernels.ledger.entries}


def test_config_written_is_what_transformers_reads(tmp_path):
    save_checkpoint(tmp_path, BASE, synthetic_weights(BASE, CPU, seed=0))
    config = GptOssConfig(**json.loads((tmp_path / "config.json").read_text()))
    assert config.head_dim == 32 and config.num_local_experts == 6
    assert config.layer_types == ["sliding_attention", "full_attention"] * 2
    assert config.rope_parameters["rope_theta"] == 150000.0 and config.rope_parameters["factor"] == 32.0
