"""What a file is evidence of follows from its content; of a folder, only files that can be evidence are read."""

import gzip
import json
import sqlite3

import pytest

from firesteel.errors import UserError
from firesteel.lab.judge.evidence_file import Kind, find_evidence

TRACE = json.dumps({"schemaVersion": 1, "traceEvents": []})


@pytest.fixture
def folder(tmp_path):
    """A folder as servers leave it, with much that is no evidence."""
    files = {
        "server.log": "INFO hello\n",
        "lines.log": '{"level": "info"}\n{"level": "error"}\n',
        "trace.json": TRACE,
        "result.json": '{"levels": []}',
        "ledger.json": '{"device": "CPU", "ran": []}',
        "notes.txt": "address already in use",
        "crashes/crash-1/report.json": '{"cause": "SIGKILL"}',
        "crashes/crash-1/log.txt": "bye\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "trace2.json.gz").write_bytes(gzip.compress(TRACE.encode()))
    sqlite3.connect(tmp_path / "nsys.sqlite").execute("CREATE TABLE a (b)").connection.close()
    (tmp_path / "lib.so.1").write_bytes(b"\x7fELF" + bytes(60))
    (tmp_path / "link.so").symlink_to("lib.so.1")
    (tmp_path / "fake.so").write_text("INPUT(libx.a)")
    return tmp_path


def test_folder_is_searched_for_evidence(folder):
    found = {file.path.relative_to(folder).as_posix(): file.kind for file in find_evidence(folder)}
    assert found == {
        "server.log": Kind.LOG,
        "lines.log": Kind.LOG,
        "trace.json": Kind.TRACE,
        "trace2.json.gz": Kind.TRACE,
        "nsys.sqlite": Kind.TRACE,
        "ledger.json": Kind.LEDGER,
        "lib.so.1": Kind.LIBRARY,
        "crashes/crash-1": Kind.BUNDLE,
    }
    assert not any(file.is_named for file in find_evidence(folder))


def test_named_bundle_is_one_as_a_folder_and_as_its_report(folder):
    bundle = folder / "crashes" / "crash-1"
    for path in (bundle, bundle / "report.json"):
        [file] = find_evidence(path)
        assert (file.path, file.kind, file.is_named) == (bundle, Kind.BUNDLE, True)


def test_text_of_any_name_is_a_log(folder):
    assert next(find_evidence(folder / "notes.txt")).kind is Kind.LOG


@pytest.mark.parametrize("name", ["result.json", "gone", "zeros"])
def test_what_is_no_evidence_is_refused_by_name(folder, name):
    (folder / "zeros").write_bytes(bytes(100))
    with pytest.raises(UserError, match=name):
        list(find_evidence(folder / name))
