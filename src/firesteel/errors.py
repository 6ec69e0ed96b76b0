"""Errors with a message for the user: what can be mended, and the engine's death; knows nothing of what raised."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Something the user can change: the message names the cause and the cure, no traceback is shown."""


class KernelError(UserError):
    """An implementation was asked for that does not exist, cannot run here or refuses these arguments."""


class ArgumentsRefused(KernelError):
    """No implementation of an op that may run takes these arguments."""


class RequestError(UserError):
    """A request that can never run here: larger than the context or than the cache, or a name already taken."""


class EngineDied(Exception):
    """The engine's process ended while it was needed: no fault of the request, which may be sent again.

    The message says how it ended and where the crash bundle lies, which is also `bundle`.
    """

    def __init__(self, message: str, bundle: Path | None = None) -> None:
        super().__init__(message)
        self.bundle = bundle
