"""The folder that a verb writes its results to, found unfit before hours are spent; knows no verb."""

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
    """Makes it; raises unless files can be written into it, and in words where it is full by the end."""
    check_folder(folder)
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"--out {folder}: {error.strerror}, so the result is not written: make room, or name another folder"
        ) from error
