"""Scale files: written scales are read back, and bad files are refused with cause and cure."""

import errno
import json
import os
from pathlib import Path

import pytest

from firesteel.config import CacheConfig
from firesteel.engine.cache.kv_scales import FORMAT, ScaleError, find_scales, new_file, read_scales, write_scales
from firesteel.types import KvScales

SCALES = KvScales(keys=(0.125, 1.0, 3.5), values=(2.0, 0.01, 1e-6))
LAYER = {"key": 0.5, "value": 2}


def store(folder, **changes):
    path = folder / "scales.json"
    path.write_text(json.dumps({"format": FORMAT, "num_layers": 2, "layers": [LAYER, LAYER], **changes}))
    return path


def test_written_scales_are_read_back(tmp_path):
    path = tmp_path / "scales.json"
    write_scales(path, SCALES)
    assert read_scales(path, 3) == SCALES


def test_whole_numbers_become_floats(tmp_path):
    scales = read_scales(store(tmp_path), 2)
    assert scales == KvScales(keys=(0.5, 0.5), values=(2.0, 2.0)) and type(scales.values[0]) is float


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "other"}, "is not a scale file"),
        ({"format": None}, "is not a scale file"),
        ({"num_layers": 3}, "num_layers and the number of layers differ"),
        ({"layers": [LAYER]}, "num_layers and the number of layers differ"),
        ({"layers": None}, "num_layers and the number of layers differ"),
        ({"layers": {"a": 1, "b": 2}}, "num_layers and the number of layers differ"),
        ({"num_layers": 1, "layers": [LAYER]}, "is for a model of 1 layers, this model has 2"),
        *(
            ({"layers": [LAYER, {**LAYER, name: bad}]}, f"layer 1: its {name} scale is {bad!r}, not a positive")
            for name in ("key", "value")
            for bad in (0, -1.0, 1e-40, 1e39, True, "1", None)
        ),
        ({"layers": [7, LAYER]}, "layer 0: its key scale is None"),
    ],
)
def test_invalid_files_are_refused(tmp_path, changes, complaint):
    with pytest.raises(ScaleError, match="firesteel calibrate") as raised:
        read_scales(store(tmp_path, **changes), 2)
    assert complaint in str(raised.value) and "scales.json" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[]", "holds list, not an object"),
        (b"{}", "is not a scale file"),
    ],
)
def test_foreign_files_are_refused(tmp_path, content, complaint):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ScaleError, match=complaint):
        read_scales(path, 2)


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    path = tmp_path / "scales.json"
    write_scales(path, SCALES)
    text = path.read_text().rstrip()
    for end in range(len(text)):
        path.write_text(text[:end])
        with pytest.raises(ScaleError, match=r"is not valid JSON: .*; make one"):
            read_scales(path, 3)


def test_a_missing_file_is_an_error_that_says_so(tmp_path):
    with pytest.raises(ScaleError, match=r"cannot read .*none: No such file or directory; make one"):
        read_scales(tmp_path / "none", 2)


def test_scales_are_wanted_for_fp8_only(tmp_path):
    path = str(store(tmp_path))
    assert find_scales(CacheConfig(kv_dtype="fp8"), 2) is None
    assert find_scales(CacheConfig(kv_dtype="bf16"), 2) is None
    assert find_scales(CacheConfig(kv_dtype="fp8", kv_scales=path), 2).keys == (0.5, 0.5)
    for dtype in ("auto", "bf16"):
        with pytest.raises(
            ScaleError, match=f"is for fp8 keys and values, not kv_dtype = {dtype}: add --kv-dtype fp8"
        ):
            find_scales(CacheConfig(kv_dtype=dtype, kv_scales=path), 2)


def test_nothing_is_overwritten_and_no_folder_made(tmp_path):
    path = store(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ScaleError, match="exists already"):
        write_scales(path, SCALES)
    assert path.read_bytes() == before
    with pytest.raises(ScaleError, match="is not a folder"):
        write_scales(tmp_path / "none" / "scales.json", SCALES)


def test_new_file_exists_at_once_and_is_removed_after_a_failure(tmp_path):
    path = tmp_path / "scales.json"
    with pytest.raises(KeyboardInterrupt), new_file(path):
        assert path.exists()
        raise KeyboardInterrupt
    assert not path.exists()


def test_unwritable_folder_is_an_error_that_says_so():
    with pytest.raises(ScaleError, match=r"cannot write the scales /proc/zz\.json: .+; name a file in a folder"):
        write_scales(Path("/proc/zz.json"), SCALES)


def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    def fill(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(ScaleError, match=r"cannot write the scales .*: No space left on device; name a file"):
        write_scales(tmp_path / "scales.json", SCALES)
    assert not list(tmp_path.iterdir())
