"""Values that settings accept and refuse."""

import pytest

from firesteel.config import ConfigError, all_settings, parse_layers, resolve

BAD_VALUES = {
    "model": [3, True],
    "device": ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cpu:0", "auto:", "cpu\n", ""],
    "preset": ["sparks", "", "Spark", 1],
    "max_model_len": [-1, 1.0, "100", True],
    "threads": [-1, 1.0, "2", True],
    "memory_reserve_gib": [-0.1, float("nan"), "1", True],
    "kernels": ["rms_norm", "a=b=c", "route=reference,linear", 1],
    "activation": ["fp8", "MXFP8", "", "bf16,mxfp8", 8],
    "prefill_activation": ["fp4", "", "mxfp6_e3m2", 8],
    "tile": ["64", "64x", "64x96", "8x64", "0x16", "64x128x64", "64 x 128", "", 64],
    "require": ["moe", "moe=", "=triton", "moe=triton@", "moe=triton,linear", "moe=a=b", True],
    "mxfp4_layers": ["router", "qkv,ffn", "all,qkv", "qkv;o", "QKV", 1],
    "sinks": [1, "on", 0],
    "batch_invariant": [1, "on"],
    "cuda_graphs": [1, "on"],
    "dependent_launch": [0, "off"],
    "kernel_cache_dir": [3, True],
    "tiles_file": [3, True],
    "page_size": [0, -16, 24, 63, 16.0],
    "max_num_seqs": [-1, -3, True],
    "max_num_batched_tokens": [-1, "7"],
    "kv_cache_gib": [-0.5, "1", True],
    "kv_dtype": ["e4m3", "FP8", "", 8],
    "kv_scales": [1, True],
    "run_ahead": [1, "on"],
    "prepare": [1, "on"],
    "prefill_graphs": [0, "off"],
    "max_decode_delay_ms": [-1.0, "40", float("nan")],
    "prefix_caching": [1, "on"],
    "speculate": ["on", "Ngram", "", "eagle", "ngram,eagle3", True],
    "draft_model": [3, True],
    "num_speculative_tokens": [-1, 16, 3.0, "3", True],
    "adapt_speculation": [1, "on"],
    "engine_restarts": [-1, 1.0, True],
    "engine_hang_s": [-1.0, "60", float("nan")],
    "crash_dir": [3, True],
    "gpu_memory_utilization": [-0.1, 1.1, 90.0, "0.9"],
    "host": [1, True],
    "port": [-1, 65536, "80", 80.0],
    "api_key": [1, True, " ", "\n"],
    "api_key_file": [1, True],
    "share_prefixes": [1, "on"],
    "allowed_hosts": ["http://a", "a:80", "a/b", "a b", "*a", 1],
    "allowed_origins": ["localhost:3000", "http://a/path", "http://u@a", 1],
    "served_model_name": [1],
    "max_waiting": [-1, 1.0],
    "max_body_mib": [-1.0, "4"],
    "request_timeout_s": [-1.0, "4"],
    "slow_client_s": [-1.0, "4"],
    "drain_s": [-1.0, "4"],
    "schema_timeout_s": [-1.0, "4"],
    "schema_memory_mib": [63.0, -1.0, "512"],
    "response_store_mib": [-1.0, "many"],
    "prompt_date": ["yesterday", "2026-02-30", "31.1.2026", "", 2026],
    "log_format": ["xml", "", 1],
    "log_prompts": [1, "on"],
}
GOOD_VALUES = {
    "activation": ["bf16", "mxfp8", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3"],
    "tile": ["auto", "16x16", "64x128", "256x64"],
    "require": ["", "moe=triton", "moe_matmul=triton:gemm@native-fp4", "moe=triton:gemm mxfp8, linear=reference"],
    "allowed_hosts": ["", "*", "a.example, *.b.example", "10.0.0.1,[fd00::1]"],
    "api_key": ["", "a", "a,b", "a\nb\n"],
    "speculate": ["off", "ngram", "eagle3", "dflash", "auto"],
    "num_speculative_tokens": [0, 1, 15],
    "mxfp4_layers": ["", "moe", "qkv", "lm_head,o,qkv", "qkv, o", "all"],
}
GOOD_DEVICES = ["auto", "cpu", "cuda", "cuda:0", "cuda:12"]


def test_tables_of_this_file_cover_every_setting():
    assert set(BAD_VALUES) == set(all_settings())


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bad in BAD_VALUES.items() for value in bad])
def test_bad_value_is_refused_with_name_value_and_origin(name, value):
    with pytest.raises(ConfigError) as caught:
        resolve({name: value}, environ={})
    assert str(caught.value).startswith(f"{name} = {value!r} (flag): ")


@pytest.mark.parametrize("value", GOOD_DEVICES)
def test_device_accepts(value):
    assert resolve({"device": value}, environ={}).config.model.device == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, good in GOOD_VALUES.items() for value in good])
def test_good_value_is_kept_as_it_was_given(name, value):
    assert getattr(getattr(resolve({name: value}, environ={}).config, all_settings()[name].section), name) == value


def test_error_of_a_bad_value_says_what_is_accepted():
    for name, value, wants in (
        ("activation", "fp8", "must be one of bf16, mxfp8, mxfp4, mxfp6_e3m2, mxfp6_e2m3"),
        ("tile", "64", "must be auto or ROWSxCOLUMNS, both powers of two and at least 16, such as 64x128"),
        ("require", "moe", "must be OP=IMPLEMENTATION[:VARIANT][@VERDICT] joined by commas, not 'moe'"),
        ("mxfp4_layers", "qkv,ffn", "must be some of moe, qkv, o, lm_head joined by commas, or all, not 'ffn'"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve({name: value}, environ={})
        assert str(caught.value) == f"{name} = {value!r} (flag): {wants}"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("", ()),
        ("moe", ("moe",)),
        ("lm_head, qkv", ("qkv", "lm_head")),
        ("qkv,qkv", ("qkv",)),
        ("all", ("moe", "qkv", "o", "lm_head")),
        ("o,x", ("o", "x")),
    ],
)
def test_layers_are_in_canonical_order(text, layers):
    assert parse_layers(text) == layers
