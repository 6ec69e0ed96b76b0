"""The judge of answers: a pure function of questions and texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.lab.coherence.questions import KnownQuestion
from firesteel.lab.coherence.symptoms import find_symptom, find_tail_symptom, share_of_distinct, split_words
from firesteel.lab.verdict import Verdict

MIN_RIGHT = 0.75  # of the answers; a capable model gives nearly all, Kindling without attention sinks a fifth
MAX_GARBAGE = 0.15  # of the answers
SHOWN = 3  # answers quoted
SHOWN_CHARACTERS = 50


@dataclass(frozen=True, slots=True)
class Answer:
    question: KnownQuestion
    text: str  # what a user reads; the reasoning only if nothing followed it


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    answer: Answer
    num_found: int  # expected words before the first that is missing
    symptom: str  # why the text is garbage; empty if it is not

    @property
    def is_right(self) -> bool:
        return self.num_found == len(self.answer.question.expected) and not self.symptom

    @property
    def drifts(self) -> bool:
        """True if it began as expected and went on with something else."""
        expected = self.answer.question.expected
        return bool(self.num_found) and (bool(self.symptom) or self.num_found < len(expected))

    def in_words(self) -> str:
        text = self.answer.text
        shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
        expected = self.answer.question.expected
        fault = self.symptom or f"{expected[min(self.num_found, len(expected) - 1)]!r} is missing"
        if self.drifts:
            fault = f"drifts after {expected[self.num_found - 1]!r}: {fault}"
        return f"{self.answer.question.title!r} is answered {shown!r} ({fault})"


@dataclass(frozen=True, slots=True)
class Coherence:
    """The judged answers of one server."""

    answers: tuple[JudgedAnswer, ...]

    @property
    def num_right(self) -> int:
        return sum(answer.is_right for answer in self.answers)

    @property
    def num_garbage(self) -> int:
        return sum(bool(answer.symptom) for answer in self.answers)

    @property
    def verdict(self) -> Verdict:
        total = len(self.answers)
        if not total:
            return Verdict.UNPROVEN
        return Verdict.of(self.num_right >= MIN_RIGHT * total and self.num_garbage <= MAX_GARBAGE * total)

    def in_words(self) -> str:
        if not self.answers:
            return "no question was answered"
        words = f"{self.num_right} of {len(self.answers)} questions answered correctly"
        if self.num_garbage:
            words += f", {self.num_garbage} with garbage"
        wrong = sorted(
            (answer for answer in self.answers if not answer.is_right), key=lambda answer: not answer.symptom
        )
        return (
            words
            if self.verdict is Verdict.PASSED
            else f"{words}: {'; '.join(answer.in_words() for answer in wrong[:SHOWN])}"
        )

    def as_dict(self) -> dict[str, Any]:
        shares = [share_of_distinct(split_words(judged.answer.text)) for judged in self.answers]
        return {
            "asked": len(self.answers),
            "right": self.num_right,
            "garbage": self.num_garbage,
            "drifting": sum(judged.drifts for judged in self.answers),
            "distinct_words": sum(shares) / max(len(shares), 1),  # mean share within an answer
            "answers": [
                {
                    "question": judged.answer.question.title,
                    "form": judged.answer.question.form,
                    "text": judged.answer.text,
                    "right": judged.is_right,
                    "symptom": judged.symptom,
                }
                for judged in self.answers
            ],
        }


def judge_coherence(answers: Sequence[Answer]) -> Coherence:
    return Coherence(tuple(map(judge_answer, answers)))


def judge_answer(answer: Answer) -> JudgedAnswer:
    found = find_expected(answer)
    whole = find_symptom(answer.text)
    is_whole = len(found) == len(answer.question.expected)
    tail = find_tail_symptom(answer.text[max(found) :]) if is_whole else ""
    return JudgedAnswer(answer=answer, num_found=len(found), symptom=whole or tail)


def find_expected(answer: Answer) -> list[int]:
    """Returns where each expected word ends, up to the first that is missing."""
    ends = []
    for word in answer.question.expected:
        match = re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", answer.text, re.IGNORECASE)
        if match is None:
            break
        ends.append(match.end())
    return ends
