"""The server under test: failed requests and its ledger."""

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.supervisor import ServerFailed, SupervisedServer
from firesteel.lab.servers.target import Target, are_finite, is_refusal


def test_nan_inf_and_none_are_not_finite():
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
def test_missing_feature_is_not_a_failure(kind, status, expected):
    assert is_refusal(RequestFailed(kind, "words", status)) is expected


def test_failed_request_fails_a_server_that_the_lab_started(fake, tmp_path):
    with SupervisedServer(fake("answers-500"), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x", server=server)
        with pytest.raises(ServerFailed, match="answered 500"), target.step("asking"):
            target.api.chat("x")
    assert server.exit is not None


def test_server_killed_by_the_monitor_has_its_complaint(fake, tmp_path):
    with SupervisedServer(fake("answers-500"), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x", server=server)
        with pytest.raises(ServerFailed, match="floods"), target.step("asking"):
            server.monitor.complaint = Diagnosis(kind="log-flood", words="it floods its log")
            target.api.chat("x")


def test_failed_request_to_another_server_stays_a_failed_request(fake, tmp_path):
    with SupervisedServer(fake("answers-500"), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="x")
        with pytest.raises(RequestFailed), target.step("asking"):
            target.api.chat("x")
        assert server.exit_code is None
        assert target.footprint() is None and target.read_ledger() is None


class LedgerApi:
    """An API whose /ledger gives these verdicts in turn, and then the last one again."""

    def __init__(self, *verdicts):
        self.verdicts, self.num_asked = verdicts, 0

    def get(self, path):
        verdict = self.verdicts[min(self.num_asked, len(self.verdicts) - 1)]
        self.num_asked += 1
        if verdict == "gone":
            raise RequestFailed("unreachable", "words")
        return {"ran": [{"op": "draw"}, {"op": "linear", "artefacts": [{"kernel": "k", "verdict": verdict}]}]}


@pytest.mark.parametrize(("verdicts", "asked"), [(["bf16"], 1), ([None, None, "bf16"], 3), (["unread"], 1)])
def test_ledger_is_returned_once_its_machine_code_was_read(verdicts, asked, tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.0)
    api = LedgerApi(*verdicts)
    ledger = Target(api=api, kind="firesteel", folder=tmp_path, model="x").read_ledger()
    assert ledger.ran[1].artefacts[0].verdict == verdicts[-1] and api.num_asked == asked


def test_wait_for_machine_code_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_S", 0.05)
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.01)
    ledger = Target(api=LedgerApi(None), kind="firesteel", folder=tmp_path, model="x").read_ledger()
    assert ledger.ran[1].artefacts[0].verdict is None


def test_received_ledger_survives_the_loss_of_its_server(tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.0)
    progress = []
    target = Target(
        api=LedgerApi(None, "gone"), kind="firesteel", folder=tmp_path, model="x", on_progress=progress.append
    )
    assert target.read_ledger().ran[1].artefacts[0].verdict is None
    assert progress == ["the machine code of 1 kernels is being read"]


def test_wait_continues_while_machine_code_is_being_read(tmp_path, monkeypatch):
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_POLL_S", 0.02)
    monkeypatch.setattr("firesteel.lab.servers.target.PROOFS_S", 0.2)
    codes = [{"kernel": "k", "verdict": None} for _ in range(30)]

    class Slow:
        def get(self, path):
            next(code for code in codes if code["verdict"] is None)["verdict"] = "none"
            return {"ran": [{"op": "linear", "artefacts": codes}]}

    ledger = Target(api=Slow(), kind="firesteel", folder=tmp_path, model="x").read_ledger()
    assert all(code.verdict == "none" for code in ledger.ran[0].artefacts)
