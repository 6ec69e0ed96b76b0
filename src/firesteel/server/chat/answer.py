"""A chat's choice in the format of the OpenAI API, in chunks or whole."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from firesteel.chat.message import Begin, ParsedMessage, TextDelta
from firesteel.chat.tokenizer import Tokenizer
from firesteel.server.generate.choice import ChoicePiece
from firesteel.server.generate.prompt import spell_token
from firesteel.server.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    FunctionCall,
    FunctionDelta,
    MessageAnswer,
    MessageDelta,
    TokenLogprob,
    ToolCallAnswer,
    ToolCallDelta,
    TopLogprob,
)
from firesteel.server.openai.requests import ChatRequest
from firesteel.types import TokenLogprobs


class ChatAnswer:
    """One choice. Tokens without visible text are sent with the next chunk, or with the last one."""

    def __init__(self, index: int, request: ChatRequest, tokenizer: Tokenizer) -> None:
        self.message = ParsedMessage()
        self._index = index
        self._tokenizer = tokenizer
        self._shows_reasoning = request.include_reasoning is not False
        self._shows_logprobs = bool(request.logprobs)
        self._shows_ids = bool(request.return_token_ids)
        self._names_ids = bool(request.return_tokens_as_token_ids)
        self._call_numbers: dict[int, int] = {}  # by index of the part
        self._is_first = True
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._last = ChoicePiece()

    def add(self, piece: ChoicePiece) -> None:
        for delta in piece.deltas:
            self.message.add(delta)
        self._ids += piece.token_ids
        self._logprobs += piece.logprobs
        self._last = piece

    def chunk(self) -> ChatChunkChoice | None:
        """Returns what the last piece adds; None if it adds nothing visible."""
        delta, reason = self._delta(self._last), self._last.finish_reason
        if delta is None and reason is None:
            return None
        choice = ChatChunkChoice(index=self._index, delta=delta or MessageDelta(), finish_reason=reason)
        if self._is_first:
            self._is_first = False
            choice.delta.role = "assistant"
        if self._last.stop_reason is not None:
            choice.stop_reason = self._last.stop_reason
        choice.logprobs = self._take_logprobs()
        choice.token_ids = self._take_ids()
        return choice

    def whole(self) -> ChatChoice:
        message = self.message
        reasoning = message.reasoning or None if self._shows_reasoning else None
        calls = [
            ToolCallAnswer(
                id=part.begin.call_id or "", function=FunctionCall(name=part.begin.name or "", arguments=part.text)
            )
            for part in message.tool_calls
        ]
        content = message.content
        return ChatChoice(
            index=self._index,
            finish_reason=self._last.finish_reason or "stop",
            message=MessageAnswer(
                content=None if calls and not content else content,
                reasoning_content=reasoning,
                reasoning=reasoning,
                tool_calls=calls or UNSET,
            ),
            logprobs=self._take_logprobs(),
            stop_reason=self._last.stop_reason,
            token_ids=self._take_ids(),
        )

    def _delta(self, piece: ChoicePiece) -> MessageDelta | None:
        texts = {"content": "", "reasoning": ""}
        calls: list[ToolCallDelta] = []
        for delta in piece.deltas:
            kind = self.message.parts[delta.index].kind
            if kind == "tool_call":
                self._add_call(calls, delta)
            elif isinstance(delta, TextDelta):
                texts[kind] += delta.text
        reasoning = texts["reasoning"] if self._shows_reasoning else ""
        if not (texts["content"] or reasoning or calls):
            return None
        return MessageDelta(
            content=texts["content"] or UNSET,
            reasoning_content=reasoning or UNSET,
            reasoning=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )

    def _add_call(self, calls: list[ToolCallDelta], delta: object) -> None:
        match delta:
            case Begin():
                number = self._call_numbers[delta.index] = len(self._call_numbers)
                function = FunctionDelta(name=delta.name or "", arguments="")
                calls.append(
                    ToolCallDelta(index=number, id=delta.call_id or "", type="function", function=function)
                )
            case TextDelta():
                number = self._call_numbers[delta.index]
                calls.append(ToolCallDelta(index=number, function=FunctionDelta(arguments=delta.text)))

    def _take_ids(self) -> list[int] | UnsetType:
        taken, self._ids = self._ids, []
        return taken if self._shows_ids else UNSET

    def _take_logprobs(self) -> ChatLogprobs | None:
        taken, self._logprobs = self._logprobs, []
        if not self._shows_logprobs:
            return None
        return ChatLogprobs(content=spell_all(taken, self._tokenizer, as_ids=self._names_ids))


def spell_all(
    logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, as_ids: bool = False
) -> list[TokenLogprob]:
    """Returns the logprobs with the texts of their tokens, or with names of their ids."""
    return [
        TokenLogprob(
            token=spell_token(scored.token_id, tokenizer, as_id=as_ids),
            logprob=scored.logprob,
            bytes=list(tokenizer.token_bytes(scored.token_id)),
            top_logprobs=[
                TopLogprob(
                    token=spell_token(token, tokenizer, as_id=as_ids),
                    logprob=logprob,
                    bytes=list(tokenizer.token_bytes(token)),
                )
                for token, logprob in scored.top
            ],
        )
        for scored in logprobs
    ]
