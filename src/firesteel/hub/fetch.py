"""Fetches the missing files of a plan: several at a time, resumed where they ended, verified before use."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock

from firesteel.errors import UserError
from firesteel.hub.cache import find_cache, find_folder, find_snapshot
from firesteel.hub.client import adapted_hub, describe_wrong, download
from firesteel.hub.faults import HTTP_ERROR, explain, explaining
from firesteel.hub.partial import Oversized, PartialFile, Stopped
from firesteel.hub.plan import PullItem, PullPlan

WORKERS = 8  # files at a time, as huggingface_hub
POLL_S = 0.1  # between two reports of progress
STOP_S = 1.0  # for the threads to notice the end of the pull
MOST_DOWNLOADS = 2  # of a file whose checksum is wrong
PAUSES_S = (1.0, 4.0, 10.0)  # before a file is asked for again after the server failed
NO_SYMLINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)

Report = Callable[[int, int], None]  # bytes held, in total


def fetch(plan: PullPlan, report: Report) -> Path:
    """Fetches what the cache lacks, and returns the folder of the snapshot.

    `report` is called in this thread. If it raises, or the user interrupts, what was fetched is kept.
    """
    with explaining(plan.listing.repository, plan.listing.revision):
        for folder in (plan.snapshot, plan.items[0].blob.parent, find_locks(plan)):
            folder.mkdir(parents=True, exist_ok=True)
    pull = Pull(plan)
    threads = [threading.Thread(target=pull.work, daemon=True) for _ in range(min(WORKERS, len(plan.items)))]
    with adapted_hub():
        try:
            for thread in threads:
                thread.start()
            while pull.fault is None and any(thread.is_alive() for thread in threads):
                report(pull.held_bytes, plan.total_bytes)
                pull.ended.wait(POLL_S)
        finally:
            pull.stop.set()
            deadline = time.monotonic() + STOP_S
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    if pull.fault is not None:
        raise pull.fault
    report(pull.held_bytes, plan.total_bytes)
    write_ref(plan)
    return plan.snapshot


class Pull:
    """A running pull: the files still to be obtained, and what its threads have done and met."""

    def __init__(self, plan: PullPlan) -> None:
        self.plan = plan
        self.held_bytes = plan.held_bytes
        self.fault: BaseException | None = None
        self.stop = threading.Event()
        self.ended = threading.Event()  # a file failed
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[PullItem] = queue.SimpleQueue()
        for item in plan.items:
            self._waiting.put(item)

    def work(self) -> None:
        """Obtains one file after the other until none is left."""
        try:
            while not self.stop.is_set():
                self._obtain(self._waiting.get_nowait())
        except (queue.Empty, Stopped):
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        listing = self.plan.listing
        is_known = isinstance(error, (HTTP_ERROR, OSError))
        fault = explain(error, listing.repository, listing.revision) if is_known else error
        with self._lock:
            self.fault = self.fault or fault
        self.ended.set()

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self.held_bytes += num_bytes

    def _obtain(self, item: PullItem) -> None:
        if item.is_linked:
            return
        # The lock is huggingface_hub's own: two programs do not write to one file.
        with WeakFileLock(find_locks(self.plan) / f"{item.file.digest}.lock"):
            if item.is_fetched:
                self._count(item.file.num_bytes - item.held_bytes)  # another program fetched it meanwhile
            else:
                self._fetch(item)
            link(item)

    def _fetch(self, item: PullItem) -> None:
        """Downloads a file, and once more if its checksum is wrong; a wrong one is never kept."""
        for _ in range(MOST_DOWNLOADS):
            with PartialFile(item.partial, item.file, self._count, self.stop) as partial:
                is_right = self._download(item, partial)
                size = partial.tell()
            if is_right:
                item.partial.replace(item.blob)
                return
            item.partial.unlink()
            self._count(-min(size, item.file.num_bytes))
        raise UserError(describe_wrong(item.file))

    def _download(self, item: PullItem, partial: PartialFile) -> bool:
        """Appends what is missing; returns false if the content is wrong.

        A lost connection is resumed as long as each attempt gained something; a failing server is asked again.
        """
        pauses = iter(PAUSES_S)
        while True:
            before = partial.tell()
            if before > item.file.num_bytes:
                return False
            try:
                download(self.plan.listing, item.file, partial, held_bytes=before)
                return partial.is_right()
            except Oversized:
                return False
            except HfHubHTTPError as error:
                pause = next(pauses, None) if error.response.status_code >= 500 else None
                if pause is None or self.stop.wait(pause):
                    raise
            except (HTTP_ERROR, OSError) as error:
                is_disk = isinstance(error, OSError) and error.filename is not None
                if is_disk or partial.tell() <= before:
                    raise


def find_locks(plan: PullPlan) -> Path:
    """Returns the folder where huggingface_hub keeps the locks of a repository."""
    return find_cache() / ".locks" / find_folder(plan.listing.repository).name


def link(item: PullItem) -> None:
    """Makes the snapshot's file: a link to the blob, or the blob itself on a disk without symbolic links."""
    item.link.unlink(missing_ok=True)
    try:
        item.link.symlink_to(os.path.relpath(item.blob, item.link.parent))
    except OSError as error:
        if error.errno not in NO_SYMLINKS:
            raise
        item.blob.replace(item.link)


def write_ref(plan: PullPlan) -> None:
    """Records the commit of a branch or tag, last: until then the name means what was complete before."""
    if plan.ref is None or find_snapshot(plan.listing.repository, plan.listing.revision) == plan.snapshot:
        return
    with explaining(plan.listing.repository, plan.listing.revision):
        plan.ref.parent.mkdir(parents=True, exist_ok=True)
        unfinished = plan.ref.with_name(f"{plan.ref.name}.{os.getpid()}.tmp")
        unfinished.write_text(plan.listing.commit, encoding="ascii")
        unfinished.replace(plan.ref)
