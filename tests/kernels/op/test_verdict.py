"""The verdict on matrix instructions, in PTX and in machine code."""

from dataclasses import replace

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.decode.fc1 import plan
from firesteel.kernels.op import verdict
from firesteel.kernels.op.verdict import judge, judge_compiled, read_code
from firesteel.kernels.stream.plan import machine_of

PTX_8 = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0"
PTX_4 = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"


@pytest.mark.parametrize(
    ("ptx", "sass", "arguments", "verdict"),
    [
        ([PTX_8], ["QMMA.SF.16832.F32.E4M3.E4M3"], ["x", "codes"], "native-fp4"),
        ([PTX_8], ["QMMA.SF.16832.F32.E4M3.E4M3"], ["x", "w_mxfp4"], "native-fp4"),
        ([PTX_8], ["QMMA.SF.16832.F32.E4M3.E4M3"], ["x", "w_mxfp8"], "fp8"),
        (["mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"], ["QMMA.16832.F32.E4M3.E4M3"], ["codes"], "fp8"),
        (["mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"], ["HMMA.16816.F32"], ["codes"], "bf16"),
        ([PTX_8], ["HMMA.16816.F32.BF16"], ["codes"], "bf16"),
        (["wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"], ["QGMMA.64x64x32.F32.E4M3.E4M3"], [], "fp8"),
        (["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"], ["HGMMA.64x64x16.F32.BF16"], [], "bf16"),
        (["tcgen05.mma.cta_group::1.kind::mxf4.block_scale"], ["UTCOMMA"], [], "native-fp4"),
        (["tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale"], ["UTCQMMA"], ["codes"], "native-fp4"),
        (["tcgen05.mma.cta_group::1.kind::f16"], ["UTCHMMA"], ["codes"], "bf16"),
        ([], [], ["codes"], "none"),
        ([], ["IMMA.16832.S8.S8"], [], "int8"),
        ([], ["IMMA.16832.U8.S8.SAT", "HMMA.16816.F32.BF16"], ["codes"], "int8"),
        ([], ["IGMMA.64x8x32.S8.S8"], [], "int8"),
        ([], ["UTCIMMA"], [], "int8"),
        ([], ["IMMA.16864.S4.S4"], [], "none"),
        ([], ["BMMA.168256.XOR"], [], "none"),
        ([PTX_8], ["QMMA.SF.16832.F32.E4M3.E4M3", "HMMA.16816.F32.BF16"], ["codes"], "bf16"),
        ([PTX_4], ["OMMA.SF.16864", "HMMA.16816.F32.BF16"], ["codes"], "bf16"),
        ([PTX_8], None, ["codes"], "native-fp4"),
        ([PTX_8], None, ["x"], "fp8"),
        ([PTX_4], None, ["x"], "native-fp4"),
        (["mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"], None, ["codes"], "fp8"),
        (["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"], None, ["codes"], "bf16"),
        (["mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32"], None, [], "int8"),
        (["mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32"], None, ["codes"], "int8"),
        (["mma.sync.aligned.m16n8k64.row.col.satfinite.s32.s4.s4.s32"], None, [], "none"),
        (["tcgen05.mma.cta_group::1.kind::i8"], None, [], "int8"),
        ([], None, ["codes"], "none"),
    ],
)
def test_verdict_follows_the_machine_code(ptx, sass, arguments, verdict):
    assert judge(ptx, sass, arguments) == verdict


def test_kernels_of_one_binary_are_read_separately(small):
    step, turn = (small(name).build("sm_90a") for name in ("step", "turn"))
    assert step.binary.hash == turn.binary.hash
    assert judge_compiled(step) == judge_compiled(turn) == "none"
    assert read_code(step).shared_bytes < read_code(turn).shared_bytes and read_code(step).sass == {}


def test_matrix_instructions_of_a_compiled_kernel_are_counted():
    sizes = {"tokens": 1, "hidden": 512, "intermediate": 512, "experts": 8, "active": 4}
    entry = plan(machine_of((9, 0)), **sizes).kernel.build("sm_90a")
    code = read_code(entry)
    assert judge_compiled(entry) == "int8"
    assert {name.split(".")[0] for name in code.sass} == {"IMMA"} and sum(code.sass.values()) > 1
    assert sum(code.ptx.values()) >= sum(code.sass.values()) / 4


def test_machine_code_that_cannot_be_read_is_an_error(small, monkeypatch):
    step = small("step").build("sm_90a")
    with pytest.raises(KernelError, match="nvdisasm failed"):
        judge_compiled(replace(step, binary=replace(step.binary, cubin=b"torn")))
    with pytest.raises(KernelError, match="no code of another"):
        judge_compiled(replace(step, name="another"))
    monkeypatch.setattr(
        verdict, "disassemble", lambda cubin, kernel: verdict._section("a listing of nothing", kernel)
    )
    with pytest.raises(KernelError, match="no code of step"):
        judge_compiled(step)
    monkeypatch.undo()
    monkeypatch.setattr(verdict, "PATIENCE_S", 0.0)
    with pytest.raises(KernelError, match="nvdisasm was not done in 0 s"):
        judge_compiled(step)
