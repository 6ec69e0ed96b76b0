"""Turns what goes wrong with the hub, the network or the disk into one line with cause and cure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from firesteel.errors import UserError
from firesteel.hub.cache import MAIN, find_cache
from firesteel.hub.names import suggest

FULL = (errno.ENOSPC, errno.EDQUOT)
# The base of all errors of the HTTP library that huggingface_hub uses, which differs by its version.
HTTP_ERROR: type[BaseException] = HfHubHTTPError.__mro__[1]


class Unreachable(UserError):
    """The hub cannot be asked at present; what is in the cache may be complete all the same."""


@contextmanager
def explaining(repository: str, revision: str) -> Iterator[None]:
    """Raises UserError for every error of the hub, the network and the disk in its body."""
    try:
        yield
    except (HTTP_ERROR, OSError) as error:
        raise explain(error, repository, revision) from error


def explain(error: BaseException, repository: str, revision: str) -> UserError:
    if isinstance(error, OfflineModeIsEnabled):
        return Unreachable("HF_HUB_OFFLINE is set, which forbids downloads: unset it, or set it to 0")
    if isinstance(error, HfHubHTTPError):
        return _explain_answer(error, repository, revision)
    if isinstance(error, OSError) and error.errno in FULL:
        return UserError(
            f"the disk of {find_cache()} is full: free some space or set HF_HOME to a folder on a larger disk, "
            "then run this again; what was fetched is kept"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return UserError(
            f"cannot write {error.filename}: {error.strerror}: make {find_cache()} writable, or set HF_HOME to "
            "another folder"
        )
    words = " ".join(str(error).split()) or type(error).__name__
    return Unreachable(
        f"cannot reach {constants.ENDPOINT} ({words}): check the network and the proxy (HTTPS_PROXY), or set "
        "HF_ENDPOINT to a mirror; what was fetched is kept"
    )


def _explain_answer(error: HfHubHTTPError, repository: str, revision: str) -> UserError:
    status, page = error.response.status_code, f"{constants.ENDPOINT}/{repository}"
    if isinstance(error, GatedRepoError):
        return UserError(
            f"{repository} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account"
        )
    if isinstance(error, RevisionNotFoundError):
        return UserError(
            f"{repository} has no revision {revision}: see {page}/tree/{MAIN} for its branches and tags, or leave "
            "--revision out"
        )
    has_token = "authorization" in error.response.request.headers
    if isinstance(error, RepositoryNotFoundError) or (status == 401 and not has_token):
        near = suggest(repository)
        return UserError(
            f"{constants.ENDPOINT} has no repository {repository}, or it is private (HTTP {status}): "
            + (f"did you mean {near}? If not, " if near else "")
            + "check the name, or set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, EntryNotFoundError):
        return UserError(
            f"{page} lists a file that it does not have ({error.response.url}): try again later, or another mirror"
        )
    if status == 401:
        return UserError(
            f"{constants.ENDPOINT} refused the token (HTTP 401): set HF_TOKEN to a valid one, or unset it; "
            "public models need none"
        )
    if status == 403:
        return UserError(
            f"{constants.ENDPOINT} refuses access to {repository} (HTTP 403): set HF_TOKEN to a token that may "
            "read it"
        )
    if status == 429:
        return Unreachable(f"{constants.ENDPOINT} limits the rate of requests (HTTP 429): wait, or set HF_TOKEN")
    return Unreachable(
        f"{constants.ENDPOINT} failed (HTTP {status}): try again later, or set HF_ENDPOINT to a mirror; what was "
        "fetched is kept"
    )
