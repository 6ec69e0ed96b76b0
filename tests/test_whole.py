"""A file is replaced by a whole one, or stays."""

import errno
import json

import pytest

from firesteel.whole import write_whole


def test_what_stood_there_stays_where_there_is_no_room(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_whole(path, {"passed": True})

    def fill(self, text, **given):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", fill)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, {"passed": False})
    assert json.loads(path.read_text()) == {"passed": True} and list(tmp_path.iterdir()) == [path]
