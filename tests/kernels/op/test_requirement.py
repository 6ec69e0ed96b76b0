"""Requirements of the user: syntax, matching, and errors before anything runs if one is not met."""

from dataclasses import dataclass, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.requirement import Requirement, parse_requirements
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.prove import check_here
from firesteel.kernels.registry import parse_pins

CPU = find_device("cpu")
H200 = replace(CPU, name="H200", capability=(9, 0))
GB10 = replace(CPU, name="GB10", capability=(12, 1))


def test_all_three_parts_are_parsed_and_printed():
    requirements = parse_requirements("moe=triton:gemm@native-fp4, linear=triton")
    assert requirements["moe_matmul"] == Requirement("moe_matmul", "triton:gemm", "native-fp4")
    assert [str(requirement) for requirement in requirements.values()] == [
        "moe_matmul=triton:gemm@native-fp4",
        "linear=triton",
    ]
    assert parse_requirements("") == {}


@pytest.mark.parametrize("text", ["moe", "moe=", "=triton", "moe=triton@", "moe=triton@fp4"])
def test_error_for_an_invalid_requirement_shows_the_syntax(text):
    with pytest.raises(KernelError, match=r"is not OP=IMPLEMENTATION\[:VARIANT\]\[@VERDICT\]"):
        Requirement.parse(text)


def test_a_single_kernel_cannot_be_required():
    with pytest.raises(KernelError, match=r"names one kernel: .*, as moe=triton:gemm; --activation says"):
        Requirement.parse("moe=triton:gemm mxfp8@native-fp4")


def test_two_requirements_of_one_op_are_an_error():
    with pytest.raises(KernelError, match="moe_matmul has two requirements"):
        parse_requirements("moe=triton,moe_matmul=reference")


def test_requirement_of_an_op_covers_what_runs_in_its_place_unless_that_is_named():
    requirements = parse_requirements("rms_norm=triton@none")
    assert requirements == {name: Requirement(name, "triton", "none") for name in ("rms_norm", "rms_norm_fed")}
    named = parse_requirements("rms_norm=triton,rms_norm_fed=reference")
    assert [str(requirement) for requirement in named.values()] == ["rms_norm=triton", "rms_norm_fed=reference"]
    with pytest.raises(KernelError, match="rms_norm has two requirements"):
        parse_requirements("rms_norm=triton,rms_norm=reference")
    with pytest.raises(KernelError, match="rms_norm_fed=reference is required, but triton would run"):
        Kernels(
            H200,
            parse_pins("rms_norm=reference,rms_norm_fed=triton"),
            Ledger(),
            required=parse_requirements("rms_norm=reference"),
        )


@pytest.mark.parametrize(
    ("implementation", "variant", "named"),
    [
        ("triton", "triton:gemm mxfp8 fc1", True),
        ("triton:gemm", "triton:gemm mxfp8 fc1", True),
        ("triton:gemv", "triton:gemm mxfp8 fc1", False),
        ("trit", "triton", False),
    ],
)
def test_requirement_names_a_family_or_a_variant(implementation, variant, named):
    assert Requirement("moe_matmul", implementation).names(variant) is named


def require(device, text, **options):
    return Kernels(device, {}, Ledger(), required=parse_requirements(text), **options)


def test_unmet_requirements_say_why_and_what_to_do():
    with pytest.raises(KernelError, match=r"moe_matmul=triton is required, but it needs an NVIDIA GPU"):
        require(CPU, "moe=triton")
    with pytest.raises(KernelError, match=r"moe_matmul=cutlass is required, but moe_matmul has only reference"):
        require(CPU, "moe=cutlass")
    with pytest.raises(KernelError, match="there is no op 'mo'; did you mean"):
        require(CPU, "mo=triton")
    require(CPU, "moe=reference")


def test_a_verdict_needs_compiled_kernels():
    with pytest.raises(KernelError, match="CPU runs no compiled kernels"):
        require(CPU, "moe=reference@bf16")


@pytest.mark.slow
def test_verdicts_are_those_of_the_device_and_activation():
    pytest.importorskip("triton")
    wanted = Requirement.parse("moe=triton:gemm@native-fp4")
    check_here(moe_matmul, GB10, wanted, "mxfp8")
    with pytest.raises(
        KernelError, match=r"on sm_121a with bf16 activations: triton:gemm bf16 fc1 16x128x128@bf16"
    ):
        check_here(moe_matmul, GB10, wanted, "bf16")
    with pytest.raises(KernelError, match=r"on sm_90a with mxfp8 activations"):
        check_here(moe_matmul, H200, wanted, "mxfp8")


def test_quantised_activations_on_sm12x_with_an_old_triton_are_an_error(monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", "3.7.0")
    with pytest.raises(KernelError, match=r"activation mxfp8 needs Triton >= 3.8 .* firesteel\[spark\]"):
        Kernels(GB10, {}, Ledger(), activation="mxfp8")
    Kernels(GB10, {}, Ledger(), activation="bf16")
    Kernels(H200, {}, Ledger(), activation="mxfp8")


def test_gpu_without_kernels_runs_plain_torch_only_if_requested():
    old = replace(CPU, name="T4", capability=(7, 5))
    with pytest.raises(KernelError, match=r"T4 has no kernels for rms_norm, .* 8.0 or later") as error:
        Kernels(old, {}, Ledger())
    pins = parse_pins(str(error.value).rpartition("--kernels ")[2])
    assert {runs for _, runs in Kernels(old, pins, Ledger()).table()} == {"reference"}


def test_verdict_for_rounded_activations_does_not_cover_a_layer_without_them():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class HalveOperands(RoundedOperands):
        x: torch.Tensor

    @define_op(bytes=lambda operands: operands.x.nbytes, tolerance=exact(why="test"))
    def halve(operands: HalveOperands):
        return operands.x / 2

    chosen = halve.choose(CPU, None, Ledger(), Requirement("halve", "reference", "native-fp4"), "mxfp8")
    chosen(HalveOperands(x=torch.ones(1), activation="mxfp8"))
    with pytest.raises(KernelError, match=r"proven for mxfp8 .* with bf16 ones would run: --mxfp4-layers all"):
        chosen(HalveOperands(x=torch.ones(1)))


@pytest.mark.slow
def test_dense_layers_are_judged_by_their_kernels_on_mxfp4_weights():
    pytest.importorskip("triton")
    wanted = Requirement.parse("linear=triton:gemm@native-fp4")
    check_here(linear, GB10, wanted, "mxfp4")
    with pytest.raises(KernelError, match=r"on sm_121a with bf16 activations"):
        check_here(linear, GB10, wanted, "bf16")
