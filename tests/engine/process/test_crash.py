"""Crash bundles: their content, and secrets that they must not hold."""

import json

import pytest

from firesteel.engine.process import crash
from firesteel.engine.process.crash import LOG, REPORT, CrashReport, write_bundle

REPORTED = CrashReport(
    cause="SIGKILL",
    log_tail=["first", "last"],
    config={"batch": {"page_size": 16}},
    ledger=[{"op": "linear", "implementation": "reference", "calls": 3}],
    last_plan=[{"request": "a", "first_token": 4, "num_tokens": 2}],
    in_flight=["a", "b"],
    surroundings={"device": "CPU", "command": ("firesteel", "serve")},
)


def test_bundle_holds_all_it_was_given(tmp_path):
    bundle = write_bundle(tmp_path / "new" / "folder", REPORTED)
    assert bundle.parent == tmp_path / "new" / "folder" and bundle.name.startswith("crash-")
    assert (bundle / LOG).read_text() == "first\nlast\n"
    written = json.loads((bundle / REPORT).read_text())
    assert written.pop("time_utc").endswith("Z")
    assert written == {
        "cause": "SIGKILL",
        "command": [],
        "engine": {},
        "config": {"batch": {"page_size": 16}},
        "ledger": [{"op": "linear", "implementation": "reference", "calls": 3}],
        "last_plan": [{"request": "a", "first_token": 4, "num_tokens": 2}],
        "in_flight": ["a", "b"],
        "surroundings": {"device": "CPU", "command": ["firesteel", "serve"]},
    }


def test_secrets_are_masked_by_name_and_wherever_their_value_occurs(tmp_path):
    report = CrashReport(
        cause="ValueError: bad key s3cret+",
        log_tail=["key is s3cret+!", "keys are one two", "nothing here"],
        config={"server": {"api_key": "s3cret+", "api_keys": ["one", "two"], "password": "", "port": 80}},
        ledger=[{"op": "s3cret+", "client_secret": "deep"}],
    )
    bundle = write_bundle(tmp_path, report)
    report_text, log = (bundle / REPORT).read_text(), (bundle / LOG).read_text()
    for secret in ("s3cret", "one", "two", "deep"):
        assert secret not in report_text + log, secret
    assert log == "key is (hidden)!\nkeys are (hidden) (hidden)\nnothing here\n"
    written = json.loads(report_text)
    assert (
        written["cause"] == "ValueError: bad key (hidden)" and written["ledger"][0]["client_secret"] == "(hidden)"
    )
    assert written["config"]["server"] == {
        "api_key": "(hidden)",
        "api_keys": "(hidden)",
        "password": "",
        "port": 80,
    }


def test_bundles_of_the_same_second_have_different_names(tmp_path):
    bundles = [write_bundle(tmp_path, REPORTED) for _ in range(4)]
    assert len(set(bundles)) == 4 and sorted(tmp_path.iterdir()) == sorted(bundles)


def test_values_without_a_json_type_are_written_as_text(tmp_path):
    bundle = write_bundle(tmp_path, CrashReport(cause="x", surroundings={"folder": tmp_path}))
    assert json.loads((bundle / REPORT).read_text())["surroundings"] == {"folder": str(tmp_path)}


def test_bundle_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(crash.os, "rename", fail)
    with pytest.raises(OSError, match="disk full"):
        write_bundle(tmp_path, REPORTED)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        write_bundle(tmp_path / "file", REPORTED)


def test_secrets_of_addresses_and_headers_are_masked_everywhere(tmp_path):
    report = CrashReport(
        cause="cannot connect to http://user:hunter2@h",
        log_tail=["password hunter2", "GET /?api_key=sk-12345", "Authorization: Bearer abcdef"],
        command=["lab", "--url", "http://user:hunter2@h", "-H", "Authorization: Bearer tok-99"],
        surroundings={"note": "it was tok-99", "environment": {"HTTPS_PROXY": "http://me:proxypw@p:1"}},
    )
    bundle = write_bundle(tmp_path, report)
    text = (bundle / REPORT).read_text() + (bundle / LOG).read_text()
    for secret in ("hunter2", "sk-12345", "abcdef", "tok-99", "proxypw"):
        assert secret not in text, secret
    assert "password (hidden)" in text and "http://(hidden)@h" in text


def test_only_the_owner_may_enter_a_bundle(tmp_path):
    assert write_bundle(tmp_path, REPORTED).stat().st_mode & 0o777 == 0o700
