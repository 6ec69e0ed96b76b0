"""The local Hugging Face cache: which repositories and snapshots it holds. Reads files only.

A repository's folder has `blobs` (files by checksum), `snapshots/COMMIT` (links to them by name) and
`refs/REVISION` (the commit of a branch or tag).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

MAIN = "main"
PREFIX = "models--"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Files of a repository at a commit; some may be missing."""

    repository: str
    commit: str
    revisions: tuple[str, ...]  # branches and tags that were at this commit when they were fetched
    folder: Path

    def count_bytes(self) -> int:
        """Returns the bytes of all files, which may be links."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def find_cache() -> Path:
    """Returns the folder of the cache, which HF_HOME and HF_HUB_CACHE move."""
    return Path(constants.HF_HUB_CACHE).expanduser()


def find_folder(repository: str) -> Path:
    """Returns the folder of a repository, which need not exist."""
    return find_cache() / (PREFIX + repository.replace("/", "--"))


def list_repositories() -> list[str]:
    """Returns the repositories of models in the cache."""
    folders = sorted(path for path in find_cache().glob(f"{PREFIX}*") if path.is_dir())
    return [path.name.removeprefix(PREFIX).replace("--", "/") for path in folders]


def list_snapshots(repository: str) -> list[Snapshot]:
    folder = find_folder(repository)
    revisions: dict[str, list[str]] = {}
    for path in sorted((folder / "refs").rglob("*")):
        if path.is_file():
            revisions.setdefault(_read_ref(path), []).append(path.relative_to(folder / "refs").as_posix())
    return [
        Snapshot(
            repository=repository,
            commit=path.name,
            revisions=tuple(revisions.get(path.name, ())),
            folder=path,
        )
        for path in sorted((folder / "snapshots").glob("*"))
        if path.is_dir()
    ]


def find_snapshot(repository: str, revision: str = MAIN) -> Path | None:
    """Returns the folder of a branch, tag or commit, or None if the cache does not have it."""
    folder = find_folder(repository)
    ref = folder / "refs" / revision
    snapshot = folder / "snapshots" / (_read_ref(ref) if ref.is_file() else revision)
    return snapshot if snapshot.is_dir() else None


def _read_ref(path: Path) -> str:
    """Returns the commit in a file of `refs`; a damaged one names no snapshot."""
    return path.read_bytes()[:100].decode("ascii", "replace").strip() or "none"
