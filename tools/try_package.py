"""Builds sdist and wheel, runs the image's steps in a clean folder, and tries what was installed.

python tools/try_package.py FOLDER [--root]

The steps are read from the Dockerfile; then the wheel replaces what they installed. Without --root, steps that
change the system (apt-get, useradd) are left out and named; with --root, as root inside a clean root
(debootstrap), all run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OF_THE_SYSTEM = re.compile(r"apt-get |useradd |mkdir --parents \.cache")
QUESTION = '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}'
READY_S = 120.0
WANTED = {  # what must be in the archives
    "wheel": (
        "firesteel/kindling/config.json",
        "firesteel/kindling_eagle3/config.json",
        "firesteel/kernels/csrc/moe_wgmma.cu",
        "firesteel/py.typed",
    ),
    "sdist": (
        "tests/conftest.py",
        "docs/install.md",
        "mkdocs.yml",
        "requirements/torch.lock",
        "src/firesteel/py.typed",
    ),
}


def read_steps(dockerfile: Path, stages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (word, rest) of the instructions of the named stages."""
    stage = ""
    for line in dockerfile.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage = rest.split()[-1]
        elif stage in stages:
            yield word, rest.strip()


def run_steps(folder: Path, *, in_root: bool) -> None:
    """Runs COPY and RUN of the serving image in `folder`."""
    variables = {**os.environ, "TORCH": "torch", "PYTHONPATH": ""}
    for word, rest in read_steps(ROOT / "Dockerfile", ("base", "serve")):
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(ROOT / source, folder / target)
        elif word == "RUN":
            if OF_THE_SYSTEM.match(rest) and not in_root:
                print(f"left out: {rest}", flush=True)
                continue
            print(f"RUN {rest}", flush=True)
            subprocess.run(rest, shell=True, cwd=folder, env=variables, check=True)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)


def build(out: Path) -> tuple[Path, Path]:
    """Builds (wheel, sdist) from a copy of the tracked files, so that nothing else gets into them."""
    tree = out / "tree"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    hook = "from setuptools import build_meta; build_meta.build_wheel({0!r}); build_meta.build_sdist({0!r})"
    subprocess.run([sys.executable, "-c", hook.format(str(out))], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    (wheel,), (sdist,) = list(out.glob("*.whl")), list(out.glob("*.tar.gz"))
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Exits if an archive lacks something."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    for kind, names in (("wheel", in_wheel), ("sdist", in_sdist)):
        if missing := [name for name in WANTED[kind] if name not in names]:
            sys.exit(f"the {kind} lacks {', '.join(missing)}: see package-data in pyproject.toml and MANIFEST.in")


def try_out(folder: Path) -> None:
    """Runs the program as a user of the image would: version, an answer, a server with its health check."""
    program = folder / ".venv" / "bin" / "firesteel"
    quiet = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    text = subprocess.run(
        [program, "generate", "--prompt", "The capital of France is", "--max-tokens", "4"],
        cwd=folder,
        env=quiet,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if "Paris" not in text:
        sys.exit(f"firesteel generate answered {text!r}, not Paris")
    with subprocess.Popen(
        [program, "serve", "--port", "0"], cwd=folder, env=quiet, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            wait_until_ready(address)
            request = urllib.request.Request(
                f"{address}/v1/chat/completions", QUESTION.encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=READY_S) as answer:
                if b"Paris" not in answer.read():
                    sys.exit("the server did not answer Paris")
        finally:
            server.terminate()
    if server.returncode != 0:
        sys.exit(f"the server ended with exit code {server.returncode} after SIGTERM, not 0")


def wait_until_ready(address: str) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"{address}/health was not ready after {READY_S:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", action="store_true")
    arguments = parser.parse_args()
    out = arguments.folder.resolve()
    shutil.rmtree(out, ignore_errors=True)
    image = out / "image"
    image.mkdir(parents=True)
    wheel, sdist = build(out)
    check_contents(wheel, sdist)
    run_steps(image, in_root=arguments.root)
    pip = [str(image / ".venv" / "bin" / "pip"), "install", "--quiet", "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, str(wheel)], check=True)
    try_out(image)
    print(f"{wheel.name}, {sdist.name}: built, installed by the image's steps, answered and served")


if __name__ == "__main__":
    main()
