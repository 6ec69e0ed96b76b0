"""Panics of libraries written in Rust, which reach Python as a BaseException that `except Exception` misses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def is_panic(error: BaseException) -> bool:
    """Returns whether a Rust library panicked; each library has its own class of this name."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as(kind: type[Exception], what: str) -> Iterator[None]:
    """Replaces a panic in the body by `kind`, with the message `what` followed by the library's own."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise kind(f"{what}: {str(error)[:200]}") from error
