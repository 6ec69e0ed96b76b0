"""What a pull has to fetch: the files of a listing against those in the cache, and against the free disk space."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from firesteel.errors import UserError
from firesteel.hub.cache import find_cache, find_folder
from firesteel.hub.listing import Listing, RemoteFile

GB = 1e9
MOST_HTTP_BYTES = 50 * 10**9  # of a file, by the rules of the hub; larger ones need its own protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PullItem:
    """A file of a listing and its places in the cache."""

    file: RemoteFile
    blob: Path  # the content, by its digest
    link: Path  # the file of the snapshot
    held_bytes: int  # of the file or of its unfinished download

    @property
    def partial(self) -> Path:
        """The unfinished download."""
        return self.blob.with_name(self.blob.name + ".incomplete")

    @property
    def is_linked(self) -> bool:
        return _size_of(self.link) == self.file.num_bytes

    @property
    def is_fetched(self) -> bool:
        return self.is_linked or _size_of(self.blob) == self.file.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan:
    """The state of all needed files before a pull."""

    listing: Listing
    items: tuple[PullItem, ...]
    snapshot: Path
    ref: Path | None  # file that names the commit of the revision; None if the revision is the commit

    @property
    def total_bytes(self) -> int:
        return sum(item.file.num_bytes for item in self.items)

    @property
    def held_bytes(self) -> int:
        return sum(item.held_bytes for item in self.items)

    @property
    def missing_bytes(self) -> int:
        return self.total_bytes - self.held_bytes

    @property
    def is_complete(self) -> bool:
        return all(item.is_linked for item in self.items)


def plan_pull(listing: Listing) -> PullPlan:
    """Looks every file of a listing up in the cache."""
    folder = find_folder(listing.repository)
    snapshot = folder / "snapshots" / listing.commit
    items = tuple(_find_item(file, folder / "blobs", snapshot) for file in listing.files)
    ref = None if listing.revision == listing.commit else folder / "refs" / listing.revision
    return PullPlan(listing=listing, items=items, snapshot=snapshot, ref=ref)


def _find_item(file: RemoteFile, blobs: Path, snapshot: Path) -> PullItem:
    item = PullItem(file=file, blob=blobs / file.digest, link=snapshot / file.name, held_bytes=0)
    held = file.num_bytes if item.is_fetched else min(_size_of(item.partial) or 0, file.num_bytes)
    return PullItem(file=file, blob=item.blob, link=item.link, held_bytes=held)


def _size_of(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def find_free_bytes() -> int:
    """Returns the free space of the disk that holds the cache, which may not exist yet."""
    folder = find_cache().absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir())).free


def check_sizes(plan: PullPlan) -> None:
    """Raises UserError if a missing file is larger than what the hub sends over plain HTTP."""
    for item in plan.items:
        if not item.is_fetched and item.file.num_bytes > MOST_HTTP_BYTES:
            raise UserError(
                f"{item.file.name} of {plan.listing.repository} has {item.file.num_bytes / GB:.1f} GB, and the hub "
                f"sends at most {MOST_HTTP_BYTES / GB:.0f} GB per file over HTTP: choose a repository with smaller "
                f"shards, or fetch it with `hf download {plan.listing.repository} {item.file.name}`"
            )


def check_disk(plan: PullPlan) -> None:
    """Raises UserError if the disk has too little space for what is missing."""
    free = find_free_bytes()
    if plan.missing_bytes > free:
        raise UserError(
            f"{plan.listing.repository} needs {plan.missing_bytes / GB:.2f} GB more, and the disk of "
            f"{find_cache()} has {free / GB:.2f} GB free: free {(plan.missing_bytes - free) / GB:.2f} GB, or set "
            "HF_HOME to a folder on a larger disk"
        )
