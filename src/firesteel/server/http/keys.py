"""API keys: which of them a client sent. Clients with different keys are different owners of what they store."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import Scope

from firesteel.server.http.errors import ApiError


class KeyCheck:
    """Checks that a client sent one of the API keys, in a time that depends on neither the keys nor the match."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def is_needed(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None, x_api_key: str | None = None) -> str:
        """Returns the owner: the place of the key in the list, which reveals nothing of it; empty without keys.

        Either header may hold the key: clients of OpenAI's API send the first, those of Anthropic's the second.
        """
        if not self.is_needed:
            return ""
        scheme, _, bearer = (authorization or "").partition(" ")
        sent = [_digest(bearer.strip() if scheme.lower() == "bearer" else ""), _digest((x_api_key or "").strip())]
        matches = [max(hmac.compare_digest(key, digest) for key in sent) for digest in self._digests]
        if not any(matches):
            what = "a wrong API key" if authorization or x_api_key else "no API key"
            raise ApiError(
                401,
                f"{what} was sent: this server needs `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
            )
        return str(matches.index(True) + 1)


def note_owner(scope: Scope, owner: str) -> None:
    scope["state"]["owner"] = owner


def owner_of(scope: Scope) -> str:
    """Returns who sent the request, for endpoints that need a key if there are keys."""
    owner: str = scope["state"]["owner"]
    return owner


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
