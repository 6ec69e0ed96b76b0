"""Atomic writes: a file is replaced by a complete one, or stays."""

import errno
import json

import pytest

from firesteel.atomic import write_atomically


def test_old_file_stays_if_there_is_no_room(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, {"passed": True})

    def fill(self, text, **given):
        self.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", fill)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, {"passed": False})
    assert json.loads(path.read_text()) == {"passed": True} and list(tmp_path.iterdir()) == [path]


def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    target, link = tmp_path / "kept" / "result.json", tmp_path / "link.json"
    target.parent.mkdir()
    link.symlink_to(target)
    write_atomically(link, {"passed": True})
    assert link.is_symlink() and json.loads(target.read_text()) == {"passed": True}


def test_reader_sees_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, {"passed": True})
    with path.open() as reader:
        write_atomically(path, {"passed": False})
        assert json.load(reader) == {"passed": True}
    assert json.loads(path.read_text()) == {"passed": False}
