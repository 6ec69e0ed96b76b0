"""The verb spark-report: an error before anything runs if its file cannot be written."""

import pytest

from firesteel import UserError


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/gone/report.zip", "there is no folder /gone"),
        ("/proc/x.zip", "cannot write /proc/x.zip: "),
        ("/tmp", "cannot write /tmp: Is a directory"),
    ],
)
def test_unwritable_file_is_an_error(run, out, message):
    result = run("spark-report", "--out", out)
    assert isinstance(result.exception, UserError) and message in str(result.exception)
