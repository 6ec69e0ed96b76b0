"""Every verb refuses an output folder that it cannot write to."""

import errno

import pytest

from firesteel.cli.folder import writing_to
from firesteel.errors import UserError


@pytest.mark.parametrize(
    "words",
    [
        ("lab", "run", "--level", "1"),
        ("lab", "matrix", "--gates", "kv_dtype=auto,fp8"),
        ("lab", "review", "kv_dtype=auto,fp8"),
        ("lab", "report", "RESULT"),
        ("profile", "--device", "cpu", "--no-front"),
    ],
)
def test_file_in_place_of_the_folder_is_refused_before_anything_runs(run, tmp_path, words):
    out, file = tmp_path / "file", tmp_path / "result.json"
    out.write_text("")
    file.write_text('{"levels": []}')
    words = [str(file) if word == "RESULT" else word for word in words]
    result = run(*words, "--out", str(out))
    assert isinstance(result.exception, UserError) and f"--out {out}: cannot write there" in str(result.exception)


def test_error_for_a_full_disk_names_the_folder(tmp_path):
    with pytest.raises(UserError, match="free some space"), writing_to(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="else"), writing_to(tmp_path):
        raise OSError(errno.EIO, "something else")
