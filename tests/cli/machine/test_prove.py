"""The verb prove: targets, requirements, exit codes."""

import json
from dataclasses import replace

import pytest

from firesteel import UserError
from firesteel.device import find_device
from firesteel.kernels.proof import prove_all as compile_all
from firesteel.kernels.proof.library import LibraryKernel
from firesteel.kernels.proof.prove import Proof
from firesteel.kernels.proof.prove_all import Failure

CPU = find_device("cpu")
PROOF = Proof(
    op="moe_matmul",
    variant="triton:gemm mxfp8 fc1 64x128x128",
    target="sm_121a",
    verdict="native-fp4",
    ptx={},
    sass={},
    registers=128,
    spills=0,
    shared_bytes=65536,
    compiler="triton 3.9.0",
)


def test_prove_shows_every_target_and_calls_an_absent_one_not_yet_run(run, rows_of):
    result = run("prove", "--op", "rms_norm", "--target", "sm_90a", "--target", "sm_121a")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("compiled and proven, not yet run") == 1
    rows = [row for row in rows_of(result.stdout) if row[0] == "rms_norm"]
    assert [row[-1].split(" of ")[1] for row in rows] == ["232,448"] * 2 + ["101,376"] * 2
    assert [row[1] for row in rows] == ["triton", "triton first"] * 2
    assert all(row[2:5] == ["none", "0", "0"] for row in rows)


def test_library_that_is_not_there_is_named(run, tmp_path):
    result = run("prove", "--library", str(tmp_path / "absent.so"))
    assert isinstance(result.exception, UserError) and "absent.so is not a file" in str(result.exception)


@pytest.mark.parametrize("as_json", [True, False])
def test_kernels_of_a_library_are_shown_and_nothing_is_compiled(run, rows_of, tmp_path, monkeypatch, as_json):
    kernel = LibraryKernel(
        library="moe",
        kernel="_Z4gemmv",
        target="sm_90a",
        verdict="bf16",
        sass={"HGMMA": 3},
        registers=168,
        spills=52,
    )
    monkeypatch.setattr("firesteel.kernels.proof.library.read_library", lambda path: [kernel, kernel])
    monkeypatch.setattr("firesteel.kernels.proof.prove_all.prove_all", None)
    result = run("prove", "--library", str(tmp_path / "moe.so"), *(["--json"] if as_json else []))
    if as_json:
        assert [shown["kernel"] for shown in json.loads(result.stdout)] == ["_Z4gemmv"] * 2
    else:
        assert ["gemm", "sm_90a", "bf16", "3", "168", "52", "2"] in rows_of(result.stdout)


def test_prove_json_has_a_row_per_variant_for_gb10_without_a_gpu(run, monkeypatch):
    monkeypatch.setattr("firesteel.device.find_device", lambda: CPU)
    result = run("prove", "--op", "quantize_mxfp8", "--json")
    proofs = json.loads(result.stdout)
    assert proofs and {proof["target"] for proof in proofs} == {"sm_121a"}
    wanted = {
        "op",
        "variant",
        "target",
        "verdict",
        "ptx",
        "sass",
        "registers",
        "spills",
        "shared_bytes",
        "shared_limit_bytes",
        "compiler",
    }
    assert all(set(proof) == wanted for proof in proofs)


def test_prove_compiles_for_this_gpu_by_default(run, monkeypatch):
    hopper = replace(CPU, name="H100", capability=(9, 0))
    monkeypatch.setattr("firesteel.device.find_device", lambda: hopper)
    text = run("prove", "--op", "rms_norm").stdout
    assert "sm_90a" in text and "sm_121a" not in text


def test_unmet_requirement_exits_with_1_and_names_the_op(run, monkeypatch):
    monkeypatch.setattr(compile_all, "FEW", 6)  # those of three ops: a process to compile them takes longer
    asked = ["prove", "--op", "quantize_mxfp8", "--target", "sm_121a", "--json"]
    missing = run(*asked, "--require", "rms_norm=triton@native-fp4")
    assert missing.exit_code == 1 and "rms_norm=triton@native-fp4 is required" in missing.stderr
    proofs = [make_proof(proof) for proof in json.loads(missing.stdout)]
    assert {proof.op for proof in proofs} == {"rms_norm", "rms_norm_fed", "quantize_mxfp8"}
    monkeypatch.setattr("firesteel.kernels.proof.prove_all.prove_all", lambda *_, **__: (proofs, []))
    assert run(*asked, "--require", "rms_norm=triton@none", "--require", "quantize_mxfp8=triton").exit_code == 0


def make_proof(as_dict):
    return Proof(**{key: value for key, value in as_dict.items() if key != "shared_limit_bytes"})


def test_kernel_that_does_not_compile_is_named_and_exits_with_1(run, monkeypatch):
    failure = Failure("linear", "triton:gemm", "sm_121a", "CompilationError: line 3")
    monkeypatch.setattr("firesteel.kernels.proof.prove_all.prove_all", lambda *_, **__: ([], [failure]))
    result = run("prove", "--target", "sm_121a")
    assert result.exit_code == 1
    assert "linear triton:gemm does not compile for sm_121a: CompilationError: line 3" in result.stderr


def test_kernel_that_does_not_fit_exits_with_1_even_if_not_required(run, monkeypatch):
    large = replace(PROOF, shared_bytes=101_377)
    monkeypatch.setattr("firesteel.kernels.proof.prove_all.prove_all", lambda *_, **__: ([PROOF, large], []))
    result = run("prove", "--target", "sm_121a", "--json")
    assert result.exit_code == 1 and "wants 101377 bytes of shared memory, sm_121a has 101376" in result.stderr
    assert [proof["shared_limit_bytes"] for proof in json.loads(result.stdout)] == [101_376] * 2


def test_gpu_outside_the_table_is_reported_unless_a_target_is_given(run, monkeypatch):
    asked = []
    turing = replace(CPU, name="T4", capability=(7, 5))
    monkeypatch.setattr("firesteel.device.find_device", lambda: turing)
    monkeypatch.setattr(
        "firesteel.kernels.proof.prove_all.prove_all",
        lambda ops, targets, **_: (asked.append(targets) or [PROOF], []),
    )
    told = run("prove")
    assert told.exit_code == 0 and "compute capability 7.5" in told.stderr and "sm_121a instead" in told.stderr
    assert run("prove", "--target", "sm_90a").stderr == "" and asked == [["sm_121a"], ["sm_90a"]]


def test_nothing_compiled_is_nothing_proven(run, monkeypatch):
    monkeypatch.setattr("firesteel.kernels.proof.prove_all.prove_all", lambda *_, **__: ([], []))
    result = run("prove", "--target", "sm_121a")
    assert result.exit_code == 3 and "nothing is proven" in result.stderr


def test_requirements_may_be_joined_by_commas(run, monkeypatch):
    monkeypatch.setattr("firesteel.kernels.proof.prove_all.prove_all", lambda *_, **__: ([PROOF], []))
    asked = ["prove", "--target", "sm_121a", "--require"]
    assert run(*asked, "moe=triton,moe_matmul=triton:gemm@native-fp4").exit_code == 0
    result = run(*asked, "moe=triton,linear=triton")
    assert result.exit_code == 1 and "linear=triton is required; compiled: nothing" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "rms_nor"], "there is no op 'rms_nor'; did you mean rms_norm?"),
        (["--op", "rms_norm", "--target", "sm_121"], "no target 'sm_121'; did you mean sm_121a?"),
        (["--require", "moe"], "'moe' is not OP=IMPLEMENTATION"),
        (["--require", "moe=triton:gemm mxfp8"], "names one kernel"),
    ],
)
def test_error_names_the_mistake_of_the_user(run, arguments, message):
    result = run("prove", *arguments)
    assert isinstance(result.exception, UserError) and message in str(result.exception)
