"""Level 2's check of answers to fixed questions: its row, cure and figures."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from firesteel.lab.coherence.judge import Answer
from firesteel.lab.coherence.questions import QUESTIONS
from firesteel.lab.level import CORRECTNESS
from firesteel.lab.level_result import Checks
from firesteel.lab.levels import coherence as levels_coherence
from firesteel.lab.levels.coherence import SHOWS_SINKS, check_coherence
from firesteel.lab.servers.target import Target
from firesteel.lab.verdict import Verdict


@pytest.fixture
def check(monkeypatch):
    """check(text): the checks of a server that gives this text, or each expected answer, to every question."""

    def run(text=None, *, model="gpt-oss-120b", refusals=()):
        texts = {question: text or f"It is {', '.join(question.expected)}." for question in QUESTIONS}
        answers = [] if refusals else [Answer(question, texts[question]) for question in QUESTIONS]
        monkeypatch.setattr(levels_coherence, "ask_questions", lambda target: (answers, list(refusals)))
        checks = Checks(CORRECTNESS)
        check_coherence(Target(api=SimpleNamespace(model="x"), kind="other", folder=Path(), model=model), checks)
        return checks

    return run


def test_right_answers_pass_without_a_cure(check):
    [row] = check().rows
    assert row.verdict is Verdict.PASSED and not row.cure and "19 of 19" in row.words


def test_garbage_fails_and_the_cure_names_attention_sinks(check):
    checks = check(" a is the is a is the is a is the is")
    [row] = checks.rows
    assert row.verdict is Verdict.FAILED and "VLLM_ATTENTION_SINKS" in row.cure and "a is the is" in row.words
    assert checks.facts["coherence"]["garbage"] == 19 and checks.facts[SHOWS_SINKS] is False


def test_server_that_cannot_be_asked_is_not_judged(check):
    [row] = check(refusals=["chat: 404", "text: 404"]).rows
    assert row.verdict is Verdict.UNPROVEN and "chat: 404; text: 404" in row.words and "/v1/completions" in row.cure


@pytest.mark.parametrize(
    ("model", "expected"),
    [("openai/gpt-oss-20b", True), ("kindling", True), ("gpt_oss", False), ("meta/Llama-3.1-8B", False)],
)
def test_right_answers_show_sinks_of_a_gpt_oss_only(check, model, expected):
    assert check(model=model).facts[SHOWS_SINKS] is expected
