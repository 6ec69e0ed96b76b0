"""The settings of a local reference, and the precision of a remote one."""

import pytest

from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.reference.reference import LocalReference


def test_reference_ignores_the_settings_of_the_server_under_test(monkeypatch, tmp_path):
    """A server with an fp8 KV cache was once compared with a reference with one."""
    (tmp_path / "settings.toml").write_text('activation = "mxfp8"\n')
    for name, value in {
        "KV_DTYPE": "fp8",
        "MXFP4_LAYERS": "all",
        "REQUIRE": "moe=triton:gemm",
        "CONFIG": str(tmp_path / "settings.toml"),
    }.items():
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
        ({"device": "CPU", "formats": {"activation": "bf16", "prefill_activation": "mxfp8"}}, False),
        ({"device": "CPU", "formats": {"activation": "bf16", "kv": "float8_e4m3fn"}}, False),
        ({"device": "NVIDIA H200"}, False),
    ],
)
def test_only_a_cpu_without_rounding_computes_in_float32(ledger, expected):
    assert ServerLedger(**ledger).is_float32 is expected
