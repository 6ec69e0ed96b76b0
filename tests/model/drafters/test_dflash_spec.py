"""Config files of DFlash drafters: what they say, and one clear error for each that does not fit."""

import json

import pytest

from firesteel.kernels.rope import RopeSpec
from firesteel.model.drafters.dflash_spec import parse_dflash_spec, read_dflash_spec, write_dflash_spec
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.spec import PRESETS
from tests.model.drafters.dflash_oracle import draw_config

TARGET = PRESETS["gpt-oss-120b"]
PUBLISHED = draw_config(
    TARGET,
    block_size=10,
    dflash_config={"mask_token_id": 200000, "target_layer_ids": [1, 9, 17, 25, 33]},
    num_hidden_layers=8,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    intermediate_size=7680,
)


def read(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return read_dflash_spec(folder, TARGET)


def test_published_drafter_of_the_120b(tmp_path):
    spec = read(tmp_path, PUBLISHED)
    assert (spec.span, spec.mask_token_id, spec.has_bias) == (10, 200000, True)
    assert spec.boundaries == (2, 10, 18, 26, 34) and spec.num_features == 14400
    assert (spec.num_layers, spec.q_size, spec.kv_size, spec.intermediate_size) == (8, 4096, 512, 7680)
    assert spec.rope == RopeSpec(theta=150000.0, factor=32.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt_oss"},
        {"layer_types": None, "use_sliding_window": None},
        {"target_hidden_size": 2880, "draft_vocab_size": 201088, "is_causal": False},
        {"dflash_config": {**PUBLISHED["dflash_config"], "block_size": 10, "causal": False, "use_swa": False}},
        {"swiglu_limit": 7.0, "initial_context_length": 4096},
    ],
    ids=str,
)
def test_other_ways_to_say_the_same(tmp_path, changes):
    assert read(tmp_path, PUBLISHED | changes) == read(tmp_path, PUBLISHED)


def test_missing_fields_with_a_meaning(tmp_path):
    absent = ("vocab_size", "attention_bias", "layer_types", "num_target_layers", "rope_scaling")
    spec = read(tmp_path, {name: value for name, value in PUBLISHED.items() if name not in absent})
    assert spec.vocab_size == TARGET.vocab_size and not spec.has_bias
    assert spec.rope == RopeSpec(theta=150000.0)


@pytest.mark.parametrize("rope_scaling", [PUBLISHED["rope_scaling"], None], ids=str)
def test_written_specs_read_back(tmp_path, rope_scaling):
    spec = read(tmp_path, PUBLISHED | {"rope_scaling": rope_scaling})
    content = write_dflash_spec(spec, TARGET)
    assert parse_dflash_spec(content, 1) == spec == read(tmp_path, content)


OWN = PUBLISHED["dflash_config"]
WRONG = {
    "no drafter": ({"architectures": ["GptOssForCausalLM"]}, "architectures is ['GptOssForCausalLM']"),
    "a later kind": ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
    "of the 20b, layers": ({"num_target_layers": 24}, "num_target_layers = 24, but the target has 36"),
    "of another hidden size": ({"hidden_size": 4096}, "hidden_size = 4096, but the target has 2880"),
    "of another target": ({"target_hidden_size": 4096}, "target_hidden_size = 4096"),
    "of another vocabulary": ({"vocab_size": 151936}, "vocab_size = 151936, but the target has 201088"),
    "of a draft vocabulary": ({"draft_vocab_size": 32000}, "draft_vocab_size = 32000"),
    "layer out of range": (
        {"dflash_config": OWN | {"target_layer_ids": [1, 36]}},
        "target_layer_ids names layer 36, but the target has layers 0 to 35",
    ),
    "layer -1": ({"dflash_config": OWN | {"target_layer_ids": [-1]}}, "names layer -1"),
    "a layer twice": ({"dflash_config": OWN | {"target_layer_ids": [1, 1]}}, "must list different layers"),
    "no layers": ({"dflash_config": OWN | {"target_layer_ids": []}}, "must list different layers"),
    "a layer as text": ({"dflash_config": OWN | {"target_layer_ids": ["1"]}}, "must list different layers"),
    "layers as a number": ({"dflash_config": OWN | {"target_layer_ids": 1}}, "must list different layers"),
    "mask outside": ({"dflash_config": OWN | {"mask_token_id": 201088}}, "mask_token_id = 201088 is outside"),
    "mask missing": ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id must be a whole number"),
    "unknown field": ({"dflash_config": OWN | {"selector_rank": 4}}, "dflash_config.selector_rank"),
    "no dflash_config": ({"dflash_config": None}, "dflash_config is None"),
    "a span of the anchor alone": ({"block_size": 1}, "block_size must be a whole number from 2"),
    "an endless span": ({"block_size": 10**9}, "block_size must be a whole number"),
    "span as text": ({"block_size": "8"}, "block_size must be a whole number"),
    "heads": ({"num_key_value_heads": 7}, "num_attention_heads = 64 is not a multiple of num_key_value_heads = 7"),
    "head size": ({"head_dim": 63}, "head_dim = 63"),
    "no layers of its own": ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive number"),
    "too many layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000: the limit"),
    "windows": ({"layer_types": ["sliding_attention"] * 8}, "layer_types"),
    "layer_types too short": ({"layer_types": ["full_attention"] * 7}, "num_hidden_layers = 8"),
    "all windows": ({"use_sliding_window": True}, "use_sliding_window = True"),
    "causal": ({"dflash_config": OWN | {"causal": True}}, "dflash_config.causal = True"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act = gelu"),
    "scaled logits": ({"dflash_config": OWN | {"output_multiplier": 2.0}}, "output_multiplier = 2.0"),
    "bias as text": ({"attention_bias": "yes"}, "attention_bias must be true or false"),
    "rope": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type = 'llama3'"),
    "rope without factor": ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor must be a positive"),
    "no theta": ({"rope_theta": None}, "rope_theta must be a positive number"),
    "eps": ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_error_names_the_file_and_the_value(tmp_path, case):
    changes, said = WRONG[case]
    with pytest.raises(DrafterError) as caught:
        read(tmp_path, PUBLISHED | changes)
    assert said in str(caught.value) and str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read"), ("{", "not valid JSON"), ("[]", "not an object"), ("\xff", "not valid")],
)
def test_damaged_config(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(DrafterError, match=said):
        read_dflash_spec(tmp_path, TARGET)
