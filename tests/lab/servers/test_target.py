"""The server under test, seen through its API."""

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.supervisor import ServerFailed, SupervisedServer
from firesteel.lab.servers.target import Target, are_finite, is_refusal


def test_only_numbers_that_are_finite_count():
    assert are_finite([0, -1.5]) and not are_finite([float("nan")]) and not are_finite([None, 1.0])
    assert not are_finite([float("-inf")])


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("http-error", 404, True),
        ("http-error", 501, True),
        ("http-error", 500, False),
        ("garbage", None, True),
        ("silent", None, False),
        ("unreachable", None, False),
    ],
)
def test_what_is_not_offered_is_no_failure(kind, status, expected):
    assert is_refusal(RequestFailed(kind, "words", status)) is expected


def test_failed_request_is_the_failure_of_a_server_that_the_lab_started(fake, tmp_path):
    with SupervisedServer(fake("answers-500"), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x", server=server)
        with pytest.raises(ServerFailed, match="answered 500"), target.step("asking"):
            target.api.chat("x")
    assert server.exit is not None


def test_server_that_the_lab_ended_says_why_and_not_how(fake, tmp_path):
    with SupervisedServer(fake("answers-500"), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x", server=server)
        with pytest.raises(ServerFailed, match="floods"), target.step("asking"):
            server.monitor.complaint = Diagnosis(kind="log-flood", words="it floods its log")
            target.api.chat("x")


def test_failed_request_of_another_server_stays_a_failed_request(fake, tmp_path):
    with SupervisedServer(fake("answers-500"), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x")
        with pytest.raises(RequestFailed), target.step("asking"):
            target.api.chat("x")
        assert server.exit_code is None
        assert target.footprint() is None and target.read_ledger() is None


class Answering:
    """An API whose /ledger gives one answer after the other, the last for good."""

    def __init__(self, *verdicts):
        self.verdicts, self.num_asked = verdicts, 0

    def get(self, path):
        verdict = self.verdicts[min(self.num_asked, len(self.verdicts) - 1)]
        self.num_asked += 1
        if verdict == "gone":
            raise RequestFailed("unreachable", "words")
        return {"ran": [{"op": "draw"}, {"op": "linear", "artefacts": [{"kernel": "k", "verdict": verdict}]}]}


@pytest.mark.parametrize(("verdicts", "asked"), [(["bf16"], 1), ([None, None, "bf16"], 3), (["unread"], 1)])
def test_ledger_is_read_when_its_machine_code_was(verdicts, asked, tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.0)
    api = Answering(*verdicts)
    found = Target(api=api, kind="firesteel", folder=tmp_path, model="x").read_ledger()
    assert found["ran"][1]["artefacts"][0]["verdict"] == verdicts[-1] and api.num_asked == asked


def test_machine_code_that_is_never_read_is_not_waited_for_forever(tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_S", 0.05)
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.01)
    found = Target(api=Answering(None), kind="firesteel", folder=tmp_path, model="x").read_ledger()
    assert found["ran"][1]["artefacts"][0]["verdict"] is None


def test_a_ledger_that_was_heard_is_not_lost_with_its_server(tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.0)
    told = []
    target = Target(
        api=Answering(None, "gone"), kind="firesteel", folder=tmp_path, model="x", on_progress=told.append
    )
    assert target.read_ledger()["ran"][1]["artefacts"][0]["verdict"] is None
    assert told == ["machine code of 1 kernels is being read"]


def test_slow_reading_is_waited_for_while_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.02)
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_S", 0.2)
    codes = [{"kernel": "k", "verdict": None} for _ in range(30)]

    class Slow:
        def get(self, path):
            next(code for code in codes if code["verdict"] is None)["verdict"] = "none"
            return {"ran": [{"op": "linear", "artefacts": codes}]}

    found = Target(api=Slow(), kind="firesteel", folder=tmp_path, model="x").read_ledger()
    assert all(code["verdict"] == "none" for code in found["ran"][0]["artefacts"])
