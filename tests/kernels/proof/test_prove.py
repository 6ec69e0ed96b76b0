"""Machine code of kernels for other GPUs, compiled and disassembled; nothing runs."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import triton
import triton.language as tl

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels.cuda.compile import nvrtc_version
from firesteel.kernels.cuda.source import CudaSource
from firesteel.kernels.decode.o import decode_o
from firesteel.kernels.op.device_code import CudaCode, DeviceCode
from firesteel.kernels.op.op import REFERENCE
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.route import route
from firesteel.kernels.proof import prove as prove_module
from firesteel.kernels.proof.prove import Proof, check, check_here, list_code, prove, prove_code
from firesteel.kernels.registry import ALL_OPS, DECODE_OPS
from firesteel.kernels.target import SHARED_LIMIT_BYTES, architecture


def parse(*texts):
    return [Requirement.parse(text) for text in texts]


TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


@triton.jit
def scaled_kernel(
    a,
    a_scales,
    b,
    b_scales,
    y,
    FORMAT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PER_BYTE: tl.constexpr,
):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    inner, groups = tl.arange(0, K // PER_BYTE), tl.arange(0, K // 32)
    x = tl.load(a + rows[:, None] * (K // PER_BYTE) + inner[None, :])
    w = tl.load(b + columns[None, :] * (K // PER_BYTE) + inner[:, None])
    x_scale = tl.load(a_scales + rows[:, None] * (K // 32) + groups[None, :])
    w_scale = tl.load(b_scales + columns[:, None] * (K // 32) + groups[None, :])
    product = tl.dot_scaled(x, x_scale, FORMAT, w, w_scale, FORMAT)
    tl.store(y + rows[:, None] * N + columns[None, :], product)


@triton.jit
def hungry_kernel(x, y, N: tl.constexpr):
    """Keeps all N values in one warp's registers: the sum needs every value and every value needs the sum."""
    values = tl.load(x + tl.arange(0, N))
    tl.store(y + tl.arange(0, N), values - tl.sum(values))


def scaled(element, bits):
    pointer = "*u8" if element == "e2m1" else "*fp8e4nv"
    return DeviceCode(
        variant=f"triton {element}",
        kernel=scaled_kernel,
        signature={"a": pointer, "a_scales": "*u8", "b": pointer, "b_scales": "*u8", "y": "*fp32"},
        constants={"FORMAT": element, "M": 128, "N": 64, "K": 128, "PER_BYTE": 8 // bits},
    )


@pytest.mark.parametrize("target", ["sm_120a", "sm_121a"])
@pytest.mark.parametrize(
    ("element", "bits", "kind", "machine_code", "verdict"),
    [
        ("e2m1", 4, "kind::mxf4", "OMMA.SF", "native-fp4"),
        ("e4m3", 8, "kind::mxf8f6f4.block_scale", "QMMA.SF", "fp8"),
    ],
)
def test_block_scaled_products_are_native_on_sm12x(target, element, bits, kind, machine_code, verdict):
    proof = prove_code("tiny", scaled(element, bits), target)
    if target == "sm_121a" and TRITON < (3, 8):
        assert proof.verdict == "bf16"  # silently
        return
    assert proof.verdict == verdict
    assert any(kind in instruction for instruction in proof.ptx), proof.ptx
    assert any(instruction.startswith(machine_code) for instruction in proof.sass), proof.sass
    assert proof.registers > 0 and proof.shared_bytes > 0 and proof.fits


@pytest.mark.parametrize(("element", "bits"), [("e2m1", 4), ("e4m3", 8)])
def test_block_scaled_products_fall_back_to_bf16_on_hopper(element, bits):
    proof = prove_code("tiny", scaled(element, bits), "sm_90a")
    assert proof.verdict == "bf16"
    assert any(name.startswith(("HGMMA", "HMMA")) for name in proof.sass), proof.sass
    assert proof.compiler == f"triton {triton.__version__}"


@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_ops_list_what_they_launch_for_every_target(target):
    proofs = prove([rms_norm], target)
    assert [proof.op for proof in proofs] == ["rms_norm"] * len(proofs) and proofs
    for proof in proofs:
        assert list(proof.as_dict()) == [
            "op",
            "variant",
            "target",
            "verdict",
            "ptx",
            "sass",
            "registers",
            "spills",
            "shared_bytes",
            "compiler",
            "shared_limit_bytes",
        ]
        assert (proof.target, proof.verdict, proof.ptx, proof.spills) == (target, "none", {}, 0)
        assert 0 < proof.registers < 255


def test_bf16_tiles_run_on_hoppers_warp_groups():
    verdicts = {proof.variant: proof for proof in prove([route], "sm_90a")}
    assert any("wgmma" in name for name in verdicts["triton logits 64x32x128"].ptx)
    assert verdicts["triton choice"].verdict == "none"


LIBRARIES = {("linear", "cublas")}  # NVIDIA's kernels: none of ours is launched


def runnable(target):
    """Returns (op, implementation) of everything that would be compiled for a GPU of the target."""
    gpu = replace(find_device("cpu"), name=target, capability=divmod(architecture(target), 10))
    every = [
        (op, implementation)
        for op in ALL_OPS
        for name, implementation in op.implementations.items()
        if name != REFERENCE
    ]
    return {
        (op.name, implementation.name) for op, implementation in every if implementation.needs(gpu) is None
    } - LIBRARIES


@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_every_implementation_lists_what_it_launches(target):
    listed = {(op.name, code.variant.split()[0]) for op in ALL_OPS for code in list_code(op, target)}
    assert listed == runnable(target)


@pytest.mark.slow
@pytest.mark.parametrize("target", SHARED_LIMIT_BYTES)
def test_every_op_compiles_and_fits_every_target(target):
    proofs = prove(ALL_OPS, target)
    assert {(proof.op, proof.variant.split()[0]) for proof in proofs} == runnable(target)
    assert [proof for proof in proofs if not proof.fits] == []
    own = {"rms_norm", "rms_norm_fed", "linear", "rope_kv_write", "route"}
    assert [proof for proof in proofs if proof.op in own and proof.spills] == []
    few = {"sm_100a": 8, "sm_103a": 8}.get(target, 0)  # of kernels for eight tokens, which are not tuned there
    decode = {op.name for op in DECODE_OPS}
    streamed = [proof for proof in proofs if proof.op in decode or proof.variant.startswith("cuda:")]
    assert [proof for proof in streamed if proof.spills > few] == []


def test_spills_are_counted():
    signature = {"x": "*fp32", "y": "*fp32"}
    code = DeviceCode(
        variant="triton", kernel=hungry_kernel, signature=signature, constants={"N": 16384}, num_warps=1
    )
    assert prove_code("hungry", code, "sm_90a").spills > 0


PTX_8 = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0"
PROOF = Proof(
    op="moe_matmul",
    variant="triton:gemm mxfp8",
    target="sm_121a",
    verdict="native-fp4",
    ptx={PTX_8: 8},
    sass={"QMMA.SF": 8},
    registers=128,
    spills=0,
    shared_bytes=65536,
    compiler="triton 3.9.0",
)
PROOFS = [PROOF, replace(PROOF, variant="triton:gemm bf16", verdict="bf16"), replace(PROOF, variant="triton:gemv")]


@pytest.mark.parametrize(
    "pattern",
    [
        "moe_matmul=triton",
        "moe_matmul=triton:gemm",
        "moe_matmul=triton:gemm@native-fp4",
        "moe_matmul=triton:gemm@bf16",
    ],
)
def test_requirements_that_are_met(pattern):
    check(PROOFS, parse(pattern))


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        (
            "moe_matmul=triton:gemm@fp8",
            r"moe_matmul=triton:gemm@fp8 is required; compiled: triton:gemm mxfp8@native-fp4",
        ),
        ("moe_matmul=triton:gemm mxfp8@native-fp4", "names one kernel: .* as moe_matmul=triton:gemm;"),
        ("moe_matmul=triton:gem", "moe_matmul=triton:gem is required;"),
        ("moe_matmul=cuda", "moe_matmul=cuda is required"),
        ("attention=triton", "attention=triton is required; compiled: nothing"),
        ("moe_matmul=triton@fp4", r"not OP=IMPLEMENTATION\[:VARIANT\]\[@VERDICT\], verdict one of native-fp4, fp8"),
        ("moe_matmul", "is not OP="),
    ],
)
def test_unmet_requirements_name_the_op(pattern, complaint):
    with pytest.raises(KernelError, match=complaint):
        check(PROOFS, parse("moe_matmul=triton", pattern))


@pytest.mark.parametrize(
    ("verdicts", "holds"),
    [
        ({"mxfp8 fc1": "native-fp4", "mxfp8 fc2": "native-fp4", "bf16 fc1": "bf16", "mxfp8 sum": "none"}, True),
        ({"mxfp8 fc1": "native-fp4", "mxfp8 fc2": "bf16"}, False),
        ({"mxfp8 fc1": "native-fp4", "mxfp4 fc1": "bf16"}, False),
        ({"mxfp8 sum": "none"}, False),
    ],
    ids=str,
)
def test_a_verdict_is_required_of_every_product_with_rounded_activations(verdicts, holds):
    proofs = [
        replace(PROOF, variant=f"triton:gemm {activation}", verdict=verdict)
        for activation, verdict in verdicts.items()
    ]
    with nullcontext() if holds else pytest.raises(KernelError, match="moe_matmul=triton:gemm@native-fp4 is"):
        check(proofs, parse("moe_matmul=triton:gemm@native-fp4"))


def test_verdict_for_one_weight_format_does_not_cover_another():
    packed = replace(PROOF, op="decode_o", variant="cuda mxfp4-weight T1", verdict="int8")
    proofs = [packed, replace(packed, variant="cuda bf16-weight T1", verdict="bf16")]
    check(proofs, parse("decode_o=cuda@int8"))
    wide = replace(packed, variant="cuda mxfp4-weight T2", verdict="bf16")
    with pytest.raises(KernelError, match="decode_o=cuda@int8 is required"):
        check([*proofs, wide], parse("decode_o=cuda@int8"))


def test_a_required_kernel_must_fit_the_targets_shared_memory():
    large = replace(PROOF, shared_bytes=101_377)
    with pytest.raises(KernelError, match=r"moe_matmul triton:gemm mxfp8 wants 101377 bytes .* sm_121a has 101376"):
        check([large], parse("moe_matmul=triton"))
    check([replace(large, target="sm_90a")], parse("moe_matmul=triton"))


def test_unknown_targets_and_untyped_arguments_are_named():
    with pytest.raises(
        KernelError, match=r"no target 'sm_121'; did you mean sm_121a\? targets: sm_80, sm_86, sm_89, sm_90a"
    ):
        prove([rms_norm], "sm_121")
    incomplete = replace(scaled("e2m1", 4), constants={"FORMAT": "e2m1"})
    with pytest.raises(KernelError, match="neither a type nor a value for K, M, N, PER_BYTE"):
        prove_code("tiny", incomplete, "sm_90a")


def test_a_kernel_that_does_not_compile_says_which_and_for_what():
    broken = replace(scaled("e2m1", 4), constants={**scaled("e2m1", 4).constants, "FORMAT": "e9m9"})
    with pytest.raises(triton.CompilationError) as caught:
        prove_code("tiny", broken, "sm_90a")
    assert "compiling tiny triton e2m1 for sm_90a" in caught.value.__notes__[0]


def test_the_interpreter_proves_nothing(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(KernelError, match="unset TRITON_INTERPRET"):
        prove([rms_norm], "sm_90a")


@pytest.mark.parametrize(
    ("kernel", "target", "verdict", "machine_code"),
    [
        ("product_f16", "sm_80", "bf16", "HMMA"),
        ("product_f16", "sm_90a", "bf16", "HMMA"),
        ("product_f16", "sm_121a", "bf16", "HMMA"),
        ("product_mxfp4", "sm_120a", "native-fp4", "QMMA.SF"),
        ("product_mxfp4", "sm_121a", "native-fp4", "QMMA.SF"),
        ("product_mxfp8", "sm_121a", "fp8", "QMMA.SF"),
        ("step", "sm_90a", "none", None),
    ],
)
def test_cuda_kernels_are_judged_separately(small, kernel, target, verdict, machine_code):
    """The file holds several kernels; each is judged by its own instructions."""
    proof = prove_code("tiny", CudaCode(variant=f"cuda {kernel}", kernel=small(kernel)), target)
    assert (proof.op, proof.variant, proof.target, proof.verdict) == ("tiny", f"cuda {kernel}", target, verdict)
    assert len(proof.ptx) == (machine_code is not None)
    if target != "sm_121a" or TRITON >= (3, 8):
        assert [name.startswith(machine_code) for name in proof.sass] == [True] * len(proof.ptx)
    assert 0 < proof.registers < 255 and proof.spills == 0 and proof.fits
    assert proof.compiler == f"NVRTC {nvrtc_version()}"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_121a"])
def test_shared_memory_of_cuda_kernels_is_static_and_dynamic(small, target):
    for dynamic in (0, 4096, SHARED_LIMIT_BYTES[target] - 128):
        proof = prove_code("tiny", CudaCode(variant="cuda", kernel=small("turn", shared_bytes=dynamic)), target)
        assert proof.shared_bytes == dynamic + 128 and proof.fits
    large = small("turn", shared_bytes=SHARED_LIMIT_BYTES[target] - 127)
    assert not prove_code("tiny", CudaCode(variant="cuda", kernel=large), target).fits


def test_spills_of_cuda_kernels_are_counted(small):
    assert prove_code("tiny", CudaCode(variant="cuda", kernel=small("hungry")), "sm_90a").spills > 100


def test_cuda_kernels_must_fit_the_registers_of_an_sm(small):
    with pytest.raises(KernelError, match=r"512 threads of 255 registers .*__launch_bounds__\(512\) in small.cu"):
        prove_code("tiny", CudaCode(variant="cuda", kernel=small("hungry", threads=512)), "sm_90a")


def test_a_cuda_kernel_that_does_not_compile_says_which_and_for_what(kernel_cache, tmp_path):
    (tmp_path / "wrong.cu").write_text("wrong")
    code = CudaCode(variant="cuda", kernel=CudaSource("wrong.cu", folder=tmp_path).kernel("wrong", threads=32))
    with pytest.raises(KernelError, match=r"wrong\.cu does not compile for sm_90a") as caught:
        prove_code("tiny", code, "sm_90a")
    assert "compiling tiny cuda for sm_90a with NVRTC" in caught.value.__notes__[0]


def test_cuda_and_triton_kernels_of_an_op_are_proven_together(small, monkeypatch):
    code, _ = rms_norm.make_device_code((9, 0))
    codes = [code, CudaCode(variant="cuda", kernel=small("product_f16"))]
    monkeypatch.setattr(rms_norm, "make_device_code", lambda capability: iter(codes))
    assert [code.kernel_name for code in codes] == ["rms_norm_kernel", "product_f16"]
    assert [(proof.variant, proof.verdict) for proof in prove([rms_norm], "sm_90a")] == [
        (code.variant, "none"),
        ("cuda", "bf16"),
    ]
    check_here(rms_norm, H200, Requirement.parse("rms_norm=cuda@bf16"), "bf16")
    with pytest.raises(KernelError, match=r"rms_norm=cuda@native-fp4 is required; on sm_90a .*: cuda@bf16"):
        check_here(rms_norm, H200, Requirement.parse("rms_norm=cuda@native-fp4"), "bf16")


H200 = replace(find_device("cpu"), name="H200", capability=(9, 0))


def test_none_can_be_required_of_an_op_without_matrix_instructions():
    check_here(rms_norm, H200, Requirement.parse("rms_norm=triton@none"), "bf16")
    with pytest.raises(KernelError, match=r"rms_norm=triton@bf16 is required; on sm_90a .*: triton@none"):
        check_here(rms_norm, H200, Requirement.parse("rms_norm=triton@bf16"), "bf16")
    with pytest.raises(KernelError, match=r"route=triton@none is required; .*triton logits 64x32x128@bf16"):
        check_here(route, H200, Requirement.parse("route=triton@none"), "bf16")


@pytest.mark.parametrize("target", ["sm_90a", "sm_121a"])
@pytest.mark.parametrize(("weight", "verdict"), [("mxfp4-weight", "int8"), ("bf16-weight", "bf16")])
def test_decode_kernels_multiply_fp4_weights_in_integers_and_others_in_bf16(kernel_cache, weight, verdict, target):
    (code,) = [code for code in list_code(decode_o, target) if f"{weight} T=1" in code.variant]
    proof = prove_code("decode_o", code, target)
    assert proof.verdict == verdict
    is_integer = [".s8.s8." in name for name in proof.ptx]
    assert is_integer == [verdict == "int8"] * len(proof.ptx) and sum(proof.ptx.values()) > 0
    if proof.sass is not None:
        assert all(name.startswith("IMMA" if verdict == "int8" else "HMMA") for name in proof.sass) and proof.sass


def test_verdict_is_checked_on_kernels_for_the_weight_format_in_use(kernel_cache, monkeypatch):
    codes = [code for code in list_code(decode_o, "sm_90a") if "T=1" in code.variant]
    monkeypatch.setattr(decode_o, "make_device_code", lambda capability: iter(codes))
    packed, plain = (Requirement.parse(f"decode_o=cuda@{verdict}") for verdict in ("int8", "bf16"))
    check_here(decode_o, H200, packed, "bf16", "mxfp4-weight")
    check_here(decode_o, H200, plain, "bf16", "bf16-weight")
    with pytest.raises(KernelError, match=r"@int8 is required; .*: cuda bf16-weight T=1@bf16$"):
        check_here(decode_o, H200, packed, "bf16", "bf16-weight")
    for requirement in (packed, plain):
        with pytest.raises(KernelError, match=r"bf16-weight T=1@bf16, cuda mxfp4-weight T=1@int8$"):
            check_here(decode_o, H200, requirement, "bf16")


@triton.jit
def product_and_sum_kernel(a, b, c, y):
    tl.store(y, tl.load(a) * tl.load(b) + tl.load(c))


@pytest.mark.parametrize("is_fused", [True, False])
def test_products_are_fused_with_sums_as_launched(is_fused):
    code = DeviceCode(
        variant="triton",
        kernel=product_and_sum_kernel,
        signature=dict.fromkeys("abcy", "*fp32"),
        constants={},
        enable_fp_fusion=is_fused,
    )
    assert ("fma.rn.f32" in prove_module.compile_code(code, 90).asm["ptx"]) is is_fused
