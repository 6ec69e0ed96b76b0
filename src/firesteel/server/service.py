"""The service that all endpoints share: engine, tokenizer, limits, metrics and the model's names."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from firesteel.chat.harmony import Harmony, Message
from firesteel.chat.tokenizer import Tokenizer
from firesteel.config import Config, list_keys
from firesteel.engine.process.waiters import OutputStream
from firesteel.errors import EngineFailed, RequestError
from firesteel.hub import SHORT_NAMES
from firesteel.llm import read_stop_ids
from firesteel.server.generate.choice import Choice, ChoicePiece
from firesteel.server.generate.engine import ServedEngine
from firesteel.server.generate.prompt import Words, encode_bad_words
from firesteel.server.generate.sampling import read_defaults
from firesteel.server.grammar.pool import GrammarTrials
from firesteel.server.http.admission import Admission
from firesteel.server.http.errors import RETRY_S, ApiError
from firesteel.server.http.keys import KeyCheck
from firesteel.server.observe.access_log import LogEntry
from firesteel.server.observe.metrics import Metrics
from firesteel.server.openai.answers import CompletionDetails, PromptDetails, Usage
from firesteel.server.openai.limits import MAX_CHARACTERS_TO_ENCODE
from firesteel.types import Request, SamplingParams

LONG_TEXT = 8192  # characters: longer texts are tokenized outside the event loop
VERY_LONG_TEXT = 256 << 10  # characters: longer texts take a large part of a second
MESSAGE_CHARACTERS = 64  # counted per message for its header
T = TypeVar("T")
Ending = Literal["prompt", "open", "closed"]


class ContextExceeded(ApiError):
    """A prompt that leaves no room for an answer."""

    def __init__(self, num_prompt: int, max_context: int, *, param: str) -> None:
        # Clients recognise OpenAI's first sentence and shorten the prompt, or ask another model.
        super().__init__(
            400,
            f"This model's maximum context length is {max_context} tokens. However, the prompt has "
            f"{num_prompt} tokens, and the answer needs at least one: shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )
        self.num_prompt = num_prompt
        self.max_context = max_context


class Service:
    def __init__(self, engine: ServedEngine, directory: Path, config: Config) -> None:
        self.engine = engine
        self.config = config
        self.directory = directory
        self.tokenizer = Tokenizer.load(directory)
        self.tokenizer.check_fits(engine.facts.vocab_size)
        self.harmony = Harmony(self.tokenizer)
        self.stop_ids = read_stop_ids(directory)
        self.defaults: dict[str, Any] = read_defaults(directory)
        given = config.model.model
        names = [name.strip() for name in config.server.served_model_name.split(",") if name.strip()]
        self.root = SHORT_NAMES.get(given, given)
        self.names = names or [given]
        self.created = int(time.time())
        self.admission = Admission(engine.facts.max_num_seqs + config.server.max_waiting)
        self.keys = KeyCheck(list_keys(config.server.api_key, config.server.api_key_file))
        self.metrics = Metrics(self.names[0])
        self.trials = GrammarTrials(config.server, self.metrics.count_stopped_trial)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="very-long-texts")

    def close(self) -> None:
        """Ends the child processes and drops texts that wait to be tokenized."""
        self.trials.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def max_context(self) -> int:
        return self.engine.facts.max_context

    def check_model(self, name: str | None) -> str:
        """Returns the name to answer with."""
        if name is None or name in self.names:
            return name or self.names[0]
        known = ", ".join(self.names)
        raise ApiError(
            404, f"model {name!r:.200} not found; available: {known}", param="model", code="model_not_found"
        )

    def check_ready(self) -> None:
        """Refuses requests while another engine is started: that may take minutes."""
        if self.engine.failure is not None:
            raise EngineFailed(self.engine.failure)
        if not self.engine.is_ready:
            raise ApiError(503, "the engine is restarting", code="engine_starting", retry_s=RETRY_S)

    async def encode(self, text: str) -> list[int]:
        with naming_field("prompt"):
            check_length(len(text))
            return await self.run_off_loop(len(text), lambda: self.tokenizer.encode(text))

    async def encode_chat(self, messages: Sequence[Message], *, ending: Ending = "prompt") -> list[int]:
        """Encodes a conversation that ends with the opening of an answer, with an open message, or with neither."""
        encode = {
            "prompt": self.harmony.encode_for_completion,
            "open": self.harmony.encode_to_continue,
            "closed": self.harmony.encode,
        }[ending]
        size = sum(len(message.content) + MESSAGE_CHARACTERS for message in messages)
        with naming_field("messages"):
            check_length(size)
            return await self.run_off_loop(size, lambda: encode(messages))

    async def encode_bad_words(self, words: Sequence[str] | None) -> Words:
        """Returns the tokens of each word, in both of its places."""
        if not words:
            return ()
        with naming_field("bad_words"):
            return await self.run_off_loop(sum(map(len, words)), lambda: encode_bad_words(words, self.tokenizer))

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await self.run_off_loop(len(token_ids), lambda: self.tokenizer.decode(token_ids))

    async def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Returns the text of each token."""
        decode = self.tokenizer.decode
        return await self.run_off_loop(len(token_ids), lambda: [decode([token]) for token in token_ids])

    def room_after(self, num_prompt: int, *, param: str = "messages") -> int:
        """Returns the number of tokens that may follow a prompt."""
        if num_prompt >= self.max_context:
            raise ContextExceeded(num_prompt, self.max_context, param=param)
        return self.max_context - num_prompt

    def salt_of(self, owner: str, cache_salt: str | None) -> str:
        """Returns the salt of a client's cached pages: a client finds its own pages, unless keys share prefixes."""
        owner = "" if self.config.server.share_prefixes else owner
        return f"{owner}:{cache_salt or ''}" if owner or cache_salt else ""

    def requests(
        self,
        name: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        count: int,
        stops: frozenset[int],
        cache_salt: str,
    ) -> list[Request]:
        """Returns one request per choice; each draws its own random numbers."""
        return [
            Request(
                request_id=f"{name}-{number}",
                token_ids=token_ids,
                stops=stops,
                cache_salt=cache_salt,
                params=replace(params, seed=_nth_seed(params.seed, number)),
            )
            for number in range(count)
        ]

    async def run(
        self, choices: Sequence[Choice], entry: LogEntry
    ) -> AsyncGenerator[tuple[int, ChoicePiece], None]:
        """Yields pieces of all choices with the index of their choice, as they come.

        One failure ends all choices; closing the generator ends their requests.
        """
        self.check_ready()
        start = time.monotonic()
        with self.admission.admit(len(choices)):
            try:
                async with self._open(choices) as stream:
                    while outputs := await stream.take():
                        for index, new in outputs.items():
                            piece = choices[index].read(new)
                            if choices[index].finish_reason is not None:
                                stream.finish(index)
                            if piece is not None:
                                self.metrics.count_tokens(len(piece.token_ids))
                                yield index, piece
            finally:
                entry.note_end(choices)
                for choice in choices:
                    self.metrics.count_choice(choice, time.monotonic() - start)

    @asynccontextmanager
    async def _open(self, choices: Sequence[Choice]) -> AsyncIterator[OutputStream]:
        """Opens the stream of the choices' outputs; it fails if the server stops before its end."""
        async with self.engine.open([choice.request for choice in choices]) as stream:
            with self.admission.drain.generating(stream.fail):
                yield stream

    def now(self) -> int:
        return int(time.time())

    async def run_off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Runs work on a text of `size` characters or tokens, in a thread if it is long.

        Very long ones have a thread of their own, so that no other request waits.
        """
        if size < LONG_TEXT:
            return work()
        if size < VERY_LONG_TEXT:
            return await asyncio.to_thread(work)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def check_length(num_characters: int) -> None:
    """Raises RequestError for a text that would take many seconds to tokenize."""
    if num_characters > MAX_CHARACTERS_TO_ENCODE:
        raise RequestError(
            f"the text has {num_characters} characters; at most {MAX_CHARACTERS_TO_ENCODE} are tokenized"
        )


@contextmanager
def naming_field(param: str) -> Iterator[None]:
    """Turns the error of a text that cannot be tokenized into one that names the field of the request."""
    try:
        yield
    except RequestError as error:
        raise ApiError(400, str(error), param=param, code="invalid_value") from error


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def count_usage(choices: Sequence[Choice], *, num_prompts: int = 1, is_chat: bool = True) -> Usage:
    """Sums the tokens of `num_prompts` prompts with equally many choices each, in order."""
    per_prompt = len(choices) // num_prompts
    firsts = choices[::per_prompt]
    prompt = sum(choice.num_prompt for choice in firsts)
    output = sum(choice.num_output for choice in choices)
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(choice.num_cached for choice in firsts)),
    )
    if is_chat:
        reasoning = sum(choice.num_reasoning for choice in choices)
        usage.completion_tokens_details = CompletionDetails(reasoning_tokens=reasoning)
    return usage


def _nth_seed(seed: int, number: int) -> int:
    return (seed + number) % 2**63
