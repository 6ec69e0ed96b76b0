"""Lock files: hashes of every file that pip may choose, none of builds that differ by machine."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

import lock_hashes

LOCKS = sorted((Path(__file__).parents[2] / "requirements").glob("*.lock"))
UNHASHED = {"torch.lock", "triton.lock", "nvrtc.lock", "spark.lock", "blackwell.lock"}
TAGS = lock_hashes.accepted_tags()
FILES = {
    "x-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": True,
    "x-1.0-cp312-cp312-manylinux_2_28_aarch64.whl": True,
    "x-1.0-cp38-abi3-manylinux_2_28_x86_64.whl": True,
    "x-1.0-py3-none-any.whl": True,
    "x-1.0-py2.py3-none-any.whl": True,
    "x-1.0.0-py3-none-manylinux_2_17_aarch64.whl": True,
    "x-1.0-cp310-cp310-manylinux_2_17_x86_64.whl": False,
    "x-1.0-cp313-abi3-manylinux_2_17_x86_64.whl": False,
    "x-1.0-cp312-cp312-musllinux_1_2_x86_64.whl": False,
    "x-1.0-cp312-cp312-win_amd64.whl": False,
    "x-1.0-cp312-cp312-macosx_11_0_arm64.whl": False,
    "x-1.1-py3-none-any.whl": False,
    "x-1.0.tar.gz": False,
    "x-1.0.win32.exe": False,
}


def page(names):
    return "".join(
        f'<a href="../../{name}#sha256={number:064x}" data-requires-python="&gt;=3.8">{name}</a><br/>\n'
        for number, name in enumerate(names)
    )


def test_wheels_of_the_covered_machines_are_chosen():
    chosen = {f"{number:064x}" for number, fits in enumerate(FILES.values()) if fits}
    assert set(lock_hashes.find_hashes(page(FILES), Version("1.0"), TAGS)) == chosen


def test_source_is_chosen_without_a_wheel_that_fits():
    names = ["x-1.0-cp312-cp312-win_amd64.whl", "x-1.0.tar.gz", "x-0.9.tar.gz"]
    assert lock_hashes.find_hashes(page(names), Version("1.0"), TAGS) == [f"{1:064x}"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_has_hashes_except_builds_that_differ_by_machine(path):
    text = path.read_text(encoding="utf-8")
    names = [name for name, _ in lock_hashes.read_pins(text)]
    assert names and all(lock_hashes.is_build(name) == (path.name in UNHASHED) for name in names)
    packages = re.sub(r" \\\n\s+", " ", re.sub(r"#.*\n", "", text)).splitlines()
    assert len(packages) == len(names)
    pattern = r"[\w.-]+==[\w.]+" if path.name in UNHASHED else r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+"
    assert all(re.fullmatch(pattern, package) for package in packages)


def test_locks_name_no_package_index():
    assert not any(re.search(r"://|--(extra-)?index-url|--find-links", path.read_text()) for path in LOCKS)
