"""Level 3: who asks what, and what becomes of it."""

from pathlib import Path

import pytest

from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import Checks
from firesteel.lab.levels.stress import crowd, make_client
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order


class Counting:
    """An API that answers everything, or fails every n-th request."""

    def __init__(self, fails_each=None, kind="http-error", status=500):
        self.fails_each, self.kind, self.status = fails_each, kind, status
        self.asked = []

    def _answer(self, *what):
        self.asked.append(what)
        if self.fails_each and len(self.asked) % self.fails_each == 0:
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


def test_crowd_mixes_clients_prompts_and_departures():
    api = Counting()
    checks = Checks()
    crowd(target_of(api), Order(), checks)
    kinds = [kind for kind, _ in api.asked]
    assert len(kinds) == 200 and kinds.count("leave") == 20 and {"chat", "complete", "stream"} < set(kinds)
    assert max(length for _, length in api.asked) > 8192
    assert checks.rows[0]["passed"] and checks.figures["left_early"] == 20 and checks.figures["status_5xx"] == 0


def test_one_failure_of_200_fails_the_level_with_its_words():
    checks = Checks()
    crowd(target_of(Counting(fails_each=150)), Order(), checks)
    assert not checks.rows[0]["passed"] and checks.figures["status_5xx"] == 1
    assert "1 failed: no" in checks.rows[0]["words"]


def test_server_that_is_gone_ends_the_crowd_at_once():
    api = Counting(fails_each=20, kind="unreachable", status=None)
    with pytest.raises(RequestFailed):
        crowd(target_of(api), Order(), Checks())
    assert len(api.asked) < 60


def test_clients_are_the_same_in_every_run_with_a_seed():
    asked = []
    for _ in range(2):
        api = Counting()
        for number in range(60):
            make_client(target_of(api), Order(quick=True), number).ask()
        asked.append(api.asked)
    assert asked[0] == asked[1] and max(length for _, length in asked[0]) <= 2048
