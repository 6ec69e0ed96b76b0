"""Checks that every locked runtime dependency has a wheel for arm64, the architecture of GB10.

Asks the package index through pip, without installing anything. If the index cannot be reached, the check is
skipped with the reason.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from lock_hashes import read_pins

# pip matches each tag exactly, without the older tags that it covers.
TAGS = tuple(f"manylinux{version}" for version in ("2014", "_2_17", "_2_28", "_2_31", "_2_34"))
OUT_OF_REACH = ("ConnectionError", "NewConnectionError", "Temporary failure in name resolution", "ProxyError")


def list_platforms(machine: str) -> list[str]:
    """Returns pip's options for wheels of a machine."""
    return [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]


def missing_wheel(requirement: str) -> str | None:
    """Returns pip's error if this pinned package has no arm64 wheel, else None."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            *list_platforms("aarch64"),
            "--python-version",
            "3.12",
            "--dest",
            folder,
            requirement,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def main() -> int:
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]]
    requirements = [f"{name}=={version}" for text in texts for name, version in read_pins(text)]
    failed = 0
    for number, requirement in enumerate(requirements, 1):
        complaint = missing_wheel(requirement)
        if complaint and any(word in complaint for word in OUT_OF_REACH):
            print(f"arm64 wheels: skipped, the package index is out of reach ({complaint.splitlines()[-1]})")
            return 0
        print(
            f"[{number}/{len(requirements)}] {requirement}: {'no arm64 wheel' if complaint else 'ok'}", flush=True
        )
        if complaint:
            failed += 1
            print(complaint.splitlines()[-1])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
