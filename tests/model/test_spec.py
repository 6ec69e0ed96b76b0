import json
from dataclasses import replace

import pytest

from firesteel.model.fields import SpecError
from firesteel.model.spec import PRESETS, parse_spec, read_spec, write_spec

# The fields of the published openai/gpt-oss-120b config.json.
PUBLISHED = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0",
    "use_cache": True,
    "vocab_size": 201088,
}
YARN = PUBLISHED["rope_scaling"]


def test_published_config_is_the_preset():
    assert parse_spec(PUBLISHED) == PRESETS["gpt-oss-120b"]


@pytest.mark.parametrize("name", PRESETS)
def test_written_config_reads_back(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(write_spec(PRESETS[name])))
    assert read_spec(tmp_path) == PRESETS[name]


def test_layers_in_mxfp4_read_back_and_are_none_in_a_published_config(tmp_path):
    spec = replace(PRESETS["gpt-oss-20b"], mxfp4_layers=("qkv", "lm_head"))
    (tmp_path / "config.json").write_text(json.dumps(write_spec(spec)))
    assert read_spec(tmp_path) == spec
    assert parse_spec(PUBLISHED).mxfp4_layers == ()


@pytest.mark.parametrize("layers", [("o", "qkv"), ("moe",), ("qkv", "qkv"), ("router",)], ids=str)
def test_spec_takes_dense_layers_in_their_order_only(layers):
    with pytest.raises(SpecError, match="mxfp4_layers = "):
        replace(PRESETS["gpt-oss-20b"], mxfp4_layers=layers)


def test_o_in_mxfp4_needs_whole_groups_of_heads():
    narrow = replace(PRESETS["gpt-oss-20b"], num_heads=3, num_kv_heads=1, head_dim=16)
    with pytest.raises(
        SpecError, match=r"num_attention_heads \* head_dim = 48: MXFP4 needs a multiple of 32 for o"
    ):
        replace(narrow, mxfp4_layers=("o",))
    assert replace(narrow, mxfp4_layers=("qkv", "lm_head")).q_size == 48


def test_newer_rope_parameters_read_like_the_published_ones():
    newer = {name: value for name, value in PUBLISHED.items() if name not in ("rope_scaling", "rope_theta")}
    newer["rope_parameters"] = {**YARN, "rope_theta": 150000}
    assert parse_spec(newer) == PRESETS["gpt-oss-120b"]


def test_window_is_on_even_layers_when_layer_types_are_not_given():
    spec = parse_spec({**PUBLISHED, "layer_types": None})
    assert spec.windows == PRESETS["gpt-oss-120b"].windows and spec.windows[:2] == (128, None)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"num_experts": 128}, "unknown field num_experts"),
        ({"head_dim": None}, "head_dim must be a positive number, not None"),
        ({"head_dim": 63}, "head_dim = 63"),
        ({"hidden_size": 2881}, "hidden_size = 2881: MXFP4 needs a multiple of 32"),
        ({"hidden_size": "2880"}, "hidden_size must be"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers must be a whole number"),
        ({"num_key_value_heads": 7}, "not a multiple of num_key_value_heads = 7"),
        ({"experts_per_token": 8}, "contradiction: num_experts_per_tok = 4, experts_per_token = 8"),
        ({"num_local_experts": 2}, "num_experts_per_tok = 4 exceeds num_local_experts = 2"),
        ({"layer_types": ["full_attention"]}, "layer_types must list num_hidden_layers = 36"),
        ({"layer_types": ["chunked_attention"] * 36}, "'chunked_attention' is neither"),
        ({"sliding_window": None}, "sliding_window must be"),
        ({"attention_bias": False}, "attention_bias = False: gpt-oss has True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = True"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha = 1.0"),
        ({"rope_scaling": {**YARN, "rope_type": "llama3"}}, "rope_scaling.rope_type = 'llama3'"),
        ({"rope_scaling": {**YARN, "mscale": 1.0}}, "unknown field rope_scaling.mscale"),
        ({"rope_scaling": {**YARN, "truncate": 1}}, "rope_scaling.truncate"),
        ({"rope_parameters": {**YARN, "rope_theta": 1e4}}, "rope_scaling and rope_parameters are both given"),
        ({"rope_scaling": None, "rope_parameters": {**YARN, "rope_theta": 1e4}}, "contradiction: rope_theta"),
        ({"quantization_config": None}, "experts are not MXFP4"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method = 'awq'"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "says NVFP4"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(change, complaint):
    with pytest.raises(SpecError, match=complaint):
        parse_spec({**PUBLISHED, **change})


def test_head_dim_is_never_derived_from_hidden_size():
    without = {name: value for name, value in PUBLISHED.items() if name != "head_dim"}
    with pytest.raises(SpecError, match="head_dim"):
        parse_spec(without)


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "is .* a checkpoint folder"), ("{", "not valid JSON"), ("[]", "holds list")]
)
def test_an_unreadable_config_names_the_file(content, complaint, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(SpecError, match=f"config.json.*{complaint}"):
        read_spec(tmp_path)
