"""A program for the server's interpreter: prints what it would import, as JSON. Needs nothing but Python 3.8.

Packages are found without importing them. A build states its commit in a file of its own, an installation from git
in direct_url.json, a development version as +gCOMMIT.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

# git_version = '1a2b...', __commit_id__ = commit_id = 'g1a2b...', __git_version__: str = "1a2b..."
STATED = re.compile(
    r"^[\w \t=]*(?:git_version|commit_id)_*(?:[ \t]*:[^=\n]+)?[ \t]*=[ \t]*['\"]g?([0-9a-f]{7,40})\b", re.M
)
LOCAL = re.compile(r"\+(?:.*\.)?(?:g|git)([0-9a-f]{7,40})(\.d\d{8})?$")  # of a version; a date means changed files
CUDA = re.compile(r"^cuda(?:[ \t]*:[^=\n]+)?[ \t]*=[ \t]*['\"]([\d.]+)['\"]", re.M)
FILES = ("version.py", "_version.py", "_build_meta.py")


def find_distribution(name: str) -> Any:
    """Returns None if there is none; flashinfer's is called flashinfer-python."""
    for known in (name, name + "-python"):
        try:
            return importlib.metadata.distribution(known)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def read_statements(origin: str | None) -> str:
    """Returns the text of the files in which builds state their commit."""
    paths = [Path(origin).parent / name for name in FILES] if origin else []
    return "\n".join(path.read_text(errors="replace") for path in paths if path.is_file())


def describe(name: str) -> dict[str, Any] | None:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    distribution = find_distribution(name)
    version = distribution.version if distribution else ""
    stated, local = STATED.search(read_statements(spec.origin)), LOCAL.search(version)
    installed = json.loads((distribution and distribution.read_text("direct_url.json")) or "{}")
    commit = installed.get("vcs_info", {}).get("commit_id") or (stated or local or [None, None])[1]
    is_dirty = True if local and local[2] else None
    return {
        "file": spec.origin or "",
        "real_folder": os.path.dirname(os.path.realpath(spec.origin)) if spec.origin else "",
        "version": version,
        "commit": commit,
        "is_dirty": is_dirty,
    }


def ask_fused_moe() -> bool | None:
    """Asks vLLM for FlashInfer's fused MoE: its own test decides whether that can be chosen."""
    try:
        from vllm.utils.flashinfer import (
            has_flashinfer_cutlass_fused_moe,
        )

        return bool(has_flashinfer_cutlass_fused_moe())
    except (ImportError, RuntimeError, OSError, AttributeError):
        return None


def main() -> None:
    packages = {name: describe(name) for name in sys.argv[1:]}
    torch = packages.get("torch")
    cuda = CUDA.search(read_statements(torch["file"])) if torch else None
    has_both = packages.get("vllm") and packages.get("flashinfer")
    versions = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    answer = {
        "packages": packages,
        "has_fused_moe": ask_fused_moe() if has_both else None,
        "python": platform.python_version(),
        "cuda": cuda[1] if cuda else None,
        "distributions": {name: version for name, version in versions.items() if name and version},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
