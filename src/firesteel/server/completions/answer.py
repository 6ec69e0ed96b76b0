"""A completion's choice in the format of the OpenAI API, in chunks or whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET, UnsetType

from firesteel.chat.tokenizer import Tokenizer
from firesteel.server.generate.choice import ChoicePiece
from firesteel.server.generate.prompt import spell_prompt_logprobs, spell_token
from firesteel.server.openai.answers import CompletionChoice, CompletionLogprobs, PromptLogprobs
from firesteel.server.openai.requests import CompletionRequest
from firesteel.types import TokenLogprobs


class CompletionAnswer:
    """One choice, taken in parts or whole."""

    def __init__(self, index: int, request: CompletionRequest, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._num_top = request.logprobs
        self._num_prompt_top = request.prompt_logprobs
        self._names_ids = bool(request.return_tokens_as_token_ids)
        self._shows_ids = bool(request.return_token_ids)
        self._prompt = list(prompt)
        self._is_first = True
        self._text = tokenizer.decode(prompt) if request.echo else ""
        self._echoed = self._prompt if request.echo else []
        self._offset = 0  # characters taken so far
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._last = ChoicePiece()

    @property
    def has_news(self) -> bool:
        """True if there is something to send. An echoed prompt waits for the first token and its logprobs."""
        return bool((self._text and self._ids) or self._last.finish_reason)

    @property
    def num_scores(self) -> int:
        """Number of logprobs that `take` spells."""
        scored = [*(self._prompt_logprobs if self._is_first else ()), *self._logprobs]
        return sum(1 + len(logprobs.top) for logprobs in scored)

    def add(self, piece: ChoicePiece) -> None:
        self._text += piece.text
        self._ids += piece.token_ids
        self._logprobs += piece.logprobs
        self._prompt_logprobs += piece.prompt_logprobs
        self._last = piece

    def take(self) -> CompletionChoice:
        """Returns what was added since the last call."""
        choice = CompletionChoice(
            index=self._index,
            text=self._text,
            finish_reason=self._last.finish_reason,
            stop_reason=self._last.stop_reason,
            logprobs=self._columns(),
            token_ids=self._ids if self._shows_ids else UNSET,
            prompt_token_ids=self._prompt if self._shows_ids and self._is_first else UNSET,
            prompt_logprobs=self._score_prompt(),
        )
        self._offset += len(self._text)
        self._text, self._ids, self._logprobs, self._is_first, self._echoed = "", [], [], False, []
        return choice

    def _score_prompt(self) -> PromptLogprobs | UnsetType:
        if self._num_prompt_top is None:
            return UNSET
        scored = [shorten(logprobs, self._num_prompt_top) for logprobs in self._prompt_logprobs]
        return spell_prompt_logprobs(scored, self._tokenizer)

    def _columns(self) -> CompletionLogprobs | None:
        if self._num_top is None:
            return None
        columns = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        offset = self._offset
        rows: list[tuple[int, TokenLogprobs | None]] = []
        if self._echoed:
            rows.append((self._echoed[0], None))
            rows += [(scored.token_id, shorten(scored, self._num_top)) for scored in self._prompt_logprobs]
        rows += [(scored.token_id, scored) for scored in self._logprobs]
        for token, logprobs in rows:
            self._add_row(columns, token, logprobs, offset)
            offset += len(self._tokenizer.decode([token]))
        return columns

    def _add_row(self, columns: CompletionLogprobs, token: int, scored: TokenLogprobs | None, offset: int) -> None:
        top: Any = None
        if scored is not None:
            top = {self._spell(other): logprob for other, logprob in scored.top}
        columns.tokens.append(self._spell(token))
        columns.token_logprobs.append(None if scored is None else scored.logprob)
        assert columns.top_logprobs is not None
        columns.top_logprobs.append(top)
        columns.text_offset.append(offset)

    def _spell(self, token: int) -> str:
        return spell_token(token, self._tokenizer, as_id=self._names_ids)


def shorten(scored: TokenLogprobs, num_top: int) -> TokenLogprobs:
    """Returns the logprobs with at most `num_top` of the most likely tokens: more may have been computed."""
    return replace(scored, top=scored.top[:num_top])
