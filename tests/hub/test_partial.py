"""An unfinished file: hashed and counted as it grows."""

import errno
import hashlib
import threading

import pytest

from firesteel.hub.listing import RemoteFile
from firesteel.hub.partial import Oversized, PartialFile, Stopped

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def begin(tmp_path):
    """begin() opens the file anew, as the next pull does; `begin.counted` has the bytes gained and lost."""

    def open_it(digest=DIGEST):
        file = RemoteFile(name="f", num_bytes=len(CONTENT), digest=digest)
        return PartialFile(open_it.path, file, open_it.counted.append, open_it.stop)

    open_it.path, open_it.counted, open_it.stop = tmp_path / "f.incomplete", [], threading.Event()
    return open_it


def test_content_in_two_sessions_has_the_digest_of_the_whole(begin):
    with begin() as partial:
        partial.write(CONTENT[:5000])
        assert not partial.is_right()
    with begin() as partial:
        assert partial.tell() == 5000
        partial.write(CONTENT[5000:])
        assert partial.is_right()
    assert begin.path.read_bytes() == CONTENT and sum(begin.counted) == len(CONTENT)


def test_small_file_has_the_object_id_of_git(begin):
    digest = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    with begin(digest) as partial:
        partial.write(CONTENT)
        assert partial.is_right()


def test_wrong_byte_in_what_was_there_before_is_noticed(begin):
    begin.path.write_bytes(b"x" + CONTENT[1:5000])
    with begin() as partial:
        partial.write(CONTENT[5000:])
        assert not partial.is_right()


def test_begin_anew_forgets_what_was_there(begin):
    """huggingface_hub does this if a server ignores the range that it was asked for."""
    begin.path.write_bytes(b"wrong")
    with begin() as partial:
        partial.seek(0)
        partial.truncate()
        assert partial.tell() == 0 and begin.counted == [-5]
        partial.write(CONTENT)
        assert partial.is_right()


def test_more_than_the_stated_size_is_not_written(begin):
    with begin() as partial:
        partial.write(CONTENT)
        with pytest.raises(Oversized):
            partial.write(b"x")
    assert begin.path.stat().st_size == len(CONTENT)


def test_nothing_is_written_once_the_pull_has_ended(begin):
    with begin() as partial:
        begin.stop.set()
        with pytest.raises(Stopped):
            partial.write(CONTENT)
    assert begin.path.stat().st_size == 0


def test_error_of_the_disk_names_the_file(begin, monkeypatch):
    with begin() as partial, monkeypatch.context() as patch:
        patch.setattr(partial, "_stream", FullDisk())
        with pytest.raises(OSError, match=str(begin.path)) as caught:
            partial.write(CONTENT)
    assert caught.value.errno == errno.ENOSPC


class FullDisk:
    def tell(self):
        return 0

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")
