import os

import pytest
import torch

from firesteel.model.reader import LONG_RUN_BYTES, PIECE_BYTES, Stretch, read_all
from firesteel.model.shards import CheckpointError, StoredTensor


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


@pytest.mark.parametrize(
    ("run", "pitch", "count"),
    [(10, 37, 1000), (1000, 70_001, 500), (LONG_RUN_BYTES, LONG_RUN_BYTES + 5, 3), (10, PIECE_BYTES + 9, 2)],
    ids=["short", "several pieces", "long", "farther apart than a piece"],
)
def test_runs_of_bytes_land_back_to_back(tmp_path, run, pitch, count):
    data = os.urandom(7 + pitch * (count - 1) + run)  # the file ends with the last run
    (tmp_path / "file").write_bytes(data)
    target = torch.zeros(run * count, dtype=torch.uint8)
    report = read_all([Stretch(tmp_path / "file", 7, target, count, pitch)], workers=3)
    begins = range(7, len(data), pitch)
    assert bytes(target.numpy()) == b"".join(data[begin : begin + run] for begin in begins)
    assert report.num_bytes == run * count


@pytest.mark.parametrize(
    "cuts", [[(0, 1, 2)], [(1, 2, 3)], [(2, 1, 4)], [(2, 1, 4), (0, 1, 2)], [(1, 2, 3), (0, 2, 1)]], ids=str
)
def test_part_of_a_stored_tensor_is_what_torch_narrows(tmp_path, cuts):
    whole = torch.randint(-99, 99, (3, 6, 5), dtype=torch.int32)
    (tmp_path / "file").write_bytes(b"x" * 9 + whole.numpy().tobytes())
    stored = StoredTensor(tmp_path / "file", 9, whole.nbytes, whole.dtype, tuple(whole.shape))
    expected = whole
    for cut in cuts:
        stored, expected = stored.narrow(*cut), expected.narrow(*cut)
    target = torch.empty(stored.shape, dtype=torch.int32)
    assert stored.num_bytes == target.nbytes
    read_all([Stretch(stored.file, stored.offset, target, stored.num_runs, stored.pitch_bytes)], workers=1)
    assert torch.equal(target, expected)


def test_part_beyond_the_tensor_is_an_error(tmp_path):
    stored = StoredTensor(tmp_path / "file", 0, 24, torch.int32, (2, 3))
    for cut in ((1, 2, 2), (0, -1, 1), (0, 0, 3)):
        with pytest.raises(ValueError, match="cannot take"):
            stored.narrow(*cut)
    with pytest.raises(ValueError, match="cannot take 1 indices from 0 on of axis 1"):
        stored.narrow(1, 0, 2).narrow(1, 0, 1)


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
