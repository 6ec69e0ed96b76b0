"""Errors that are reported to the user without a traceback, and the death of the engine process."""

from __future__ import annotations

from pathlib import Path
from typing import Self


class UserError(Exception):
    """An error that the user can fix: the message names the cause and the cure, and no traceback is shown."""


class KernelError(UserError):
    """The requested implementation does not exist, cannot run here, or refuses the arguments."""


class ArgumentsRefused(KernelError):
    """No implementation of an op that may run accepts the arguments."""


class RequestError(UserError):
    """A request that can never run: larger than the context or the cache, or with an id already in use."""


class HostMemoryLow(UserError):
    """The host, which shares its memory with the GPU, has too little free for the request; it may be sent again."""


class EngineDied(Exception):
    """The engine process ended while it was needed. The request is not at fault and may be retried.

    The message says how the process ended and where the crash bundle is, which is also `bundle`.
    """

    def __init__(self, message: str, bundle: Path | None = None) -> None:
        super().__init__(message)
        self.bundle = bundle

    def copy(self) -> Self:
        """Returns an equal error, for another reader: an instance collects the tracebacks of all who raise it."""
        return type(self)(str(self), self.bundle)


class EngineFailed(EngineDied):
    """No engine runs, and this process starts no other: a retry would fail too."""
