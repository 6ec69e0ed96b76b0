"""Device code of rms_norm for other GPUs; test_triton.py runs it."""

from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.proof.prove import prove


def test_norm_without_an_update_is_compiled_too():
    plain, first = rms_norm.make_device_code((9, 0))
    assert "update" in plain.signature and first.constants["update"] is None
    assert [(proof.variant, proof.verdict) for proof in prove([rms_norm], "sm_90a")] == [
        ("triton", "none"),
        ("triton first", "none"),
    ]
