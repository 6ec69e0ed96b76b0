"""A server is asked through what it offers."""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.coherence.ask import ask_questions
from firesteel.lab.coherence.questions import CHAT, QUESTIONS, TEXT
from firesteel.lab.servers.target import Target

PATHS = {CHAT: "/v1/chat/completions", TEXT: "/v1/completions"}


def handler_of(forms, *, message=None, refuses="", status=404, seen=None):
    """Returns the handler of a server that offers some forms and refuses bodies with a field."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen is None or seen.append(body)
            form = next(form for form, path in PATHS.items() if path == self.path)
            code = status if form not in forms else 400 if refuses in body else 200
            choice = {"text": " Paris."} if form == TEXT else {"message": message or {"content": "Paris."}}
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [choice]} if code == 200 else {"error": "no"}).encode())

    return Handler


@pytest.fixture
def ask(serving):
    def run(*forms, **fields):
        with serving(handler_of(forms, **fields)) as url:
            return ask_questions(Target(api=Api.of(url), kind="other", folder=Path(), model="m"))

    return run


def test_both_forms_are_asked_at_temperature_0(ask):
    seen = []
    answers, refusals = ask(CHAT, TEXT, seen=seen)
    assert {answer.question for answer in answers} == set(QUESTIONS) and not refusals
    assert {body["temperature"] for body in seen} == {0} and len(seen) == len(QUESTIONS)


@pytest.mark.parametrize(("form", "missing"), [(CHAT, TEXT), (TEXT, CHAT)])
def test_form_that_the_server_lacks_is_left_out_with_a_reason(ask, form, missing):
    answers, refusals = ask(form)
    assert {answer.question.form for answer in answers} == {form}
    [refusal] = refusals
    assert refusal.startswith(f"{missing}: ") and "404" in refusal


def test_server_that_refuses_a_reasoning_effort_is_asked_without(ask):
    answers, refusals = ask(CHAT, TEXT, refuses="reasoning_effort")
    assert len(answers) == len(QUESTIONS) and not refusals


def test_server_that_cannot_be_asked_gives_no_answers(ask):
    answers, refusals = ask()
    assert not answers and len(refusals) == 2


def test_server_that_breaks_is_a_failure_and_no_refusal(ask):
    with pytest.raises(RequestFailed, match="500"):
        ask(status=500)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_counts_if_no_answer_followed_it(ask, name):
    answers, _ = ask(CHAT, message={"content": None, name: "It is Paris."})
    assert answers[0].text == "It is Paris."


def test_answer_counts_without_its_reasoning(ask):
    answers, _ = ask(CHAT, message={"content": "Rome", "reasoning": "Paris?"})
    assert answers[0].text == "Rome"
