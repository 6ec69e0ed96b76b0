"""The judge of answers, on texts that Kindling and gpt-oss really gave."""

import json
from pathlib import Path

import pytest

from firesteel.lab.coherence.judge import Answer, judge_answer, judge_coherence
from firesteel.lab.coherence.questions import CHAT, DAYS, QUESTIONS, TEXT, KnownQuestion
from firesteel.lab.verdict import Verdict

# Greedy answers to QUESTIONS by variants of the built-in model, on a CPU.
KINDLING = json.loads((Path(__file__).parent / "kindling_answers.json").read_text(encoding="utf-8"))
GOOD = ["shipped", "mxfp4_layers=all", "kv_dtype=fp8"]
FRANCE = KnownQuestion(TEXT, "The capital of France is", ("Paris",))
# As gpt-oss-120b writes: other words, Markdown, an order of its own.
FROM_SUNDAY = "\n".join(f"{number}. **{day}**" for number, day in enumerate((DAYS[-1], *DAYS[:-1]), 1))
CAPABLE = {
    "What are the days of the week?": FROM_SUNDAY,
    "What is 7 * 8?": "\\(7 \\times 8 = 56\\)",
    "A carrot is a kind of": " root vegetable that is usually orange, although purple and white ones exist, and",
    "The word that means the opposite of cold is": ' "hot".\n\nThe opposite of cold is hot. The opposite of',
}


def judge(texts, form=None):
    pairs = zip(QUESTIONS, texts, strict=True)
    return judge_coherence([Answer(question, text) for question, text in pairs if form in (None, question.form)])


@pytest.mark.parametrize("form", [None, CHAT, TEXT])
@pytest.mark.parametrize("variant", GOOD)
def test_kindling_is_coherent_as_shipped_in_mxfp4_and_with_an_fp8_cache(variant, form):
    coherence = judge(KINDLING[variant], form)
    assert coherence.verdict is Verdict.PASSED and coherence.num_right == len(coherence.answers)


@pytest.mark.parametrize("form", [None, CHAT, TEXT])
@pytest.mark.parametrize("variant", sorted(set(KINDLING) - set(GOOD)))
def test_kindling_without_sinks_or_weights_is_not_coherent(variant, form):
    assert judge(KINDLING[variant], form).verdict is Verdict.FAILED


def test_other_wordings_of_a_capable_model_are_right():
    texts = [
        CAPABLE.get(question.prompt, f"{', '.join(question.expected)} is the answer.") for question in QUESTIONS
    ]
    assert judge(texts).num_right == len(QUESTIONS)


@pytest.mark.parametrize(
    "text", [" a is the is a is the is a is the is", "Ida Ida Ida Ida Ida Ida", "Paris " * 24, "!" * 64, ""]
)
def test_text_of_a_broken_server_fails_whatever_was_asked(text):
    coherence = judge([text] * len(QUESTIONS))
    assert coherence.verdict is Verdict.FAILED and coherence.num_right == 0
    assert coherence.num_garbage == len(QUESTIONS)


def test_garbage_after_a_plausible_first_token_is_called_drift():
    for tail in (
        " a is the is a is the is a is the is",
        " dressed Wellington Turkey jupiter opposites Oman Ada tool",
    ):
        judged = judge_answer(Answer(FRANCE, f" Paris{tail}"))
        assert judged.drifts and not judged.is_right and "drifts after 'Paris'" in judged.in_words()


def test_list_that_breaks_off_is_called_drift():
    judged = judge_answer(
        Answer(KnownQuestion(CHAT, "What are the days of the week?", DAYS), "Monday, Tuesday, Wellington")
    )
    assert judged.num_found == 2 and judged.drifts and "'Wednesday' is missing" in judged.in_words()


def test_expected_word_must_stand_alone():
    assert not judge_answer(Answer(FRANCE, " Parisian")).is_right
    assert judge_answer(Answer(FRANCE, " **PARIS**.")).is_right


def test_few_wrong_answers_are_tolerated_and_a_quarter_is_not():
    right = [f"The answer is {', '.join(question.expected)}." for question in QUESTIONS]
    wrong = ["I do not know that."] * len(QUESTIONS)
    assert judge(wrong[:4] + right[4:]).verdict is Verdict.PASSED
    assert judge(wrong[:5] + right[5:]).verdict is Verdict.FAILED


def test_garbage_fails_although_most_answers_are_right():
    right = [f"The answer is {', '.join(question.expected)}." for question in QUESTIONS]
    coherence = judge(["Ida Ida Ida Ida"] * 3 + right[3:])
    assert coherence.num_right == 16 and coherence.verdict is Verdict.FAILED
    assert "16 of 19 questions answered correctly, 3 with garbage" in coherence.in_words()


def test_no_answer_leaves_it_unproven():
    assert judge_coherence([]).verdict is Verdict.UNPROVEN


def test_figures_hold_every_answer():
    figures = judge(KINDLING["no sinks"]).as_dict()
    assert (figures["asked"], len(figures["answers"])) == (19, 19) and figures["drifting"] >= 2
    assert figures["distinct_words"] < judge(KINDLING["shipped"]).as_dict()["distinct_words"]
    assert figures["answers"][0]["question"] == "What is the capital of France?"
