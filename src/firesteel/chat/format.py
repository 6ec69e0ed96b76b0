"""Types of the Harmony format: a message, and the special tokens between messages."""

from __future__ import annotations

from dataclasses import dataclass, fields

from firesteel.chat.tokenizer import Tokenizer, TokenizerError

ROLES = ("system", "developer", "user", "assistant", "tool")
CHANNELS = ("analysis", "commentary", "final")
CONSTRAIN = "<|constrain|>"


class HarmonyError(ValueError):
    """A conversation or token stream that violates the format; `position` is the index of the offending token."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason if position is None else f"token {position}: {reason}")
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str  # system, developer, user, assistant, tool
    content: str
    name: str | None = None  # author of a tool message, e.g. "functions.get_weather"
    channel: str | None = None  # analysis, commentary, final
    recipient: str | None = None  # "functions.get_weather", "assistant"; None: everyone
    content_type: str | None = None  # "<|constrain|>json", "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Ids of the special tokens that give a stream its structure."""

    start: int
    message: int
    channel: int
    constrain: int
    end: int
    return_: int
    call: int
    endoftext: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Marks:
        ids = {}
        for field in fields(cls):
            token = f"<|{field.name.rstrip('_')}|>"
            if token not in tokenizer.special_ids:
                raise TokenizerError(f"the tokenizer has no special token {token}, which Harmony needs")
            ids[field.name] = tokenizer.special_ids[token]
        return cls(**ids)
