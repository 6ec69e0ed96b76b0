"""Writes the hashes of every file that pip may choose into lock files, for `pip install --require-hashes`.

    python tools/lock_hashes.py --index URL requirements/*.lock

Covers Python 3.11 and 3.12 on Linux, x86-64 and arm64. The index must offer the simple API (PEP 503) with sha256
fragments. Packages in BUILDS get no hash, as their build differs by machine, and must stand in a lock of their own.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

PYTHONS = ((3, 11), (3, 12))
MACHINES = ("x86_64", "aarch64")
OLDEST_GLIBC, NEWEST_GLIBC = 5, 40  # of manylinux_2_N
BUILDS = r"torch|triton|nvidia-(?!ml-py$).*"  # nvidia-ml-py is plain Python
LINK = re.compile(r'<a\s[^>]*href="[^"#]*#sha256=([0-9a-f]{64})"[^>]*>([^<]+)</a>')
PIN = re.compile(r"([\w.-]+)==([\w.+!-]+)(?: \\)?")


def accepted_tags() -> frozenset[Tag]:
    """Returns the tags of wheels that one of the covered machines can install."""
    versions = [f"manylinux_2_{minor}" for minor in range(OLDEST_GLIBC, NEWEST_GLIBC)]
    names = [*versions, "manylinux1", "manylinux2010", "manylinux2014", "linux"]
    platforms = [f"{name}_{machine}" for name in names for machine in MACHINES]
    tags: set[Tag] = set()
    for python in PYTHONS:
        tags.update(cpython_tags(python, platforms=platforms))
        tags.update(compatible_tags(python, interpreter=f"cp{python[0]}{python[1]}", platforms=platforms))
    return frozenset(tags)


def list_files(page: str) -> Iterator[tuple[str, str]]:
    """Yields name and sha256 of each file on a package's page."""
    for digest, name in LINK.findall(page):
        yield html.unescape(name).strip(), digest


def find_hashes(page: str, version: Version, tags: frozenset[Tag]) -> list[str]:
    """Returns the hashes of the wheels that fit; without such a wheel, that of the source archive."""
    wheels, sources = set(), set()
    for name, digest in list_files(page):
        try:
            if name.endswith(".whl"):
                _, found, _, file_tags = parse_wheel_filename(name)
                if found == version and file_tags & tags:
                    wheels.add(digest)
            elif parse_sdist_filename(name)[1] == version:
                sources.add(digest)
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue  # old formats, such as .exe and .egg
    return sorted(wheels or sources)


def read_pins(text: str) -> Iterator[tuple[str, str]]:
    """Yields name and version of each package of a lock file."""
    for line in text.splitlines():
        if pin := PIN.fullmatch(line.strip()):
            yield pin[1], pin[2]


def is_build(name: str) -> bool:
    """Returns whether the fitting build of a package differs by machine."""
    return re.fullmatch(BUILDS, canonicalize_name(name)) is not None


def lock(text: str, index: str, tags: frozenset[Tag]) -> str:
    """Returns the lock file with the hashes that the index has now."""
    lines = [line for line in text.splitlines() if line.startswith("#")]
    for name, version in read_pins(text):
        if is_build(name):
            raise SystemExit(f"{name} has no hashes: move it to a lock of its own, without hashes")
        address = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
        with urllib.request.urlopen(address, timeout=60) as answer:
            hashes = find_hashes(answer.read().decode(), Version(version), tags)
        if not hashes:
            raise SystemExit(f"{address} has no file of {name}=={version} for the covered machines")
        lines += [" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in hashes)])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--index", required=True, help="address of the package index's simple API")
    parser.add_argument("locks", nargs="+", type=Path, help="lock files, rewritten in place")
    arguments = parser.parse_args()
    tags = accepted_tags()
    for path in arguments.locks:
        text = path.read_text(encoding="utf-8")
        if all(is_build(name) for name, _ in read_pins(text)):
            continue
        path.write_text(lock(text, arguments.index, tags), encoding="utf-8")
        print(f"{path}: {len(list(read_pins(text)))} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
