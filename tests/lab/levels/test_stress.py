"""Level 3: which requests are sent, and how failures are reported."""

from pathlib import Path

import pytest

from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import STRESS
from firesteel.lab.level_result import Checks
from firesteel.lab.levels.stress import check_concurrent, make_request
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec


class CountingApi:
    """An API that answers everything, or fails every n-th request."""

    def __init__(self, fails_every=None, kind="http-error", status=500):
        self.fails_every, self.kind, self.status = fails_every, kind, status
        self.requests = []

    def _answer(self, *what):
        self.requests.append(what)
        if self.fails_every and len(self.requests) % self.fails_every == 0:
            raise RequestFailed(self.kind, "no", self.status)
        return {"choices": [{}]}

    def question(self, text, **fields):
        return {"messages": text, **fields}

    def chat(self, text, **fields):
        return self._answer("chat", 0)

    def complete(self, prompt, **fields):
        return self._answer("complete", len(prompt))

    def stream(self, path, body, leave_after=None):
        return self._answer("stream" if leave_after is None else "leave", 0)


def target_of(api):
    return Target(api=api, kind="other", folder=Path(), model="x", max_context=16384)


def test_requests_are_mixed_and_some_clients_disconnect():
    api = CountingApi()
    checks = Checks(STRESS)
    check_concurrent(target_of(api), LabSpec(), checks)
    kinds = [kind for kind, _ in api.requests]
    assert len(kinds) == 200 and kinds.count("leave") == 20 and {"chat", "complete", "stream"} < set(kinds)
    assert max(length for _, length in api.requests) > 8192
    assert checks.rows[0].passed and checks.facts["left_early"] == 20 and checks.facts["status_5xx"] == 0


def test_one_failure_of_200_fails_the_level_with_its_reason():
    checks = Checks(STRESS)
    check_concurrent(target_of(CountingApi(fails_every=150)), LabSpec(), checks)
    assert not checks.rows[0].passed and checks.facts["status_5xx"] == 1
    assert "1 failed: no" in checks.rows[0].words


def test_server_that_is_gone_gets_no_more_requests():
    api = CountingApi(fails_every=20, kind="unreachable", status=None)
    with pytest.raises(RequestFailed):
        check_concurrent(target_of(api), LabSpec(), Checks(STRESS))
    assert len(api.requests) < 60


def test_requests_are_the_same_in_every_run_with_a_seed():
    sent = []
    for _ in range(2):
        api = CountingApi()
        for number in range(60):
            make_request(target_of(api), LabSpec(quick=True), number).send()
        sent.append(api.requests)
    assert sent[0] == sent[1] and max(length for _, length in sent[0]) <= 2048
