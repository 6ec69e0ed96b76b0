"""The Harmony chat format: messages to token ids and back. Knows no engine and no HTTP.

A message is `<|start|>{header}<|message|>{content}<|end|>`; its header is
`role[:name][ to=recipient][<|channel|>channel][ to=recipient][ content_type]`, a tool writes its name where
others write their role, and a model's call ends in `<|call|>`, its final answer in `<|return|>`. Rendering
equals openai-harmony token for token. Parsing takes valid streams only and agrees with it on them, except
where the library loses information: a content type without recipient stays a content type, `role:name` is
read back, and a closing `<|endoftext|>` is not text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from firesteel.chat.tokenizer import Tokenizer, TokenizerError
from firesteel.chat.tools import Tool, render_json, render_namespace

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
EFFORTS = ("low", "medium", "high")
ROLES = ("system", "developer", "user", "assistant", "tool")
CONSTRAIN = "<|constrain|>"
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_CALLS = "\nCalls to these tools must go to the commentary channel: 'functions'."


class HarmonyError(ValueError):
    """A conversation or token stream outside the format; `position` is the index of the offending token."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason if position is None else f"token {position}: {reason}")
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str  # system, developer, user, assistant, tool
    content: str
    name: str | None = None  # author of a tool message, e.g. "functions.get_weather"
    channel: str | None = None  # analysis, commentary, final
    recipient: str | None = None  # "functions.get_weather", "assistant"; None is everyone
    content_type: str | None = None  # "<|constrain|>json", "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """A JSON schema the answer should follow; a hint to the model, not an enforcement."""

    name: str
    schema: dict[str, Any]
    description: str | None = None


def system_message(
    *,
    effort: str = "medium",
    date: str | None = None,
    has_functions: bool = False,
    identity: str = IDENTITY,
    knowledge_cutoff: str = "2024-06",
) -> Message:
    """`date` None leaves the date line out, so that the prompt's prefix does not change at midnight."""
    if effort not in EFFORTS:
        raise HarmonyError(f"unknown reasoning effort {effort!r}; one of {', '.join(EFFORTS)}")
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
    """Without the analysis before the first final message, once the assistant's last message is final.

    Until then a turn is under way, and the model needs its reasoning across tool calls.
    """
    last_of_assistant = next((m for m in reversed(messages) if m.role == "assistant"), None)
    if last_of_assistant is None or last_of_assistant.channel != "final":
        return list(messages)
    first_final = next(i for i, m in enumerate(messages) if m.channel == "final")
    return [m for i, m in enumerate(messages) if i > first_final or m.channel != "analysis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
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
    def of(cls, tokenizer: Tokenizer) -> _Marks:
        ids = {}
        for field in fields(cls):
            token = f"<|{field.name.rstrip('_')}|>"
            if token not in tokenizer.special_ids:
                raise TokenizerError(f"the tokenizer has no special token {token}, which Harmony needs")
            ids[field.name] = tokenizer.special_ids[token]
        return cls(**ids)


class Harmony:
    """The format bound to one tokenizer. Repeated headers and prompts are encoded once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks = marks = _Marks.of(tokenizer)
        self.stop_token_ids = frozenset({marks.return_, marks.call, marks.endoftext})
        self._encode_header = lru_cache(maxsize=4096)(self._render_header)
        self._encode_prompt = lru_cache(maxsize=64)(tokenizer.encode)

    def encode(self, messages: Sequence[Message], *, keep_reasoning: bool = False) -> list[int]:
        """A whole conversation, each message closed."""
        kept = list(messages) if keep_reasoning else drop_earlier_reasoning(messages)
        token_ids: list[int] = []
        for message, content_ids in zip(kept, self._encode_contents(kept), strict=True):
            token_ids += self._encode_header(
                message.role, message.name, message.recipient, message.channel, message.content_type
            )
            token_ids += content_ids
            is_call = message.role == "assistant" and message.recipient is not None
            token_ids.append(self._marks.call if is_call else self._marks.end)
        return token_ids

    def encode_for_completion(
        self, messages: Sequence[Message], *, role: str = "assistant", keep_reasoning: bool = False
    ) -> list[int]:
        """A conversation and the opening of the next message, which the model continues."""
        if role not in ROLES:
            raise HarmonyError(f"unknown role {role!r}; one of {', '.join(ROLES)}")
        token_ids = self.encode(messages, keep_reasoning=keep_reasoning)
        return [*token_ids, self._marks.start, *self._encode_prompt(role)]

    def encode_for_training(self, messages: Sequence[Message], *, keep_reasoning: bool = False) -> list[int]:
        """A conversation whose final answer, if it comes last, ends as the model must end it."""
        token_ids = self.encode(messages, keep_reasoning=keep_reasoning)
        if messages and messages[-1].role == "assistant" and messages[-1].channel == "final":
            token_ids[-1] = self._marks.return_
        return token_ids

    def decode(self, token_ids: Sequence[int], *, role: str | None = "assistant") -> list[Message]:
        """Messages of a valid stream, the last one possibly cut short in its content.

        With a `role` the stream starts inside the header of that role's message, as completions do; None
        expects `<|start|>`. Raises HarmonyError at the first token outside the format.
        """
        reader = _Reader(self._tokenizer, self._marks, token_ids)
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
        turns = iter(self._tokenizer.encode_batch(texts) if texts else ())
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
        """From `<|start|>` to `<|message|>`; the parts are encoded apart, so none can merge with the next."""
        encode = self._tokenizer.encode
        token_ids = [self._marks.start, *encode(_author(role, name))]
        if recipient is not None and recipient != "all":
            token_ids += encode(f" to={recipient}")
        if channel is not None:
            token_ids += [self._marks.channel, *encode(channel)]
        if content_type is not None and content_type.startswith(CONSTRAIN):
            token_ids += [*encode(" "), self._marks.constrain, *encode(content_type.removeprefix(CONSTRAIN))]
        elif content_type is not None:
            token_ids += encode(f" {content_type}")
        return (*token_ids, self._marks.message)


def _author(role: str, name: str | None) -> str:
    if role not in ROLES:
        raise HarmonyError(f"unknown role {role!r}; one of {', '.join(ROLES)}")
    if role != "tool":
        return role if name is None else f"{role}:{name}"
    if name is None:
        raise HarmonyError("a tool message needs the name of its tool")
    return name


class _Reader:
    """A cursor over one stream of tokens."""

    def __init__(self, tokenizer: Tokenizer, marks: _Marks, token_ids: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._marks = marks
        self._token_ids = token_ids
        self._structure = {getattr(marks, field.name) for field in fields(marks)}
        self.position = 0

    def expect_start(self) -> None:
        if self._token_ids[self.position] != self._marks.start:
            raise HarmonyError("expected <|start|>", self.position)
        self.position += 1

    def read_message(self, role: str | None) -> Message:
        header = self._read_header(role)
        begin, mark = self.position, self._next_mark()
        content = self._decode(self._token_ids[begin : self.position])
        if mark is not None:
            self._close(mark)
        return replace(header, content=content)

    def _close(self, mark: int) -> None:
        marks = self._marks
        if mark not in (marks.end, marks.return_, marks.call, marks.endoftext):
            raise HarmonyError(f"{self._decode([mark])} inside a message's content", self.position)
        self.position += 1
        if mark == marks.endoftext and self.position < len(self._token_ids):
            raise HarmonyError("the stream goes on after <|endoftext|>", self.position)

    def _next_mark(self) -> int | None:
        """Moves to the next structural token and returns it; None at the end of the stream."""
        while self.position < len(self._token_ids):
            if self._token_ids[self.position] in self._structure:
                return self._token_ids[self.position]
            self.position += 1
        return None

    def _read_header(self, role: str | None) -> Message:
        """Up to and with `<|message|>`: the parts before, after `<|channel|>` and after `<|constrain|>`."""
        first = self.position
        parts: dict[int, str] = {}
        mark = self._marks.start
        while mark != self._marks.message:
            begin, following = self.position, self._next_mark()
            parts[mark] = self._decode(self._token_ids[begin : self.position])
            if following is None:
                raise HarmonyError("the stream ends inside a header", self.position)
            allowed = {self._marks.message, self._marks.channel, self._marks.constrain} - parts.keys()
            if following not in allowed or (following, mark) == (self._marks.channel, self._marks.constrain):
                raise HarmonyError(f"{self._decode([following])} inside a header", self.position)
            self.position += 1
            mark = following
        try:
            return _parse_header(
                role,
                parts[self._marks.start],
                parts.get(self._marks.channel),
                parts.get(self._marks.constrain),
            )
        except HarmonyError as error:
            raise HarmonyError(str(error), first) from None


def _parse_header(role: str | None, author: str, channel: str | None, constraint: str | None) -> Message:
    """A header's words in order: author unless `role` is given, `to=recipient`, content type."""
    words = author.split()
    if role is None and not words:
        raise HarmonyError("a header without a role")
    writer = words.pop(0) if role is None or words[:1] == [role] else role
    if channel is not None:
        if not channel or channel[0].isspace():
            raise HarmonyError("a channel without a name")
        channel, *more = channel.split()
        words += more
    if constraint is not None:
        words.append(CONSTRAIN + constraint.strip())
    recipient = words.pop(0).removeprefix("to=") if words and words[0].startswith("to=") else None
    content_type = words.pop(0) if words else None
    if words or (content_type is not None and content_type.startswith("to=")):
        raise HarmonyError(f"more in a header than one recipient and one content type, at {content_type!r}")
    role, name = _parse_author(writer, is_addressed=recipient is not None)
    return Message(
        role=role, content="", name=name, channel=channel, recipient=recipient, content_type=content_type
    )


def _parse_author(word: str, *, is_addressed: bool) -> tuple[str, str | None]:
    """`role`, `role:name`, or a tool's name: that of a namespace's member or of anyone with a recipient."""
    role, colon, name = word.partition(":")
    if role in ROLES and role != "tool":
        return role, name if colon else None
    if is_addressed or "." in word or word == "tool":
        return "tool", word
    raise HarmonyError(f"unknown role {word!r}")
