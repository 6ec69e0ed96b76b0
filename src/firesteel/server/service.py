"""What every endpoint shares: the engine, the tokenizer, the limits and the model's names; knows no endpoint."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from firesteel.chat.harmony import Harmony, Message
from firesteel.chat.tokenizer import Tokenizer
from firesteel.config import Config
from firesteel.errors import EngineDied
from firesteel.hub import SHORT_NAMES
from firesteel.llm import read_stop_ids
from firesteel.server.generate.choice import Piece, Reader, Tally
from firesteel.server.generate.generation import Engine, run_all
from firesteel.server.generate.sampling import read_defaults
from firesteel.server.http.admission import Admission, KeyCheck
from firesteel.server.http.errors import RETRY_S, ApiError
from firesteel.server.observe.access_log import Entry
from firesteel.server.observe.metrics import Metrics
from firesteel.server.openai.answers import CompletionDetails, PromptDetails, Usage
from firesteel.types import Request, SamplingParams

LONG_TEXT = 8192  # characters: longer ones are tokenised outside the event loop
T = TypeVar("T")


class Service:
    def __init__(self, engine: Engine, directory: Path, config: Config) -> None:
        self.engine = engine
        self.config = config
        self.tokenizer = Tokenizer.load(directory)
        self.harmony = Harmony(self.tokenizer)
        self.stop_ids = read_stop_ids(directory)
        self.defaults: dict[str, Any] = read_defaults(directory)
        given = config.model.model
        names = [name.strip() for name in config.server.served_model_name.split(",") if name.strip()]
        self.root = SHORT_NAMES.get(given, given)
        self.names = names or [given]
        self.created = int(time.time())
        self.admission = Admission(engine.facts.max_num_seqs + config.server.max_waiting)
        self.keys = KeyCheck(config.server.api_key)
        self.metrics = Metrics(self.names[0])

    @property
    def max_context(self) -> int:
        return self.engine.facts.max_context

    def check_model(self, name: str | None) -> str:
        """The name to answer with."""
        if name is None or name in self.names:
            return name or self.names[0]
        known = ", ".join(self.names)
        raise ApiError(
            404, f"the model {name!r:.200} is not served here, but {known}", param="model", code="model_not_found"
        )

    def check_ready(self) -> None:
        """Requests that come while another engine is started are sent away: that may take minutes."""
        if self.engine.failure is not None:
            raise EngineDied(self.engine.failure)
        if not self.engine.is_ready:
            raise ApiError(503, "the engine is being started again", code="engine_starting", retry_s=RETRY_S)

    async def encode(self, text: str) -> list[int]:
        return await self._aside(len(text), lambda: self.tokenizer.encode(text))

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        size = sum(len(message.content) for message in messages)
        return await self._aside(size, lambda: self.harmony.encode_for_completion(messages))

    def room_after(self, num_prompt: int) -> int:
        """Tokens that may follow a prompt."""
        if num_prompt >= self.max_context:
            raise ApiError(
                400, f"the prompt has {num_prompt} tokens, and this model's context is {self.max_context} tokens, "
                "the answer included: shorten the prompt", param="messages", code="context_length_exceeded",
            )  # fmt: skip
        return self.max_context - num_prompt

    def requests(
        self, name: str, token_ids: Sequence[int], params: SamplingParams, *, count: int, stops: frozenset[int]
    ) -> list[Request]:
        """One for each choice; each draws its own random numbers."""
        return [
            Request(
                request_id=f"{name}-{number}", token_ids=token_ids, stops=stops,
                params=replace(params, seed=_nth_seed(params.seed, number)),
            )
            for number in range(count)
        ]  # fmt: skip

    async def run(
        self, requests: Sequence[Request], readers: Sequence[Reader], entry: Entry
    ) -> AsyncGenerator[tuple[int, Piece], None]:
        """Pieces with the number of their choice, while the requests are within the limits."""
        self.check_ready()
        start, tallies = time.monotonic(), [reader.tally for reader in readers]
        with self.admission.admit(len(requests)):
            try:
                async with aclosing(run_all(self.engine, requests, readers)) as pieces:
                    async for number, piece in pieces:
                        self.metrics.count_tokens(len(piece.token_ids))
                        yield number, piece
            finally:
                entry.note_end(tallies)
                for tally in tallies:
                    self.metrics.count_choice(tally, time.monotonic() - start)

    def now(self) -> int:
        return int(time.time())

    async def _aside(self, num_characters: int, work: Callable[[], T]) -> T:
        return work() if num_characters < LONG_TEXT else await asyncio.to_thread(work)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def count_usage(tallies: Sequence[Tally], *, num_prompts: int = 1, is_chat: bool = True) -> Usage:
    """Of one prompt with several choices, or of several prompts with as many choices each."""
    choices = len(tallies) // num_prompts
    firsts = tallies[::choices]
    prompt = sum(tally.num_prompt for tally in firsts)
    output = sum(tally.num_output for tally in tallies)
    usage = Usage(
        prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(tally.num_cached for tally in firsts)),
    )  # fmt: skip
    if is_chat:
        reasoning = sum(tally.num_reasoning for tally in tallies)
        usage.completion_tokens_details = CompletionDetails(reasoning_tokens=reasoning)
    return usage


def _nth_seed(seed: int, number: int) -> int:
    return (seed + number) % 2**63
