"""Masks of the tokens that a grammar allows next, computed by llguidance with the checkpoint's tokenizer.

    grammars = Grammars.of(directory)
    grammars.prepare()                       # seconds for a large vocabulary; otherwise done for the first mask
    request = grammars.bind(request)         # milliseconds, or microseconds for a grammar in the cache
    mask = request.mask
    mask.allowed(generated)                  # bool [V], about 100 us for 200,000 tokens

llguidance is imported with the first grammar, so that everything else runs without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from firesteel.errors import RequestError, UserError
from firesteel.model.spec import read_spec
from firesteel.types import Request
from firesteel.untrusted.panics import panics_as
from firesteel.untrusted.stack import call_with_stack

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHE_SIZE = 128  # compiled grammars
MOST_ERROR = 500  # characters; a panic of the library comes with its stack
STACK_BYTES = 16 << 20  # the compiler recurses along the grammar; servers try grammars with half as much


class Grammars:
    def __init__(self, directory: Path, vocab_size: int) -> None:
        self._path = directory / "tokenizer.json"
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._compiled = lru_cache(maxsize=CACHE_SIZE)(self._compile)

    @classmethod
    def of(cls, directory: Path) -> Grammars:
        return cls(directory, read_spec(directory).vocab_size)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Prepares in another thread while the body runs. The first request with a grammar reports a failure."""
        thread = Thread(target=self._try_to_prepare)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _try_to_prepare(self) -> None:
        with suppress(UserError):
            self.prepare()

    def prepare(self) -> None:
        """Raises UserError if the checkpoint has no usable tokenizer."""
        if self._tokenizer is not None:
            return
        try:
            from llguidance import LLTokenizer

            self._tokenizer = LLTokenizer(str(self._path), n_vocab=self._vocab_size)
        except ImportError as error:
            raise UserError("grammars need the package llguidance: pip install llguidance") from error
        except ValueError as error:
            raise UserError(f"grammars cannot use the checkpoint's tokenizer: {error}") from error

    def compile(self, text: str) -> None:
        """Compiles ahead of `bind`, in any thread. `bind` reports a failure to the request."""
        with suppress(UserError):
            self._compiled(text)

    def bind(self, request: Request) -> Request:
        """Adds the mask of the request's grammar, if it has one. Raises RequestError if the grammar is invalid."""
        if request.params.grammar is None:
            return request
        return replace(request, mask=self.mask(request.params.grammar))

    def mask(self, text: str) -> GrammarMask:
        """Returns a new mask, for one request."""
        return GrammarMask(self._compiled(text).deep_copy(), self._vocab_size)

    def _compile(self, text: str) -> LLMatcher:
        self.prepare()
        from llguidance import LLMatcher, LLParserLimits

        assert self._tokenizer is not None
        tokenizer, limits = self._tokenizer, LLParserLimits(verbose_errors=False)
        with panics_as(RequestError, "the grammar cannot be used: llguidance fails on it"):
            matcher = call_with_stack(STACK_BYTES, lambda: LLMatcher(tokenizer, text, log_level=0, limits=limits))
        if matcher.is_error():
            raise RequestError(f"the grammar cannot be used: {matcher.get_error()[:MOST_ERROR]}")
        return matcher


class GrammarMask:
    """The grammar's state along the tokens of one request."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_read = 0
        self._bits = np.empty((vocab_size + 31) // 32, dtype=np.int32)

    def allowed(self, token_ids: Sequence[int]) -> Tensor:
        """Returns bool [V]; only tokens that are new since the last call are parsed.

        No token is allowed if the grammar exceeded its complexity limits. A completed grammar allows the end of
        the text.
        """
        if len(token_ids) < self._num_read:
            self._matcher.reset()
            self._num_read = 0
        for token in token_ids[self._num_read :]:
            self._num_read += 1
            if not self._matcher.is_stopped():
                self._matcher.consume_token(token)
        if self._matcher.is_error():
            return torch.zeros(self._vocab_size, dtype=torch.bool)
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocab_size)
        return torch.from_numpy(bits.view(np.bool_))
