"""What the server's Python states about packages: version, commit, and the CUDA of torch."""

import importlib.metadata
import subprocess
import sys

import pytest

from firesteel.lab.path import ask_imports
from firesteel.lab.path.ask_imports import CUDA, LOCAL, STATED
from firesteel.lab.path.imports import find_imports
from firesteel.lab.path.place import HostPlace

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "line",
    [
        f"git_version = '{COMMIT}'",  # torch/version.py
        f'__git_version__ = "{COMMIT}"',  # flashinfer/_build_meta.py
        f'__git_version__: str = "{COMMIT}"',
        f"__commit_id__ = commit_id = 'g{COMMIT}'",  # setuptools-scm, as in vllm/_version.py
    ],
)
def test_commit_that_a_build_states_is_read(line):
    assert STATED.search(f"__version__ = '1'\n{line}\n")[1] == COMMIT


def test_absent_commit_is_not_invented():
    assert STATED.search("commit_id: COMMIT_ID\n__commit_id__ = commit_id = None\n") is None


@pytest.mark.parametrize(
    ("version", "commit", "is_dirty"),
    [
        ("0.13.0rc1.dev12+g1a2b3c4d5", "1a2b3c4d5", False),
        ("0.13.0rc1.dev12+g1a2b3c4d5.d20260101", "1a2b3c4d5", True),
        ("0.13.0+cu130.g1a2b3c4d5", "1a2b3c4d5", False),
        ("3.6.0+git1a2b3c4d", "1a2b3c4d", False),
        ("2.13.0+cpu", None, False),
        ("0.1", None, False),
    ],
)
def test_development_version_names_its_commit_and_changed_files(version, commit, is_dirty):
    found = LOCAL.search(version)
    assert (found and found[1]) == commit and bool(found and found[2]) == is_dirty


def test_cuda_of_torch_is_read_without_importing_it():
    assert CUDA.search("debug = False\ncuda: Optional[str] = '13.0'\n")[1] == "13.0"
    assert CUDA.search("cuda: Optional[str] = None\n") is None


@pytest.fixture
def site(tmp_path, monkeypatch):
    """site("vllm", "0.3"): an installed package, found by a Python that looks in this folder."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, version, *, url=None, **files):
        (tmp_path / name).mkdir()
        for file, text in {"__init__.py": "", **files}.items():
            (tmp_path / name / file).write_text(text)
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if url:
            (info / "direct_url.json").write_text(url)
        return tmp_path / name

    return install


def test_installation_from_git_has_its_commit(site):
    folder = site(
        "burr", "0.3", url=f'{{"url": "https://x/y", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}'
    )
    row = ask_imports.describe("burr")
    assert row == {
        "file": str(folder / "__init__.py"),
        "real_folder": str(folder),
        "version": "0.3",
        "commit": COMMIT,
        "is_dirty": None,
    }


def test_build_without_any_statement_has_no_commit(site):
    site("burr", "0.3", url='{"url": "file:///x", "dir_info": {"editable": true}}')
    assert ask_imports.describe("burr")["commit"] is None and ask_imports.describe("no_such_package") is None


def test_packages_of_the_servers_python_are_all_listed():
    place = HostPlace(interpreter=sys.executable)
    imports = find_imports(place, ["msgspec"])
    assert imports.python == "{}.{}.{}".format(*sys.version_info) and imports.interpreter == sys.executable
    assert imports.distributions["msgspec"] == importlib.metadata.version("msgspec")
    assert len(imports.distributions) > 20


def test_python_that_fails_is_silent(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    imports = find_imports(HostPlace(interpreter=str(tmp_path / "python")), ["torch"])
    assert imports.is_silent and not imports.packages


def test_checkout_of_a_package_has_its_commit_and_says_if_it_is_dirty(tmp_path):
    package = tmp_path / "burr"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, encoding="utf-8").stdout
    place = HostPlace(interpreter=sys.executable, folder=str(tmp_path))
    clean = find_imports(place, ["burr"]).packages["burr"]
    (package / "__init__.py").write_text("x = 1\n")
    dirty = find_imports(place, ["burr"]).packages["burr"]
    assert clean.commit == dirty.commit == head.strip()
    assert clean.is_dirty is False and dirty.is_dirty is True
