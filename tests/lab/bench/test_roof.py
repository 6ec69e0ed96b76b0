"""Shares of the roofline, compared with values computed by hand."""

import pytest

from firesteel.lab.bench.plan import BenchWorkload
from firesteel.lab.bench.roof import ServedModel, decode_share, find_roof, prompt_share
from firesteel.model.spec import PRESETS

SERVED = ServedModel.of(PRESETS["gpt-oss-120b"], {"mxfp4_layers": "qkv,o,lm_head", "kv": "bfloat16"})


def test_decode_is_compared_with_memory():
    share = decode_share(SERVED, BenchWorkload(pp=1, tg=1), find_roof("NVIDIA H200"), tok_s=846.0)
    assert share.bytes_a_token == pytest.approx(2.75e9, rel=0.01)
    assert share.share == pytest.approx(0.5, rel=0.02)  # FACTS: 1692 tok/s at 4645 GB/s


def test_long_prompts_are_compared_with_arithmetic_and_short_ones_with_memory():
    long, short = BenchWorkload(pp=8192, tg=1), BenchWorkload(pp=16, tg=1)
    roof = find_roof("NVIDIA H200")
    assert "arithmetic" in prompt_share(SERVED, long, roof, tok_s=1000.0).of
    assert prompt_share(SERVED, short, roof, tok_s=1000.0).of == "measured read"


def test_cached_context_is_not_computed_again():
    workload = BenchWorkload(pp=512, tg=1, depth=4096)
    fresh, cached = (
        prompt_share(SERVED, workload, find_roof("NVIDIA H200"), tok_s=1.0, is_cached=is_cached)
        for is_cached in (False, True)
    )
    assert cached.bytes_a_token > fresh.bytes_a_token  # the same weights for fewer tokens


@pytest.mark.parametrize("name", ["CPU", "NVIDIA A10"])
def test_unknown_device_has_no_share(name):
    share = decode_share(SERVED, BenchWorkload(pp=1, tg=1), find_roof(name), tok_s=10.0)
    assert share.share is None and share.ceiling_tok_s is None and share.bytes_a_token > 1e9


@pytest.mark.parametrize(
    ("name", "gb_s"), [("NVIDIA GB10", 232), ("NVIDIA GeForce RTX 5090", 1792), ("NVIDIA B200", 8000)]
)
def test_devices_are_found_by_the_drivers_name(name, gb_s):
    assert find_roof(name).gb_s == gb_s


def test_formats_are_those_that_the_engine_states():
    plain = ServedModel.of(PRESETS["gpt-oss-120b"], {"mxfp4_layers": "", "kv": "bfloat16"})
    assert (plain.kv, plain.spec.mxfp4_layers) == ("bf16", ())
    chosen = ServedModel.of(PRESETS["gpt-oss-120b"], {"mxfp4_layers": "qkv", "kv": "float8_e4m3fn"})
    assert (chosen.kv, chosen.spec.mxfp4_layers) == ("fp8", ("qkv",))


def test_formats_of_experts_and_cache_count():
    """Another engine's weights were counted as MXFP4 and BF16, or not at all."""
    workload = BenchWorkload(pp=1, tg=1, depth=65536)

    def moved(**formats):
        served = ServedModel.of(PRESETS["gpt-oss-120b"], {"dense": "bf16", "kv": "bf16", **formats})
        return decode_share(served, workload, find_roof("NVIDIA H200"), tok_s=1.0).bytes_a_token

    assert moved(dense="mxfp4") < moved(dense="q8_0") < moved() < moved(moe="bf16")
    assert moved(kv="fp8") < moved(kv="q8_0") < moved(kv="f16") == moved() < moved(kv="fp32")
