"""Masks of the tokens that a grammar allows next, computed by llguidance with the checkpoint's tokenizer.

    grammars = Grammars.of(directory)
    grammars.prepare()                       # seconds for a large vocabulary; otherwise done for the first mask
    request = grammars.bind(request)         # milliseconds, or microseconds for a grammar in the cache
    mask = request.mask
    mask.allowed(generated)                  # bool [V], about 100 us for 200,000 tokens

llguidance is imported with the first grammar, so that everything else runs without it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

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

T = TypeVar("T")
CACHE_SIZE = 64  # compiled grammars
MOST_COST_S = 8.0  # of the cached grammars together; memory grows by up to 80 MB per second of work
MOST_ERROR = 500  # characters; a panic of the library comes with its stack
STACK_BYTES = 16 << 20  # the compiler recurses along the grammar; servers try grammars with half as much
SLOW_S = 0.005  # a mask that takes longer delays the other requests of a step
DECAY = 0.8  # of the time that a mask is expected to take, per mask
GROWING_S = 0.001  # a mask that takes longer adds states to the grammar's lexer
MASK_THREADS = 2
# llguidance holds the GIL while it reads a token, even in a thread of its own, so all other requests wait. In an
# ambiguous grammar the time grows with the square of the text's length.
MOST_READ_S = 0.02


class CompiledGrammar:
    """A grammar and the work that went into it. Requests with the same grammar share its lexer, which grows."""

    def __init__(self, matcher: LLMatcher, seconds: float) -> None:
        self.matcher = matcher
        self.cost_s = seconds
        self._expected_s = 0.0

    @property
    def is_slow(self) -> bool:
        return self._expected_s > SLOW_S

    def count_mask(self, seconds: float) -> None:
        self._expected_s = max(seconds, DECAY * self._expected_s)
        if seconds > GROWING_S:
            self.cost_s += seconds

    def retire(self) -> None:
        """Has the next request compile it anew: its lexer has reached a limit."""
        self.cost_s = inf


class Grammars:
    def __init__(self, directory: Path, vocab_size: int) -> None:
        self._path = directory / "tokenizer.json"
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._cached: OrderedDict[str, CompiledGrammar] = OrderedDict()  # least recently used first
        self._threads: ThreadPoolExecutor | None = None  # for masks of slow grammars

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

    def bind(self, request: Request) -> Request:
        """Adds the mask of the request's grammar, if it has one, in any thread.

        Raises RequestError if the grammar is invalid. The first mask is computed here, because it is often the
        slowest.
        """
        if request.params.grammar is None:
            return request
        mask = self.mask(request.params.grammar)
        mask.allowed(())
        return replace(request, mask=mask)

    def mask(self, text: str) -> GrammarMask:
        """Returns a new mask, for one request."""
        grammar = self._find(text)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MASK_THREADS, thread_name_prefix="masks")
        return GrammarMask(grammar, self._vocab_size, self._threads)

    def _find(self, text: str) -> CompiledGrammar:
        for retired in [name for name, grammar in self._cached.items() if grammar.cost_s == inf]:
            del self._cached[retired]
        grammar = self._cached.pop(text, None) or self._compile(text)
        self._cached[text] = grammar
        while len(self._cached) > 1 and self._has_too_many:
            self._cached.popitem(last=False)
        return grammar

    @property
    def _has_too_many(self) -> bool:
        cost_s = sum(grammar.cost_s for grammar in self._cached.values())
        return len(self._cached) > CACHE_SIZE or cost_s > MOST_COST_S

    def _compile(self, text: str) -> CompiledGrammar:
        self.prepare()
        from llguidance import LLMatcher, LLParserLimits

        assert self._tokenizer is not None
        tokenizer, limits = self._tokenizer, LLParserLimits(verbose_errors=False)
        with panics_as(RequestError, "the grammar cannot be used: llguidance fails on it"):
            matcher, seconds = call_with_stack(
                STACK_BYTES, lambda: _time(lambda: LLMatcher(tokenizer, text, log_level=0, limits=limits))
            )
        if matcher.is_error():
            raise RequestError(f"the grammar cannot be used: {matcher.get_error()[:MOST_ERROR]}")
        return CompiledGrammar(matcher, seconds)


class GrammarMask:
    """The grammar's state along the tokens of one request."""

    def __init__(self, grammar: CompiledGrammar, vocab_size: int, threads: ThreadPoolExecutor) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher.deep_copy()
        self._vocab_size = vocab_size
        self._threads = threads
        self._num_read = 0
        self._num_consumed = 0  # of those: the matcher takes none after the end of the grammar
        self._is_too_slow = False
        self._bits = np.empty((vocab_size + 31) // 32, dtype=np.int32)
        self._latest: tuple[int, Tensor] | None = None  # number of tokens, and the mask after them
        self._pending: Future[None] | None = None  # of the next mask, computed by a thread

    def is_ready(self, token_ids: Sequence[int]) -> bool:
        """Returns whether `allowed` is fast. The masks of a slow grammar are computed by threads, begun here."""
        if self._pending is not None:
            return self._pending.done()
        if not self._grammar.is_slow or self._has_latest(token_ids):
            return True
        self._pending = self._threads.submit(self._compute, list(token_ids))
        return False

    def allowed(self, token_ids: Sequence[int]) -> Tensor:
        """Returns bool [V]; only tokens that are new since the last call are parsed.

        No token is allowed if the grammar exceeded its complexity limits. A completed grammar allows the end of
        the text.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
        if not self._has_latest(token_ids):
            self._compute(token_ids)
        assert self._latest is not None
        return self._latest[1]

    def count_allowed(self, token_ids: Sequence[int], draft_ids: Sequence[int]) -> int:
        """Returns how many first `draft_ids` the grammar allows after `token_ids`; 0 for a slow grammar."""
        if self._grammar.is_slow or self._pending is not None:
            return 0
        self.allowed(token_ids)
        if self._is_too_slow or self._matcher.is_error() or self._matcher.is_stopped():
            return 0
        return int(self._matcher.validate_tokens(list(draft_ids)))

    def allowed_along(self, token_ids: Sequence[int], draft_ids: Sequence[int]) -> list[Tensor]:
        """Returns the masks after `token_ids` and after each of `draft_ids`; the state stays after `token_ids`."""
        masks, latest = [self.allowed(token_ids)], self._latest
        num_consumed, is_too_slow = self._num_consumed, self._is_too_slow
        for count in range(1, len(draft_ids) + 1):
            self._compute([*token_ids, *draft_ids[:count]])
            assert self._latest is not None
            masks.append(self._latest[1])
        self._latest, self._is_too_slow = latest, is_too_slow
        self._roll_back(len(token_ids), num_consumed)
        return masks

    def _roll_back(self, num_read: int, num_consumed: int) -> None:
        """Returns to an earlier state. After an error that is the first one: all tokens are read again."""
        if self._matcher.is_error():
            self._matcher.reset()
            num_read = num_consumed = 0
        elif self._num_consumed > num_consumed:
            self._matcher.rollback(self._num_consumed - num_consumed)
        self._num_read, self._num_consumed = num_read, num_consumed

    def _has_latest(self, token_ids: Sequence[int]) -> bool:
        return self._latest is not None and self._latest[0] == len(token_ids)

    def _compute(self, token_ids: Sequence[int]) -> None:
        mask, seconds = _time(lambda: self._advance(token_ids))
        self._grammar.count_mask(seconds)
        self._latest = len(token_ids), mask

    def _advance(self, token_ids: Sequence[int]) -> Tensor:
        if len(token_ids) < self._num_read:
            self._matcher.reset()
            self._num_read, self._num_consumed, self._is_too_slow = 0, 0, False
        for token in token_ids[self._num_read :]:
            self._num_read += 1
            if not (self._is_too_slow or self._matcher.is_stopped()):
                self._num_consumed += 1
                _, seconds = _time(partial(self._matcher.consume_token, token))
                self._is_too_slow = seconds > MOST_READ_S
        has_failed = self._is_too_slow or self._matcher.is_error()
        if not has_failed:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if has_failed or self._matcher.is_error():
            self._grammar.retire()
            return torch.zeros(self._vocab_size, dtype=torch.bool)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocab_size)
        return torch.from_numpy(bits.view(np.bool_))


def _time(work: Callable[[], T]) -> tuple[T, float]:
    """Returns the result of `work` and the CPU time in seconds that this thread took for it."""
    start = time.thread_time()
    return work(), time.thread_time() - start
