"""An environment of a vLLM without a CPU build: its Python files on the compiled part of an older one."""

import zipfile

import pytest

import vllm_python_files

OLD = {
    "__init__.py": "old",
    "gone.py": "old",
    "_C.abi3.so": "compiled for a CPU",
    "deep/_D.so": "compiled for a CPU",
}
NEW = {
    "vllm/__init__.py": "new",
    "vllm/deep/added.py": "new",
    "vllm/_C.abi3.so": "compiled for CUDA",
    "vllm/vllm-rs": "compiled",
    "vllm-1.1.dist-info/METADATA": "new",
}


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "vllm-1.1-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in NEW.items():
            archive.writestr(name, text)
    return path


def put(package, files):
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)


def read(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_python_files_are_those_of_the_wheel_and_the_compiled_part_stays(wheel, tmp_path):
    packages = tmp_path / "site-packages"
    put(packages / "vllm", OLD)
    assert vllm_python_files.replace(wheel, packages) == ["_C.abi3.so", "deep/_D.so"]
    assert read(packages) == {
        "vllm/__init__.py": "new",
        "vllm/deep/added.py": "new",
        "vllm/_C.abi3.so": "compiled for a CPU",
        "vllm/deep/_D.so": "compiled for a CPU",
    }


def test_folder_without_a_compiled_part_is_refused(wheel, tmp_path):
    packages = tmp_path / "site-packages"
    put(packages / "vllm", {"__init__.py": "old"})
    with pytest.raises(SystemExit, match="no compiled files"):
        vllm_python_files.replace(wheel, packages)
    assert read(packages) == {"vllm/__init__.py": "old"}
