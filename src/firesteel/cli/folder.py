"""The folder that a verb writes its results to, checked before a long run starts."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firesteel.cli.bench.options import check_folder
from firesteel.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Creates the folder; raises UserError if it is not writable, or if its disk is full at the end."""
    check_folder(folder)
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"--out {folder}: {error.strerror}, so the result is not written: free some space or use another folder"
        ) from error
