"""vLLM's flags: other names of settings, flags that change nothing, and values that are refused."""

import pytest

from firesteel import UserError
from firesteel.config.vllm_flags import ACCEPTED_FLAGS, REFUSED_FLAGS, spell_ours, translate


def test_other_names_of_our_settings():
    given = {"enable_prefix_caching": False, "kv_cache_dtype": "fp8_e4m3", "async_scheduling": True}
    settings, lines = translate(given, {"port": 1})
    assert settings == {"prefix_caching": False, "kv_dtype": "fp8", "run_ahead": True, "port": 1} and lines == []


def test_our_own_flag_wins():
    settings, _ = translate({"enable_prefix_caching": False, "kv_cache_dtype": "fp8"}, {"kv_dtype": "bf16"})
    assert settings == {"prefix_caching": False, "kv_dtype": "bf16"}


@pytest.mark.parametrize("flag", ACCEPTED_FLAGS, ids=lambda flag: flag.parameter)
def test_each_flag_is_accepted_with_a_line_and_refused_with_a_reason(flag):
    for value in flag.accepted or (True,):
        settings, [line] = translate({flag.parameter: value}, {})
        assert settings == {} and line.startswith("--") and line.endswith(flag.meaning)
    if flag.accepted:
        with pytest.raises(UserError, match="accepted: ") as caught:
            translate({flag.parameter: "strange"}, {})
        assert flag.refusal in str(caught.value) and "strange" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED_FLAGS)
def test_flag_of_what_is_missing_is_refused_with_the_cure(name):
    with pytest.raises(UserError, match=f"{name} demo: .* not run here: offer functions"):
        translate({name.removeprefix("--").replace("-", "_"): "demo"}, {})


def test_unsupported_kv_type_is_refused():
    with pytest.raises(UserError, match="bf16"):
        translate({"kv_cache_dtype": "nvfp4"}, {})


def test_speculative_config_is_three_settings_and_our_own_flags_win():
    text = '{"method": "eagle3", "model": "head", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}'
    settings, [line] = translate({"speculative_config": text}, {"num_speculative_tokens": 5})
    assert settings == {"speculate": "eagle3", "draft_model": "head", "num_speculative_tokens": 5}
    assert line == "--speculative-config draft_tensor_parallel_size 1: firesteel runs on one GPU"
    settings, [line] = translate({"speculative_config": text}, {"speculate": "ngram"})
    assert settings == {"speculate": "ngram"} and "not used: --speculate ngram" in line


@pytest.mark.parametrize("name", ["--speculative-config", "-sc"])
def test_speculative_config_is_spelled_as_our_flags(name):
    spelled = spell_ours(name, '{"method": "dflash", "model": "d", "num_speculative_tokens": 7}')
    assert spelled == [("--speculate", "dflash"), ("--draft-model", "d"), ("--num-speculative-tokens", "7")]
