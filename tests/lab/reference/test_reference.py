"""Who says what is right: by which settings it computes, and what a server that is asked gives."""

import pytest

from firesteel.lab.reference.reference import LocalReference, is_float32


def test_settings_of_the_server_under_test_are_not_those_of_the_reference(monkeypatch, tmp_path):
    """A server with fp8 keys was once held to a reference with fp8 keys."""
    (tmp_path / "settings.toml").write_text('activation = "mxfp8"\n')
    for name, value in {
        "KV_DTYPE": "fp8", "MXFP4_LAYERS": "all", "REQUIRE": "moe=triton:gemm",
        "CONFIG": str(tmp_path / "settings.toml"),
    }.items():  # fmt: skip
        monkeypatch.setenv(f"FIRESTEEL_{name}", value)
    settings = LocalReference("kindling").llm.settings
    assert set(settings.origins.values()) == {"flag", "default"}
    assert (settings.config.cache.kv_dtype, settings.config.kernels.activation) == ("auto", "bf16")


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        ({"device": "CPU"}, True),
        ({"device": "CPU", "formats": {"activation": "bf16", "kv": "float32"}}, True),
        ({"device": "CPU", "formats": {"activation": "mxfp8", "kv": "float32"}}, False),
        ({"device": "CPU", "formats": {"activation": "bf16", "kv": "float8_e4m3fn"}}, False),
        ({"device": "NVIDIA H200"}, False),
    ],
)
def test_only_a_cpu_that_rounds_nothing_is_held_to_float32(ledger, expected):
    assert is_float32(ledger) is expected
