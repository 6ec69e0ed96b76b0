"""Compiled libraries have code for a GPU, or not; the libraries are real, with cubins that NVRTC compiled."""

import pytest

from firesteel.kernels.proof.library import LibraryTargets, list_targets
from firesteel.lab.judge.evidence_file import EvidenceFile, Kind, holds_device_code
from firesteel.lab.judge.library import can_compile, can_run, judge_code, judge_library
from firesteel.lab.verdict import Verdict
from tests.lab.judge.compiled import make_cubin, make_library

GB10 = (12, 1)
PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries")
    return make_library(folder / "kernels 2.so", cubins=["sm_80", "sm_90a"], ptx=["sm_90"])


def test_architectures_in_a_library_are_listed(library, tmp_path):
    assert list_targets(library) == LibraryTargets(machine_code=("sm_80", "sm_90a"), ptx=("sm_90",))
    cubin = tmp_path / "x"
    cubin.write_bytes(make_cubin("sm_80"))
    assert list_targets(cubin).machine_code == ("sm_80",) and holds_device_code(cubin)


def test_library_without_code_for_a_gpu_is_left_out_unless_it_was_named(tmp_path):
    plain = make_library(tmp_path / "plain.so")
    assert not holds_device_code(plain) and list_targets(plain) == LibraryTargets()
    assert judge_library(EvidenceFile(plain, Kind.LIBRARY, is_named=False), GB10) is None
    assert judge_library(EvidenceFile(plain, Kind.LIBRARY), GB10).verdict is UNPROVEN


def test_library_that_only_the_drivers_compiler_can_run_is_red(library):
    found = judge_library(EvidenceFile(library, Kind.LIBRARY), GB10)
    assert found.verdict is FAILED and "PTX (sm_90)" in found.words and "12.1a" in found.cure
    assert judge_library(EvidenceFile(library, Kind.LIBRARY), (9, 0)).verdict is PASSED
    assert judge_library(EvidenceFile(library, Kind.LIBRARY), None).verdict is UNPROVEN


def test_broken_library_is_not_judged(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF" + b"\0" * 64 + b".nv_fatbin")
    assert judge_library(EvidenceFile(broken, Kind.LIBRARY), GB10).verdict is UNPROVEN


@pytest.mark.parametrize(
    ("machine_code", "ptx", "is_named", "verdict"),
    [
        (("sm_80",), (), True, FAILED),
        (("sm_80", "sm_120"), (), True, PASSED),
        (("sm_121a",), (), True, PASSED),
        (("sm_120f",), (), True, PASSED),
        (("sm_120a",), (), True, FAILED),  # the suffix a binds it to 12.0
        (("sm_100a",), (), True, FAILED),
        (("sm_90a",), (), False, NOT_APPLICABLE),  # one of many in a folder: Hopper's kernels
        (("sm_80", "sm_90a"), (), False, FAILED),
        (("sm_90a",), ("sm_90",), False, FAILED),
    ],
)
def test_verdict_on_a_gb10(machine_code, ptx, is_named, verdict):
    code = LibraryTargets(machine_code=machine_code, ptx=ptx)
    found, words, cure = judge_code(code, GB10, is_named=is_named)
    assert found is verdict and words and bool(cure) == (verdict is FAILED)


def test_code_without_a_suffix_has_no_fp4_instruction():
    words = [
        judge_code(LibraryTargets(machine_code=(name,)), GB10, is_named=True)[1] for name in ("sm_120", "sm_121a")
    ]
    assert "no block-scaled FP4" in words[0] and "FP4" not in words[1]


def test_rules_of_compatibility():
    assert can_run("sm_86", (8, 9)) and not can_run("sm_89", (8, 6)) and not can_run("sm_80", (9, 0))
    assert can_run("sm_100f", (10, 3)) and not can_run("sm_100a", (10, 3)) and not can_run("sm_100f", (12, 0))
    assert can_compile("sm_80", GB10) and not can_compile("sm_90a", GB10) and not can_compile("sm_121", (12, 0))
    assert not can_run("nonsense", GB10)
