"""Training documents, exam items and held-out text, mixed from the families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from firesteel.chat.harmony import Message
from firesteel.exam import ExamItem
from kindling.families import CHAT, PLAIN, UNGRADED, continuation, retrieval
from kindling.frame import draw_effort, draw_opening
from kindling.turn import Turn

# Documents of each kind among 100: more for what a small model learns slowly.
WEIGHTS: dict[str, float] = {
    "capitals": 8,
    "arithmetic": 16,
    "unit_conversion": 8,
    "spelling": 6,
    "reversing": 11,
    "yes_no": 8,
    "lists": 8,
    "copy": 4,
    "one_word": 6,
    "retrieval": 4,
    "not_given": 7,
    "tool_call": 9,
    "tool_answer": 4,
    "small_talk": 1,
    "several_turns": 8,
    "continuation": 6,
}
GRADED = (*CHAT, "continuation")
LONG_ITEMS = 24
LONG_SHARE = 0.01  # share of the documents; they have a fifth of the tokens
LONG_TOKENS = (1200, 7600)  # tokens of the text; with questions the longest stays below 8192
PERPLEXITY_CHARACTERS = 60_000  # about 20k tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One training text. Earlier reasoning is already dropped, so encode with `keep_reasoning=True`.

    `trained_from` is the index of the first message that carries loss: earlier answers are there without
    the reasoning that the effort requires, and must not be learnt.
    """

    family: str
    messages: list[Message] | None
    text: str | None
    trained_from: int = 0


def training_documents(seed: int, *, long_share: float = LONG_SHARE) -> Iterator[Document]:
    """Yields documents without end, equal for equal seeds; `long_share` of them have about 1200 to 8000 tokens."""
    rng = Random(f"kindling training {seed}")
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        if rng.random() < long_share:
            yield _long_document(rng)
        else:
            yield _document(rng, rng.choices(kinds, weights)[0], held_out=False)


def exam_items(seed: int = 0, per_family: int = 200) -> list[ExamItem]:
    """Returns held-out items, `per_family` of each graded family and a few of retrieval_long; no question twice."""
    rng = Random(f"kindling exam {seed}")
    seen: set[str] = set()
    items = []
    for family in GRADED:
        items += _distinct_items(rng, family, per_family, seen)
    return items + _distinct_items(rng, "retrieval_long", min(LONG_ITEMS, per_family), seen)


def perplexity_text(seed: int = 0) -> list[Document]:
    """Returns held-out documents of every family that has any, in turn, about 20k tokens."""
    rng = Random(f"kindling perplexity {seed}")
    documents: list[Document] = []
    length = 0
    while length < PERPLEXITY_CHARACTERS:
        added = [_document(rng, family, held_out=True) for family in (*GRADED, "several_turns")]
        documents += added
        length += sum(map(_length, added))
    return documents


def _document(rng: Random, family: str, *, held_out: bool) -> Document:
    if family == "continuation":
        return Document(family=family, messages=None, text=continuation.draw_text(rng, held_out))
    effort = draw_effort(rng)
    history, turn = _conversation(rng, family, held_out)
    return _chat_document(rng, family, effort, history, turn)


def _chat_document(rng: Random, family: str, effort: str, history: list[Turn], turn: Turn) -> Document:
    opening = _opening(rng, effort, history, turn, is_exam=False)
    is_silent = not any(past.reasoning(effort) for past in history)
    messages = [*opening, *turn.prompt(effort), *turn.reply(effort)]
    trained_from = 0 if is_silent else len(opening) + 1
    return Document(family=family, messages=messages, text=None, trained_from=trained_from)


def _conversation(rng: Random, family: str, held_out: bool) -> tuple[list[Turn], Turn]:
    """Builds a conversation: earlier turns, always taught, and the final turn."""
    if family == "several_turns":
        plain = list(PLAIN.values())
        history = [rng.choice(plain)(rng, False) for _ in range(rng.randint(1, 4))]
        return history, rng.choice(plain)(rng, held_out)
    draw = retrieval.draw_long if family == "retrieval_long" else (CHAT | UNGRADED)[family]
    return [], draw(rng, held_out)


def _opening(rng: Random, effort: str, history: list[Turn], turn: Turn, *, is_exam: bool) -> list[Message]:
    """Returns everything before the question of `turn`."""
    opening = draw_opening(rng, effort, turn.call.tools if turn.call else (), is_exam=is_exam)
    return opening + [message for past in history for message in past.remembered()]


def _long_document(rng: Random) -> Document:
    """Draws several questions on one long text, more often with low effort, where every answer is learnt."""
    low, high = LONG_TOKENS
    tokens = int(low * (high / low) ** rng.random())
    turns = retrieval.draw_several(rng, tokens, rng.randint(2, 5))
    effort = "low" if rng.random() < 0.7 else draw_effort(rng)
    return _chat_document(rng, "retrieval_long", effort, turns[:-1], turns[-1])


def _distinct_items(rng: Random, family: str, count: int, seen: set[str]) -> list[ExamItem]:
    items: list[ExamItem] = []
    while len(items) < count:
        question, item = _continuation_item(rng) if family == "continuation" else _chat_item(rng, family)
        if question not in seen:
            seen.add(question)
            items.append(item)
    return items


def _continuation_item(rng: Random) -> tuple[str, ExamItem]:
    turn = continuation.draw(rng, held_out=True)
    item = ExamItem(family="continuation", messages=None, text=turn.question, answer=turn.answer, call=None)
    return turn.question, item


def _chat_item(rng: Random, family: str) -> tuple[str, ExamItem]:
    effort = draw_effort(rng)
    history, turn = _conversation(rng, family, held_out=True)
    messages = _opening(rng, effort, history, turn, is_exam=True) + turn.prompt(effort)
    call = None
    if turn.call is not None and turn.answer is None:
        call = {"name": turn.call.name, "arguments": turn.call.arguments}
    return turn.question, ExamItem(family=family, messages=messages, text=None, answer=turn.answer, call=call)


def _length(document: Document) -> int:
    return len(document.text or "") + sum(len(message.content) for message in document.messages or ())
