"""Named sets of defaults: precedence, origins, and that every value is one the setting accepts."""

import pytest

from firesteel.config import all_settings, resolve
from firesteel.config.presets import AS_SHIPPED, PRESETS, SPARK


def values_of(settings):
    return {
        name: getattr(getattr(settings.config, setting.section), name) for name, setting in all_settings().items()
    }


def test_auto_is_as_shipped_and_changes_no_setting():
    plain = values_of(resolve(environ={}))
    assert plain == {name: setting.default for name, setting in all_settings().items()}
    assert values_of(resolve({"preset": AS_SHIPPED}, environ={})) == {**plain, "preset": AS_SHIPPED}


@pytest.mark.parametrize("preset", PRESETS)
def test_values_of_a_set_replace_defaults_alone(preset):
    settings = resolve({"preset": preset}, environ={})
    chosen = {choice.setting: choice.value for choice in PRESETS[preset]}
    defaults = {name: setting.default for name, setting in all_settings().items()}
    assert values_of(settings) == {**defaults, "preset": preset, **chosen}
    assert {name for name, origin in settings.origins.items() if origin == f"preset {preset}"} == set(chosen)
    assert all(value != defaults[name] for name, value in chosen.items())


def test_what_auto_stands_for_is_the_callers_choice():
    settings = resolve(environ={}, auto_preset=SPARK)
    assert settings.config.kernels.mxfp4_layers == "qkv,o,lm_head"
    assert resolve({"preset": AS_SHIPPED}, environ={}, auto_preset=SPARK).config.kernels.mxfp4_layers == ""


def test_flag_environment_and_file_beat_a_set(tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text('preset = "spark"\nmax_decode_delay_ms = 7\n')
    variables = {"FIRESTEEL_PREFILL_ACTIVATION": "bf16"}
    settings = resolve({"mxfp4_layers": ""}, environ=variables, file=file)
    kernels = settings.config.kernels
    assert (kernels.mxfp4_layers, kernels.prefill_activation) == ("", "bf16")
    assert settings.config.batch.max_decode_delay_ms == 7
    assert {settings.origins[choice.setting].split()[0] for choice in PRESETS[SPARK]} == {
        "flag",
        "environment",
        "file",
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_no_set_turns_drafts_on_and_each_leaves_them_to_the_user(preset):
    """What drafts cost and gain depends on the text and the draft model, which a set does not know."""
    assert resolve({"preset": preset}, environ={}).config.speculate.speculate == "off"
    settings = resolve({"preset": preset, "speculate": "ngram", "num_speculative_tokens": 5}, environ={})
    assert settings.config.speculate.speculate == "ngram" and settings.config.speculate.num_speculative_tokens == 5
