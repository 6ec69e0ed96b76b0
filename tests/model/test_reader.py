import os

import pytest
import torch

from firesteel.model.reader import Stretch, read_all
from firesteel.model.shards import CheckpointError


def test_stretches_land_where_they_belong_and_nowhere_else(tmp_path):
    data = os.urandom(50_000_000)
    (tmp_path / "file").write_bytes(data)
    target = torch.zeros(45_000_007, dtype=torch.uint8)
    report = read_all(
        [Stretch(tmp_path / "file", 11, target[:40_000_000]), Stretch(tmp_path / "file", 7, target[45_000_000:])],
        workers=4,
    )
    assert bytes(target[:40_000_000].numpy()) == data[11:40_000_011]
    assert bytes(target[45_000_000:].numpy()) == data[7:14]
    assert not target[40_000_000:45_000_000].any()
    assert report.num_bytes == 40_000_007


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="ended at byte 100"):
        read_all([Stretch(tmp_path / "file", 50, torch.zeros(80, dtype=torch.uint8))], workers=2)


def test_reading_drops_the_page_cache_behind_it(tmp_path, monkeypatch):
    dropped = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, offset, size, advice: dropped.append((offset, size, advice))
    )
    (tmp_path / "file").write_bytes(b"x" * 100)
    read_all([Stretch(tmp_path / "file", 20, torch.zeros(80, dtype=torch.uint8))], workers=1)
    assert dropped == [(20, 80, os.POSIX_FADV_DONTNEED)]
