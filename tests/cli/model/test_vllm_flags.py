"""vLLM's flags: those that mean the same, those that change nothing, and values that cannot be had."""

import pytest

from firesteel import UserError
from firesteel.cli.model.vllm_flags import FAMILIAR, translate


def test_other_names_of_our_settings():
    given = {"enable_prefix_caching": False, "kv_cache_dtype": "fp8_e4m3", "async_scheduling": True}
    settings, lines = translate(given, {"port": 1})
    assert settings == {"prefix_caching": False, "kv_dtype": "fp8", "run_ahead": True, "port": 1} and lines == []


def test_our_own_flag_wins():
    settings, _ = translate({"enable_prefix_caching": False, "kv_cache_dtype": "fp8"}, {"kv_dtype": "bf16"})
    assert settings == {"prefix_caching": False, "kv_dtype": "bf16"}


@pytest.mark.parametrize("one", FAMILIAR, ids=lambda one: one.parameter)
def test_each_flag_is_accepted_with_a_line_and_refused_with_a_reason(one):
    for value in one.accepted or (True,):
        settings, [line] = translate({one.parameter: value}, {})
        assert settings == {} and line.startswith("--") and line.endswith(one.means)
    if one.accepted:
        with pytest.raises(UserError, match="accepted: ") as caught:
            translate({one.parameter: "strange"}, {})
        assert one.refused in str(caught.value) and "strange" in str(caught.value)


def test_kv_type_that_cannot_be_had():
    with pytest.raises(UserError, match="bf16"):
        translate({"kv_cache_dtype": "nvfp4"}, {})
