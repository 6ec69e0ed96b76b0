"""rms_norm_fed gives the bits of rms_norm followed by the kernel that stores rows; its refusals."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

import firesteel
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.operands.fed import store
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rms_norm_fed import RmsNormFedOperands, rms_norm_fed
from firesteel.kernels.proof.prove import prove
from firesteel.kernels.proof.verify import same_bits

PARTS = Path(__file__).with_name("norm_parts.py")
MODULE = sys.modules["firesteel.kernels.ops.rms_norm_fed"]
SAMPLES = list(rms_norm_fed.make_samples(torch.device("cpu")))


def test_interpreted_kernel_gives_the_bits_of_the_two_kernels(run_interpreted):
    run_interpreted(PARTS, "1,2880", "5,96", "2,32")


@pytest.mark.gpu
def test_kernel_gives_the_bits_of_the_two_kernels_on_a_gpu():
    source = str(Path(firesteel.__file__).parents[1])
    sizes = ("1,2880", "7,2880", "64,2880", "257,4096", "4096,2880", "5,96")
    command = [sys.executable, PARTS, "no samples", *sizes]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("capability", [None, (9, 0), (12, 1)])
def test_reference_is_rms_norm_followed_by_rounding_for_the_gpu(monkeypatch, capability):
    monkeypatch.setattr(MODULE, "find_capability", lambda device: capability)
    for sample in SAMPLES:
        (operands,) = sample.clone()
        y, total, fed = rms_norm_fed.reference(operands)
        activation = operands.activation
        assert all(map(torch.equal, (y, total), rms_norm.reference(*sample.clone())))
        native = capability == (12, 1) and activation != "bf16"
        expected = store(y, activation, native)
        assert same_bits(fed.values, expected.values) and (fed.scales is not None) == native
        assert not native or same_bits(fed.scales, expected.scales)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_only_rounded_forms_may_differ_by_one_code(activation):
    sample = next(
        sample
        for sample in SAMPLES
        if sample.args[0].activation == activation and sample.args[0].residual.numel() > 2000
    )
    y, total, fed = rms_norm_fed.reference(*sample.clone())

    def is_close(*actual):
        try:
            assert_close(actual=actual, expected=(y, total, fed), tolerance=rms_norm_fed.tolerance)
        except AssertionError:
            return False
        return True

    assert is_close(y, total, fed)
    assert not is_close(moved(y), total, fed) and not is_close(y, moved(total), fed)
    assert is_close(y, total, replace(fed, values=moved(fed.values))) == (activation != "bf16")


def moved(values):
    """Returns the values with the largest reduced by a sixteenth."""
    values = values.clone()
    values.view(-1)[values.abs().argmax()] *= 15 / 16
    return values


def test_bytes_count_what_is_stored(monkeypatch):
    (operands,) = SAMPLES[0].args
    plain = rms_norm.bytes(operands)
    for capability, widths in (((9, 0), (2, 2, 2)), ((12, 1), (2, 33 / 32, 17 / 32))):
        monkeypatch.setattr(MODULE, "find_capability", lambda device, value=capability: value)
        added_bytes = [
            rms_norm_fed.bytes(replace(operands, activation=activation)) - plain for activation in ACTIVATIONS
        ]
        assert added_bytes == [2880 * width for width in widths]


def test_unsupported_arguments_are_refused_with_the_reason(monkeypatch):
    accepts = rms_norm_fed.implementations["triton"].accepts
    x, weight = torch.zeros(2, 96).bfloat16(), torch.zeros(96).bfloat16()
    operands = RmsNormFedOperands(residual=x, weight=weight, eps=1e-5)
    for activation in ACTIVATIONS:
        assert accepts(replace(operands, activation=activation)) is None
    assert "mxfp4, not 'fp8'" in accepts(replace(operands, activation="fp8"))
    assert accepts(replace(operands, residual=x.float())) == "stores bf16 rows, not torch.float32"
    short = replace(operands, residual=x[:, :80], weight=weight[:80])
    assert accepts(short) == "wants rows of whole groups of 32, not 80"
    odd = torch.zeros(96, 2).bfloat16().T
    assert accepts(replace(operands, residual=odd)) == "wants rows whose values lie side by side"
    assert accepts(replace(operands, update=odd)) == "wants rows whose values lie side by side"
    monkeypatch.setattr(MODULE, "find_capability", lambda device: (12, 1))
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    assert "needs Triton >= 3.8 for mxfp4" in accepts(replace(operands, activation="mxfp4"))
    assert accepts(operands) is None


@pytest.mark.parametrize("target", ["sm_90a", "sm_121a"])
def test_every_form_compiles_without_spills(target):
    proofs = prove([rms_norm_fed], target)
    assert [proof.variant for proof in proofs] == [f"triton {activation}" for activation in ACTIVATIONS]
    assert all(proof.fits and proof.verdict == "none" and proof.spills == 0 for proof in proofs)
