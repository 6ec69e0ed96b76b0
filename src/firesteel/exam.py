"""Reads and writes the held-out questions and texts that ship with Kindling.

An item is a conversation (or plain text) to continue and the only correct continuation: an answer in the final
channel, a function call with its arguments, or the text that follows. A text for perplexity has no continuation.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firesteel.chat.harmony import Message
from firesteel.hub import BUILT_IN

EXAM = BUILT_IN / "exam.jsonl.gz"
TEXT = BUILT_IN / "perplexity.jsonl.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamItem:
    """Has `messages` or `text` to continue, and the expected `answer` or `call` ({"name", "arguments"})."""

    family: str
    messages: list[Message] | None = None
    text: str | None = None
    answer: str | None = None
    call: dict[str, Any] | None = None


def read_items(path: Path) -> list[ExamItem]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [item_from_json(line) for line in lines]


def write_items(path: Path, items: Sequence[ExamItem]) -> None:
    """Writes items; equal items give equal bytes."""
    text = "".join(item_to_json(item) + "\n" for item in items)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def item_to_json(item: ExamItem) -> str:
    """Returns one line of JSON, without fields that are None."""
    row = {name: value for name, value in asdict(item).items() if value is not None}
    if item.messages is not None:
        row["messages"] = [{k: v for k, v in message.items() if v is not None} for message in row["messages"]]
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def item_from_json(line: str) -> ExamItem:
    row = json.loads(line)
    if "messages" in row:
        row["messages"] = [Message(**message) for message in row["messages"]]
    return ExamItem(**row)
