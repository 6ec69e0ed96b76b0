"""Replaces the Python files of an installed vLLM by those of another version's wheel, and keeps its compiled part.

    python tools/vllm_python_files.py WHEEL SITE_PACKAGES

For versions of vLLM without a CPU build: their Python files run on the compiled part of an older CPU build. The
wheel's own compiled files need CUDA and are left out.
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from pathlib import Path

PACKAGE = "vllm"
COMPILED = (".so", "vllm-rs")  # ends of names: extension modules, and the server that is compiled from Rust


def replace(wheel: Path, site_packages: Path) -> list[str]:
    """Returns the names of the compiled files that stay."""
    package = site_packages / PACKAGE
    kept = sorted(path for path in package.rglob("*") if path.is_file() and is_compiled(path.name))
    if not kept:
        raise SystemExit(f"{package} has no compiled files: install a CPU build of vLLM there first")
    replaced = site_packages / f"{PACKAGE}.replaced"
    package.rename(replaced)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{PACKAGE}/") and not is_compiled(name)]
        archive.extractall(site_packages, names)
    for path in kept:
        place = package / path.relative_to(package)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(replaced / path.relative_to(package), place)
    shutil.rmtree(replaced)
    return [str(path.relative_to(package)) for path in kept]


def is_compiled(name: str) -> bool:
    return name.endswith(COMPILED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path, help="wheel of vLLM whose Python files are wanted")
    parser.add_argument("site_packages", type=Path, help="folder with the installed CPU build")
    arguments = parser.parse_args()
    print("compiled part:", ", ".join(replace(arguments.wheel, arguments.site_packages)))


if __name__ == "__main__":
    main()
