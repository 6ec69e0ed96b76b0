"""Asks a server the questions: through chat completions, completions, or both, as it offers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.coherence.judge import Answer
from firesteel.lab.coherence.questions import CHAT, QUESTIONS, TEXT, KnownQuestion
from firesteel.lab.servers.target import Target, is_refusal

CHAT_TOKENS, TEXT_TOKENS = 256, 24  # an answer in a chat may begin with reasoning
LITTLE_REASONING = {"reasoning_effort": "low"}
AT_ONCE = 4
Ask = Callable[[KnownQuestion], Answer]


def ask_questions(target: Target, questions: Sequence[KnownQuestion] = QUESTIONS) -> tuple[list[Answer], list[str]]:
    """Returns the answers, and why a form was not offered for each form without answers."""
    answers: list[Answer] = []
    refusals = []
    ways: dict[str, tuple[Ask, ...]] = {
        CHAT: (partial(ask_chat, target.api, LITTLE_REASONING), partial(ask_chat, target.api, {})),
        TEXT: (partial(ask_text, target.api),),
    }
    for form, asks in ways.items():
        asked = [question for question in questions if question.form == form]
        with target.step(f"{len(asked)} {form} questions with known answers"):
            try:
                answers += ask_form(asks, asked)
            except RequestFailed as error:
                if not is_refusal(error):
                    raise
                refusals.append(f"{form}: {error}")
    return answers, refusals


def ask_form(asks: Sequence[Ask], questions: Sequence[KnownQuestion]) -> list[Answer]:
    """Asks in the first way that the server accepts."""
    ask, *others = asks
    try:
        first = ask(questions[0])
    except RequestFailed as error:
        if not (others and is_refusal(error)):
            raise
        return ask_form(others, questions)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [first, *pool.map(ask, questions[1:])]


def ask_chat(api: Api, fields: Mapping[str, Any], question: KnownQuestion) -> Answer:
    answer = api.chat(question.prompt, max_tokens=CHAT_TOKENS, temperature=0, **fields)
    message = answer["choices"][0]["message"]
    content, *reasoning = (message.get(name) for name in ("content", "reasoning_content", "reasoning"))
    texts = (text for text in (content, *reasoning) if isinstance(text, str) and text.strip())
    return Answer(question, next(texts, ""))


def ask_text(api: Api, question: KnownQuestion) -> Answer:
    answer = api.complete(question.prompt, max_tokens=TEXT_TOKENS, temperature=0)
    return Answer(question, answer["choices"][0]["text"])
