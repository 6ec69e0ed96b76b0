"""The Harmony chat format: messages to token ids and back.

A message is `<|start|>{header}<|message|>{content}<|end|>`. Its header is
`role[:name][ to=recipient][<|channel|>channel][ to=recipient][ content_type]`; a tool writes its name in place of
the role. A tool call of the model ends in `<|call|>`, its final answer in `<|return|>`. Rendering equals
openai-harmony token for token. Parsing accepts valid streams only and agrees with openai-harmony on them, except
where that library loses information: a content type without recipient stays a content type, `role:name` is
read back, and a closing `<|endoftext|>` is not text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from firesteel.chat.format import CONSTRAIN, ROLES, HarmonyError, Marks, Message
from firesteel.chat.strict import StrictReader
from firesteel.chat.tokenizer import Tokenizer
from firesteel.chat.tools import Tool, render_json, render_namespace

__all__ = [
    "Harmony",
    "HarmonyError",
    "Message",
    "ResponseFormat",
    "developer_message",
    "drop_earlier_reasoning",
    "system_message",
]

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
EFFORTS = ("low", "medium", "high")
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_CALLS = "\nCalls to these tools must go to the commentary channel: 'functions'."


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """A JSON schema that the answer should follow. In a prompt it is a hint; grammar.py enforces it."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool = False  # whether a schema that cannot be enforced to the letter is an error


def system_message(
    *,
    effort: str = "medium",
    date: str | None = None,
    has_functions: bool = False,
    identity: str = IDENTITY,
    knowledge_cutoff: str = "2024-06",
) -> Message:
    """Builds the system message. Without `date` it has no date line, so the prefix does not change at midnight."""
    if effort not in EFFORTS:
        raise HarmonyError(f"unknown reasoning effort {effort!r}; use one of {', '.join(EFFORTS)}")
    who = f"{identity}\nKnowledge cutoff: {knowledge_cutoff}"
    if date is not None:
        who += f"\nCurrent date: {date}"
    channels = _CHANNELS + (_CALLS if has_functions else "")
    return Message(role="system", content=f"{who}\n\nReasoning: {effort}\n\n{channels}")


def developer_message(
    *,
    instructions: str | None = None,
    tools: Sequence[Tool] = (),
    response_formats: Sequence[ResponseFormat] = (),
) -> Message:
    sections = []
    if instructions is not None:
        sections.append(f"# Instructions\n\n{instructions}")
    if tools:
        sections.append(f"# Tools\n\n## functions\n\n{render_namespace(tools)}")
    if response_formats:
        sections.append("\n\n".join(["# Response Formats", *map(_render_format, response_formats)]))
    return Message(role="developer", content="\n\n".join(sections))


def _render_format(answer: ResponseFormat) -> str:
    comment = "" if answer.description is None else f"// {answer.description}\n"
    return f"## {answer.name}\n\n{comment}{render_json(answer.schema)}"


def drop_earlier_reasoning(messages: Sequence[Message]) -> list[Message]:
    """Drops the analysis before the first final message, if the assistant's last message is final.

    Otherwise a turn is in progress, and the model needs its reasoning across tool calls.
    """
    last_of_assistant = next((m for m in reversed(messages) if m.role == "assistant"), None)
    if last_of_assistant is None or last_of_assistant.channel != "final":
        return list(messages)
    first_final = next(i for i, m in enumerate(messages) if m.channel == "final")
    return [m for i, m in enumerate(messages) if i > first_final or m.channel != "analysis"]


class Harmony:
    """The format for one tokenizer. Encoded headers and prompts are cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.marks = marks = Marks.of(tokenizer)
        self.stop_token_ids = frozenset({marks.return_, marks.call, marks.endoftext})
        self._encode_header = lru_cache(maxsize=4096)(self._render_header)
        self._encode_prompt = lru_cache(maxsize=64)(tokenizer.encode)

    def encode(self, messages: Sequence[Message], *, keep_reasoning: bool = False) -> list[int]:
        """Encodes a whole conversation, each message closed."""
        kept = list(messages) if keep_reasoning else drop_earlier_reasoning(messages)
        token_ids: list[int] = []
        for message, content_ids in zip(kept, self._encode_contents(kept), strict=True):
            token_ids += self._encode_header(
                message.role, message.name, message.recipient, message.channel, message.content_type
            )
            token_ids += content_ids
            is_call = message.role == "assistant" and message.recipient is not None
            token_ids.append(self.marks.call if is_call else self.marks.end)
        return token_ids

    def encode_for_completion(
        self, messages: Sequence[Message], *, role: str = "assistant", keep_reasoning: bool = False
    ) -> list[int]:
        """Encodes a conversation and the opening of the next message, which the model continues."""
        if role not in ROLES:
            raise HarmonyError(f"unknown role {role!r}; use one of {', '.join(ROLES)}")
        token_ids = self.encode(messages, keep_reasoning=keep_reasoning)
        return [*token_ids, self.marks.start, *self._encode_prompt(role)]

    def encode_to_continue(self, messages: Sequence[Message]) -> list[int]:
        """Encodes a conversation whose last message is left open, so that the model continues it."""
        *before, last = messages
        header = self._encode_header(last.role, last.name, last.recipient, last.channel, last.content_type)
        return [*self.encode(before), *header, *self.tokenizer.encode(last.content)]

    def open_channel(self, channel: str | None) -> list[int]:
        """Returns the rest of a header after the role, as the model would write it."""
        named = [self.marks.channel, *self.tokenizer.encode(channel)] if channel else []
        return [*named, self.marks.message]

    def encode_for_training(self, messages: Sequence[Message], *, keep_reasoning: bool = False) -> list[int]:
        """Encodes a conversation; a final answer that comes last ends with the token the model must end it with."""
        token_ids = self.encode(messages, keep_reasoning=keep_reasoning)
        if messages and messages[-1].role == "assistant" and messages[-1].channel == "final":
            token_ids[-1] = self.marks.return_
        return token_ids

    def decode(self, token_ids: Sequence[int], *, role: str | None = "assistant") -> list[Message]:
        """Returns the messages of a valid stream; the content of the last one may be cut short.

        With a `role` the stream starts inside the header of that role's message, as completions do; None
        expects `<|start|>`. Raises HarmonyError at the first token that violates the format.
        """
        reader = StrictReader(self.tokenizer, self.marks, token_ids)
        messages = []
        if role is not None:
            messages.append(reader.read_message(role))
        while reader.position < len(token_ids):
            reader.expect_start()
            messages.append(reader.read_message(None))
        return messages

    def _encode_contents(self, messages: Sequence[Message]) -> list[list[int]]:
        is_prompt = [message.role in ("system", "developer") for message in messages]
        texts = [m.content for m, prompt in zip(messages, is_prompt, strict=True) if not prompt]
        turns = iter(self.tokenizer.encode_batch(texts) if texts else ())
        return [
            self._encode_prompt(m.content) if prompt else next(turns)
            for m, prompt in zip(messages, is_prompt, strict=True)
        ]

    def _render_header(
        self,
        role: str,
        name: str | None,
        recipient: str | None,
        channel: str | None,
        content_type: str | None,
    ) -> tuple[int, ...]:
        """Encodes `<|start|>` to `<|message|>`, each part separately, so that tokens do not span two parts."""
        encode = self.tokenizer.encode
        token_ids = [self.marks.start, *encode(_author(role, name))]
        if recipient is not None and recipient != "all":
            token_ids += encode(f" to={recipient}")
        if channel is not None:
            token_ids += [self.marks.channel, *encode(channel)]
        if content_type is not None and content_type.startswith(CONSTRAIN):
            token_ids += [*encode(" "), self.marks.constrain, *encode(content_type.removeprefix(CONSTRAIN))]
        elif content_type is not None:
            token_ids += encode(f" {content_type}")
        return (*token_ids, self.marks.message)


def _author(role: str, name: str | None) -> str:
    if role not in ROLES:
        raise HarmonyError(f"unknown role {role!r}; use one of {', '.join(ROLES)}")
    if role != "tool":
        return role if name is None else f"{role}:{name}"
    if name is None:
        raise HarmonyError("a tool message needs the name of its tool")
    return name
