"""What is compiled of rms_norm for GPUs that are not here; test_triton.py runs it."""

from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.proof.prove import prove


def test_the_first_norm_of_the_model_which_adds_nothing_is_compiled_too():
    plain, first = rms_norm.make_device_code((9, 0))
    assert "update" in plain.signature and first.constants["update"] is None
    assert [(proof.variant, proof.verdict) for proof in prove([rms_norm], "sm_90a")] == [
        ("triton", "none"),
        ("triton first", "none"),
    ]
