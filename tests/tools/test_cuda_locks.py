"""Locks of torch for SM12x: a CUDA build and a Triton with native FP4."""

import re
from pathlib import Path

import pytest

import cuda_locks
from firesteel.doctor import TRITON_OF_TORCH, version
from firesteel.kernels.operands.activation import BLOCK_SCALED_TRITON
from lock_hashes import read_pins

ROOT = Path(__file__).parents[2]
INSTALL_PAGE = ROOT / "docs" / "install.md"
LOCKS = [ROOT / "requirements" / name for name in ("spark.lock", "blackwell.lock")]
NEEDS = [
    "filelock",
    'cuda-toolkit[cublas,nvrtc]==13.0.3; platform_system == "Linux"',
    "triton~=3.8.0; python_version<'3.15'",
]
CPU = ["filelock", "sympy>=1.13.3"]


def pins_of(path):
    return dict(read_pins(path.read_text(encoding="utf-8")))


def test_oldest_triton_is_that_of_the_kernels():
    assert cuda_locks.OLDEST_TRITON.release[:2] == BLOCK_SCALED_TRITON


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_locked_pair_belongs_together_and_is_the_documented_one(path):
    pins = pins_of(path)
    assert TRITON_OF_TORCH[version(pins["torch"])] == version(pins["triton"]) >= BLOCK_SCALED_TRITON
    rows = [line for line in INSTALL_PAGE.read_text(encoding="utf-8").splitlines() if f"| `{path.stem}` |" in line]
    assert len(rows) == 1 and re.search(rf"\b{pins['torch']}, 13\.0, {pins['triton'][:3]} ", rows[0])


def test_documented_pair_of_other_machines_is_the_locked_one():
    torch = pins_of(ROOT / "requirements" / "torch.lock")["torch"]
    triton = ".".join(map(str, TRITON_OF_TORCH[version(torch)]))
    assert f"| `torch` | {torch}, 13.0, {triton} |" in INSTALL_PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("pins", "needs", "words"),
    [
        ({"torch": "2.14.1", "triton": "3.8.0"}, NEEDS, []),
        ({"torch": "2.14.1", "triton": "3.8.0"}, CPU, ["torch 2.14.1 is a CPU build"]),
        (
            {"torch": "2.13.0", "triton": "3.7.1"},
            [*NEEDS[:2], "triton==3.7.1"],
            ["Triton 3.7.1 must be 3.8 or later"],
        ),
        ({"torch": "2.14.1", "triton": "3.9.0"}, NEEDS, ["requires triton~=3.8.0"]),
        ({"torch": "2.14.1"}, NEEDS, ["Triton is not pinned", "requires triton~=3.8.0"]),
    ],
)
def test_wrong_builds_and_pairs_are_named(pins, needs, words):
    complaints = cuda_locks.judge(pins, {"requires_dist": needs})
    assert len(complaints) == len(words)
    assert all(word in complaint for word, complaint in zip(words, complaints, strict=True))


def test_lock_is_checked_for_its_machine_and_every_python(capsys):
    asked = []

    def read(requirement, machine, python):
        asked.append((requirement, machine, python))
        return {"requires_dist": NEEDS}

    assert cuda_locks.check(LOCKS[0], "aarch64", read) == []
    assert {machine for _, machine, _ in asked} == {"aarch64"} and len(asked) == 2 * len(cuda_locks.PYTHONS)
    assert "CUDA 13.0.3: ok" in capsys.readouterr().out


def test_missing_wheel_is_a_complaint():
    complaints = cuda_locks.check(LOCKS[0], "aarch64", lambda *asked: "No matching distribution")
    assert len(complaints) == 4 and all("No matching distribution" in line for line in complaints)
