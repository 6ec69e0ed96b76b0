"""Configs of Eagle3 heads: every public form reads, other drafters and damaged files are refused by name."""

import json

import pytest

from firesteel.model.drafters.eagle3_spec import read_eagle3_spec
from firesteel.model.drafters.errors import DrafterError
from tests.model.drafters.heads import LAYOUTS, Layout, config_of

PLAIN = config_of(Layout())
NESTED = config_of(Layout(nested=True, config={"speculators_model_type": "eagle3"}))


def read(tmp_path, content):
    (tmp_path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_eagle3_spec(tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_reads(name, tmp_path):
    layout = LAYOUTS[name]
    spec = read(tmp_path, config_of(layout))
    assert (spec.hidden_size, spec.head_dim) == (layout.hidden_size, layout.head_dim)
    assert (spec.num_heads, spec.num_kv_heads) == (layout.num_heads, layout.num_kv_heads)
    assert spec.draft_vocab_size == layout.draft_vocab


def test_fields_of_nvidia_and_of_speculators_are_the_same(tmp_path):
    eagle = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "norm_before_fc": True, "use_aux_hidden_state": True}
    nvidia = read(tmp_path, {**PLAIN, "eagle_config": eagle})
    speculators = read(tmp_path, {**NESTED, **eagle})
    assert nvidia.state_ids == speculators.state_ids == [1, 2, 3]
    assert nvidia.norm_before_fc and speculators.norm_before_fc and nvidia.uses_states


def test_usual_acceptance_is_read(tmp_path):
    assert read(tmp_path, {**PLAIN, "usual_acceptance": 0.7}).usual_acceptance == 0.7
    assert read(tmp_path, PLAIN).usual_acceptance is None


def test_only_speculators_normalises_before_the_residual_by_default(tmp_path):
    assert not read(tmp_path, PLAIN).norm_before_residual
    assert read(tmp_path, NESTED).norm_before_residual
    assert not read(tmp_path, {**NESTED, "norm_before_residual": False}).norm_before_residual


def test_head_size_and_kv_heads_have_the_defaults_of_llama(tmp_path):
    content = {name: value for name, value in PLAIN.items() if name not in ("head_dim", "num_key_value_heads")}
    spec = read(tmp_path, content)
    assert (spec.head_dim, spec.num_kv_heads) == (8, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "architectures = .*DFlashDraftModel.*not an Eagle3 head"),
        ({"architectures": "LlamaForCausalLMEagle3"}, "architectures"),
        ({"model_type": "qwen3"}, "model_type = 'qwen3'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers = 2"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"speculators_model_type": "peagle"}, "speculators_model_type = 'peagle'"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm = True"),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm = False"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step = 4"),
        ({"eagle_config": [1]}, "eagle_config must be an object"),
        ({"eagle_config": {"norm_before_fc": True}, "norm_before_fc": False}, "contradiction: norm_before_fc"),
        ({"norm_before_fc": "yes"}, "norm_before_fc must be true or false, not 'yes'"),
        ({"usual_acceptance": 70}, "usual_acceptance = 70: must be a number between 0 and 1"),
        ({"hidden_size": 1 << 40}, "hidden_size = 1099511627776: the limit"),
        ({"hidden_size": -1}, "hidden_size must be a positive number"),
        ({"num_attention_heads": 3}, "num_attention_heads = 3 is not a multiple of num_key_value_heads = 2"),
        ({"head_dim": 7}, "head_dim = 7: rope needs an even number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"draft_vocab_size": "all"}, "draft_vocab_size must be a positive number"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type = 'longrope'"),
    ],
    ids=str,
)
def test_what_firesteel_does_not_compute_is_refused(change, message, tmp_path):
    with pytest.raises(DrafterError, match=f"config.json: {message}"):
        read(tmp_path, {**PLAIN, **change})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', '{"rms_norm_eps": NaN}'])
def test_damaged_files_are_refused(text, tmp_path):
    with pytest.raises(DrafterError, match=r"config\.json.*is this the folder of an Eagle3 head\?"):
        read(tmp_path, text)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DrafterError, match=r"cannot read .*config\.json"):
        read_eagle3_spec(tmp_path)


def test_missing_field_of_a_nested_config_is_named_in_full(tmp_path):
    layer = {name: value for name, value in NESTED["transformer_layer_config"].items() if name != "hidden_size"}
    with pytest.raises(DrafterError, match=r"transformer_layer_config\.hidden_size"):
        read(tmp_path, {**NESTED, "transformer_layer_config": layer})
