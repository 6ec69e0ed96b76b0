"""One choice of an answer: what the engine gives, turned into text that a client may see; knows no HTTP.

A reader is given the engine's outputs and makes a piece of each; every token is in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from firesteel.chat.harmony import Harmony
from firesteel.chat.message import Begin, Delta, End, Text
from firesteel.chat.stop import StopFilter
from firesteel.chat.stream import HarmonyStream
from firesteel.chat.tokenizer import Tokenizer
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.server.openai.answers import FinishReason
from firesteel.types import RequestStatistics, SamplingParams, StepOutput


@dataclass(slots=True, kw_only=True)
class Piece:
    """What outputs of the engine let a client see."""

    deltas: list[Delta] = field(default_factory=list)  # of a chat
    text: str = ""  # of a completion
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the next tokens of the prompt
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None  # the stop string that was found

    def join(self, later: Piece) -> None:
        self.deltas += later.deltas
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.prompt_logprobs += later.prompt_logprobs
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason


class Reader(Protocol):
    """Makes pieces of the outputs of one request."""

    tally: Tally

    def push(self, output: StepOutput) -> Piece: ...


@dataclass(slots=True, kw_only=True)
class Tally:
    """Tokens of one choice so far."""

    num_prompt: int
    num_cached: int = 0
    num_output: int = 0
    num_reasoning: int = 0
    finish_reason: FinishReason | None = None
    statistics: RequestStatistics | None = None

    def count(self, output: StepOutput) -> None:
        self.num_cached = output.num_cached
        self.num_output += len(output.token_ids)
        self.statistics = output.statistics or self.statistics


class ChatReader:
    """The parts of an assistant's message. Stop strings are looked for in its content, not in its reasoning."""

    def __init__(self, harmony: Harmony, params: SamplingParams, *, num_prompt: int) -> None:
        self.tally = Tally(num_prompt=num_prompt)
        self.stream = HarmonyStream(harmony)
        self._marks = frozenset(harmony.tokenizer.special_ids.values())
        self._params = params
        self._filter = StopFilter(params.stop, include=params.include_stop_str_in_output)
        self._kind: str | None = None  # of the part that is open
        self._index = 0  # of the part that was opened last

    def push(self, output: StepOutput) -> Piece:
        self.tally.count(output)
        piece = Piece(token_ids=output.token_ids)
        for token in output.token_ids:
            self._show(self.stream.push(token), piece)
            self.tally.num_reasoning += self._kind == "reasoning" and token not in self._marks
            if output.logprobs is not None and self._kind == "content" and token not in self._marks:
                piece.logprobs.append(output.logprobs)
        if self._filter.matched is None and output.finish_reason is not None:
            self._show(self.stream.finish(), piece)
            self._flush(piece)
        self._finish(output, piece)
        return piece

    def _show(self, deltas: Sequence[Delta], piece: Piece) -> None:
        """Passes deltas on, content only as far as no stop string may be in it."""
        for delta in deltas:
            match delta:
                case Begin():
                    self._kind, self._index = delta.kind, delta.index
                case Text() if self._kind == "content":
                    delta = self._filtered(delta)
                case End():
                    self._flush(piece)
                    self._kind = None
            if not isinstance(delta, Text) or delta.text:
                piece.deltas.append(delta)
            if self._filter.matched is not None:
                return

    def _filtered(self, delta: Text) -> Text:
        can_stop = self.tally.num_output > self._params.min_tokens
        shown = self._filter.push(delta.text, can_stop=can_stop)
        return delta if shown == delta.text else Text(index=delta.index, text=shown)

    def _flush(self, piece: Piece) -> None:
        """Text that might have begun a stop string, and did not."""
        if rest := self._filter.flush():
            piece.deltas.append(Text(index=self._index, text=rest))

    def _finish(self, output: StepOutput, piece: Piece) -> None:
        if self._filter.matched is not None:
            piece.finish_reason, piece.stop_reason = "stop", self._filter.matched
        elif output.finish_reason is not None:
            piece.finish_reason = _reason(self.stream.message.finish_reason(output.finish_reason))
        self.tally.finish_reason = piece.finish_reason


class TextReader:
    """Plain text of a completion."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, *, num_prompt: int) -> None:
        self.tally = Tally(num_prompt=num_prompt)
        self._text = tokenizer.stream()
        self._params = params
        self._filter = StopFilter(params.stop, include=params.include_stop_str_in_output)

    def push(self, output: StepOutput) -> Piece:
        self.tally.count(output)
        is_stopped = output.finish_reason == "stop"
        shown = output.token_ids[:-1] if is_stopped else output.token_ids  # a stop token is not text
        text = "".join(map(self._text.push, shown))
        if output.finish_reason is not None:
            text += self._text.flush()
        piece = Piece(
            text=self._filter.push(text, can_stop=self.tally.num_output > self._params.min_tokens),
            token_ids=output.token_ids, logprobs=[] if output.logprobs is None else [output.logprobs],
            prompt_logprobs=output.prompt_logprobs or [],
        )  # fmt: skip
        if self._filter.matched is not None:
            piece.finish_reason, piece.stop_reason = "stop", self._filter.matched
        elif output.finish_reason is not None:
            piece.finish_reason = _reason(output.finish_reason)
            piece.text += self._filter.flush()
        self.tally.finish_reason = piece.finish_reason
        return piece


class PromptReader:
    """Of a completion of no tokens: the logprobs of its prompt. The one token that is drawn is not shown."""

    def __init__(self, *, num_prompt: int) -> None:
        self.tally = Tally(num_prompt=num_prompt)

    def push(self, output: StepOutput) -> Piece:
        self.tally.count(replace(output, token_ids=[]))
        if output.finish_reason is not None:
            self.tally.finish_reason = "length"
        return Piece(prompt_logprobs=output.prompt_logprobs or [], finish_reason=self.tally.finish_reason)


def _reason(word: str) -> FinishReason:
    """The engine's word for an end that is no error."""
    assert word in ("stop", "length", "tool_calls"), word
    return cast(FinishReason, word)
