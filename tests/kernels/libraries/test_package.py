"""Kernel libraries are found without being imported."""

import sys

import pytest

from firesteel.kernels.libraries import package
from firesteel.kernels.libraries.package import (
    ABSENT,
    describe_libraries,
    find_flashinfer,
    find_triton_kernels,
    list_ahead,
    list_compiled,
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages, none of which can be imported; packages of the machine are hidden."""
    monkeypatch.setattr(
        package, "find_folder", lambda name: tmp_path / name if (tmp_path / name).is_dir() else None
    )
    monkeypatch.setattr(package, "find_version", lambda name: f"7 of {name}")
    for find in (find_triton_kernels, find_flashinfer):
        find.cache_clear()
    yield tmp_path
    for find in (find_triton_kernels, find_flashinfer):
        find.cache_clear()


def test_absent_library_is_said_to_be_absent(site):
    assert describe_libraries() == {"triton_kernels": ABSENT, "flashinfer": ABSENT}


def test_version_of_flashinfer_is_that_of_its_distribution(site, monkeypatch):
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(site))
    (site / "flashinfer").mkdir()
    place = f"flashinfer 7 of flashinfer-python at {site / 'flashinfer'}"
    assert describe_libraries()["flashinfer"] == f"{place}; compiled: nothing yet"


def test_modules_that_flashinfer_has_compiled_are_listed(site, monkeypatch):
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(site))
    cached = site / ".cache" / "flashinfer" / "7 of flashinfer-python" / "90a" / "cached_ops"
    for folder in (site / "flashinfer" / "data" / "aot", cached):
        for name in ("moe", f"of {folder.name}"):
            (folder / name).mkdir(parents=True)
            (folder / name / f"{name}.so").write_bytes(bytes(2_500_000))
        (folder / "moe" / "other.so").touch()
    found = list_compiled(find_flashinfer())
    assert set(found) == {"moe", "of aot", "of cached_ops"} and "aot" in found["moe"].parts
    assert set(list_ahead(find_flashinfer())) == {"moe", "of aot"}
    assert "compiled: moe (2.5 MB), of cached_ops (2.5 MB)" in describe_libraries()["flashinfer"]


def test_package_of_its_own_is_preferred_to_the_copy_in_vllm(site):
    copy = site / "vllm" / "third_party" / "triton_kernels"
    copy.mkdir(parents=True)
    assert describe_libraries()["triton_kernels"] == f"triton_kernels in vLLM 7 of vllm at {copy}"
    (site / "triton_kernels").mkdir()
    find_triton_kernels.cache_clear()
    assert find_triton_kernels().folder == site / "triton_kernels"
    assert find_triton_kernels().version == "7 of triton_kernels"


def test_vllm_without_a_copy_has_no_library(site):
    (site / "vllm").mkdir()
    assert find_triton_kernels() is None


def test_folder_and_version_are_found_without_an_import(tmp_path, monkeypatch):
    (tmp_path / "never_imported").mkdir()
    (tmp_path / "never_imported" / "__init__.py").write_text("raise AssertionError", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert package.find_folder("never_imported") == tmp_path / "never_imported"
    assert "never_imported" not in sys.modules
    assert package.find_folder("no_such_package") is None
    assert package.find_version("no_such_package") == package.UNKNOWN
