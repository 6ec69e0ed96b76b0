"""One choice of an answer: the engine's outputs, turned into text that a client may see.

A reader turns each output of the engine into a piece; every token is in exactly one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from firesteel.chat.harmony import Harmony
from firesteel.chat.message import Begin, Delta, End, TextDelta
from firesteel.chat.stop import StopFilter
from firesteel.chat.stream import HarmonyStream
from firesteel.chat.tokenizer import Tokenizer
from firesteel.engine.process.messages import Output
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.answers import FinishReason
from firesteel.types import Request, RequestStatistics, SamplingParams, StepOutput, TokenLogprobs

EngineOutput = StepOutput | Output  # of an engine in this process, or in its own


@dataclass(slots=True, kw_only=True)
class ChoicePiece:
    """The part of an answer that one or more engine outputs add."""

    deltas: list[Delta] = field(default_factory=list)  # of a chat
    text: str = ""  # of a completion
    token_ids: list[int] = field(default_factory=list)
    num_reasoning: int = 0  # tokens that are text of the reasoning
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the next tokens of the prompt
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None  # the stop string that was found

    def join(self, later: ChoicePiece) -> None:
        self.deltas += later.deltas
        self.text += later.text
        self.token_ids += later.token_ids
        self.num_reasoning += later.num_reasoning
        self.logprobs += later.logprobs
        self.prompt_logprobs += later.prompt_logprobs
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason


class ChoiceReader(Protocol):
    """Turns the outputs of one request into pieces."""

    def push(self, output: EngineOutput) -> ChoicePiece: ...


@dataclass(slots=True, kw_only=True)
class Choice:
    """A request, the reader of its outputs, and its counts so far."""

    request: Request
    reader: ChoiceReader
    num_cached: int = 0  # prompt tokens found in the cache
    num_output: int = 0
    num_reasoning: int = 0
    finish_reason: FinishReason | None = None  # None until the answer has ended
    statistics: RequestStatistics | None = None  # None until the engine's last output

    @property
    def num_prompt(self) -> int:
        return self.request.num_prompt

    def read(self, outputs: Sequence[EngineOutput]) -> ChoicePiece | None:
        """Joins all outputs into one piece; returns None if the answer has already ended.

        Outputs after a stop string that the reader found are not shown: only their statistics are kept.
        """
        piece = None if self.finish_reason is not None else ChoicePiece()
        for output in outputs:
            self.statistics = output.statistics or self.statistics
            if piece is None or self.finish_reason is not None:
                continue
            if output.error is not None:
                status = 400 if output.finish_reason == "refused" else 500
                raise ApiError(status, f"the request failed: {output.error}", code="generation_failed")
            self.num_cached = output.num_cached
            piece.join(self._count(self.reader.push(output)))
        return piece

    def _count(self, piece: ChoicePiece) -> ChoicePiece:
        self.num_output += len(piece.token_ids)
        self.num_reasoning += piece.num_reasoning
        self.finish_reason = piece.finish_reason
        return piece


class ChatReader:
    """Reads the parts of an assistant's message. Stop strings count in its content, not in its reasoning.

    If the message continues one of the prompt, `begun` are the tokens of that message's header, and `echoed` is the
    part of its text that belongs to the answer.
    """

    def __init__(
        self, harmony: Harmony, params: SamplingParams, begun: Sequence[int] = (), *, echoed: str = ""
    ) -> None:
        self.stream = HarmonyStream(harmony)
        self._begun = [delta for token in begun for delta in self.stream.push(token)]
        if echoed:
            self._begun.append(TextDelta(index=self._begun[-1].index, text=echoed))
        self._special_ids = frozenset(harmony.tokenizer.special_ids.values())
        self._params = params
        self._filter = StopFilter(params.stop, include=params.include_stop_str_in_output)
        self._num_tokens = 0
        self._kind: str | None = None  # of the open part
        self._index = 0  # of the part that was opened last

    def push(self, output: EngineOutput) -> ChoicePiece:
        self._num_tokens += len(output.token_ids)
        piece = ChoicePiece(token_ids=output.token_ids, prompt_logprobs=output.prompt_logprobs or [])
        self._continue(piece)
        for token in output.token_ids:
            self._show(self.stream.push(token), piece)
            is_text = token not in self._special_ids
            piece.num_reasoning += is_text and self._kind == "reasoning"
            if output.logprobs is not None and is_text and self._kind == "content":
                piece.logprobs.append(output.logprobs)
        if self._filter.matched is None and output.finish_reason is not None:
            self._show(self.stream.finish(), piece)
            self._flush(piece)
        if self._filter.matched is not None:
            piece.finish_reason, piece.stop_reason = "stop", self._filter.matched
        elif output.finish_reason is not None:
            piece.finish_reason = _as_finish_reason(self.stream.message.finish_reason(output.finish_reason))
        return piece

    def _continue(self, piece: ChoicePiece) -> None:
        """Adds the part of the message that the prompt has begun to the first piece."""
        begun, self._begun = self._begun, []
        for delta in begun:
            if isinstance(delta, TextDelta):
                piece.deltas.append(delta)
            else:
                self._show([delta], piece)

    def _show(self, deltas: Sequence[Delta], piece: ChoicePiece) -> None:
        """Adds deltas to the piece, content only as far as it cannot be part of a stop string."""
        for delta in deltas:
            match delta:
                case Begin():
                    self._kind, self._index = delta.kind, delta.index
                case TextDelta() if self._kind == "content":
                    delta = self._filtered(delta)
                case End():
                    self._flush(piece)
                    self._kind = None
            if not isinstance(delta, TextDelta) or delta.text:
                piece.deltas.append(delta)
            if self._filter.matched is not None:
                return

    def _filtered(self, delta: TextDelta) -> TextDelta:
        shown = self._filter.push(delta.text, can_stop=self._num_tokens > self._params.min_tokens)
        return delta if shown == delta.text else TextDelta(index=delta.index, text=shown)

    def _flush(self, piece: ChoicePiece) -> None:
        """Adds text that was held back as the possible start of a stop string."""
        if rest := self._filter.flush():
            piece.deltas.append(TextDelta(index=self._index, text=rest))


class TextReader:
    """Reads the plain text of a completion."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, *, skips_special: bool = False) -> None:
        self._text = tokenizer.stream()
        self._skipped = frozenset(tokenizer.special_ids.values()) if skips_special else frozenset()
        self._params = params
        self._filter = StopFilter(params.stop, include=params.include_stop_str_in_output)
        self._num_tokens = 0

    def push(self, output: EngineOutput) -> ChoicePiece:
        self._num_tokens += len(output.token_ids)
        is_stopped = output.finish_reason == "stop"
        shown = output.token_ids[:-1] if is_stopped else output.token_ids  # a stop token is not text
        text = "".join(self._text.push(token) for token in shown if token not in self._skipped)
        if output.finish_reason is not None:
            text += self._text.flush()
        piece = ChoicePiece(
            text=self._filter.push(text, can_stop=self._num_tokens > self._params.min_tokens),
            token_ids=output.token_ids,
            logprobs=[] if output.logprobs is None else [output.logprobs],
            prompt_logprobs=output.prompt_logprobs or [],
        )
        if self._filter.matched is not None:
            piece.finish_reason, piece.stop_reason = "stop", self._filter.matched
        elif output.finish_reason is not None:
            piece.finish_reason = _as_finish_reason(output.finish_reason)
            piece.text += self._filter.flush()
        return piece


class PromptReader:
    """Reads the logprobs of the prompt for a completion of 0 tokens. The one token drawn is not shown."""

    def push(self, output: EngineOutput) -> ChoicePiece:
        return ChoicePiece(
            prompt_logprobs=output.prompt_logprobs or [],
            finish_reason=None if output.finish_reason is None else "length",
        )


def _as_finish_reason(word: str) -> FinishReason:
    """Returns the engine's finish reason as a type of the API; errors are handled before."""
    assert word in ("stop", "length", "tool_calls"), word
    return cast(FinishReason, word)
