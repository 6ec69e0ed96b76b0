"""The files of a repository on the hub that firesteel needs, with the sizes and checksums that the hub states."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from huggingface_hub import HfApi, constants

from firesteel.errors import UserError
from firesteel.hub.faults import explaining
from firesteel.hub.files import choose_files

REVISION = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*", re.ASCII)  # becomes a path in the cache
COMMIT = re.compile(r"[0-9a-f]{40}")
GIT_DIGEST, SHA256_DIGEST = COMMIT, re.compile(r"[0-9a-f]{64}")
NOT_A_HUB = "check HF_ENDPOINT, the proxy and the firewall"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on the hub."""

    name: str
    num_bytes: int
    digest: str  # SHA-256 of a file in large file storage, else git's object id (SHA-1); its name in the cache

    @property
    def is_large(self) -> bool:
        """True for a file in git's large file storage."""
        return SHA256_DIGEST.fullmatch(self.digest) is not None

    def new_hash(self) -> hashlib._Hash:
        """Returns a hash that has the file's digest once it was given the file's content."""
        if self.is_large:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.num_bytes, usedforsecurity=False)  # git hashes this header too


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The needed files of a repository at a commit."""

    repository: str
    revision: str  # as the user named it: a branch, a tag or the commit
    commit: str
    files: tuple[RemoteFile, ...]


def list_remote(repository: str, revision: str) -> Listing:
    """Asks the hub for the files of a repository; raises UserError if it does not answer or refuses."""
    check_revision(revision)
    with explaining(repository, revision):
        try:
            info = HfApi(library_name="firesteel").model_info(
                repository, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{constants.ENDPOINT} does not answer as a hub does: {NOT_A_HUB}") from error
    commit = str(info.sha)
    if not COMMIT.fullmatch(commit):
        raise UserError(f"{constants.ENDPOINT} names {commit!r} as the commit of {repository}: {NOT_A_HUB}")
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    names = choose_files(siblings, repository)
    files = tuple(_read_file(repository, siblings[name]) for name in names)
    return Listing(repository=repository, revision=revision, commit=commit, files=files)


def check_revision(revision: str) -> None:
    if not REVISION.fullmatch(revision):
        raise UserError(f"--revision {revision!r} is not the name of a branch or tag, nor a commit")


def _read_file(repository: str, sibling: Any) -> RemoteFile:
    large = sibling.lfs
    digest, num_bytes = (sibling.blob_id, sibling.size) if large is None else (large.sha256, large.size)
    pattern = GIT_DIGEST if large is None else SHA256_DIGEST
    if not isinstance(digest, str) or not pattern.fullmatch(digest) or type(num_bytes) is not int or num_bytes < 0:
        raise UserError(
            f"{constants.ENDPOINT} states no valid checksum or size of {sibling.rfilename} in {repository}, so it "
            f"could not be verified: {NOT_A_HUB}"
        )
    return RemoteFile(name=sibling.rfilename, num_bytes=num_bytes, digest=digest)
