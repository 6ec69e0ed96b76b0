"""Pieces of a completion's choice as the OpenAI API writes them; knows no engine and no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from firesteel.chat.tokenizer import Tokenizer
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.server.generate.choice import Piece
from firesteel.server.openai.answers import CompletionChoice, CompletionLogprobs
from firesteel.server.openai.requests import CompletionRequest


class CompletionAnswer:
    """One choice, given out in parts or whole."""

    def __init__(self, index: int, request: CompletionRequest, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._num_top = request.logprobs
        self._shows_ids = bool(request.return_token_ids)
        self._prompt = list(prompt)
        self._is_first = True
        self._text = tokenizer.decode(prompt) if request.echo else ""
        self._echoed = self._prompt if request.echo else []
        self._offset = 0  # of the text given out so far
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._last = Piece()

    @property
    def has_news(self) -> bool:
        """An echoed prompt waits for the first token: until then its logprobs come in pieces."""
        return bool((self._text and self._ids) or self._last.finish_reason)

    def add(self, piece: Piece) -> None:
        self._text += piece.text
        self._ids += piece.token_ids
        self._logprobs += piece.logprobs
        self._prompt_logprobs += piece.prompt_logprobs
        self._last = piece

    def take(self) -> CompletionChoice:
        """What has come since it was last taken."""
        choice = CompletionChoice(
            index=self._index, text=self._text, finish_reason=self._last.finish_reason,
            stop_reason=self._last.stop_reason, logprobs=self._columns(),
            token_ids=self._ids if self._shows_ids else UNSET,
            prompt_token_ids=self._prompt if self._shows_ids and self._is_first else UNSET,
        )  # fmt: skip
        self._offset += len(self._text)
        self._text, self._ids, self._logprobs, self._is_first, self._echoed = "", [], [], False, []
        return choice

    def _columns(self) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        made = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        offset = self._offset
        rows: list[tuple[int, TokenLogprobs | None]] = []
        if self._echoed:
            rows.append((self._echoed[0], None))
            rows += [(one.token_id, one) for one in self._prompt_logprobs]
        rows += [(one.token_id, one) for one in self._logprobs]
        for token, one in rows:
            text = self._tokenizer.decode([token])
            self._add_row(made, text, one, offset)
            offset += len(text)
        return made

    def _add_row(self, made: CompletionLogprobs, text: str, one: TokenLogprobs | None, offset: int) -> None:
        top: Any = None if one is None else {self._tokenizer.decode([token]): value for token, value in one.top}
        made.tokens.append(text)
        made.token_logprobs.append(None if one is None else one.logprob)
        assert made.top_logprobs is not None
        made.top_logprobs.append(top)
        made.text_offset.append(offset)
