"""A chat partner: a model loaded in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec

from firesteel.chat.harmony import Harmony
from firesteel.chat.message import TextDelta
from firesteel.cli.chat.partner import AnswerOptions, AnswerPiece, Turn
from firesteel.llm import LLM
from firesteel.server.chat.conversation import render_chat
from firesteel.server.generate.choice import ChatReader
from firesteel.server.generate.sampling import read_defaults
from firesteel.server.openai.requests import ChatMessage, ChatRequest
from firesteel.types import SamplingParams


class LocalPartner:
    """Renders and parses conversations with the server's code, so both give the same answers."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._harmony = Harmony(llm.tokenizer)
        self._defaults = read_defaults(llm.directory)
        self.name = f"{llm.settings.config.model.model} on {llm.device.name}"

    def answer(self, turns: list[Turn], options: AnswerOptions) -> Generator[AnswerPiece, None, None]:
        messages = msgspec.convert(turns, list[ChatMessage])
        asked = ChatRequest(messages=messages, reasoning_effort=options.effort)  # type: ignore[arg-type]
        prompt = self._harmony.encode_for_completion(render_chat(asked))
        params = self._params(options)
        reader, num_tokens = ChatReader(self._harmony, params), 0
        with interrupts_between_steps() as check, closing(self._llm.outputs(prompt, params)) as outputs:
            for output in outputs:
                made = reader.push(output)
                num_tokens += len(made.token_ids)
                texts = {"content": "", "reasoning": ""}
                for delta in made.deltas:
                    kind = reader.stream.message.parts[delta.index].kind
                    if isinstance(delta, TextDelta) and kind in texts:
                        texts[kind] += delta.text
                yield AnswerPiece(**texts, num_tokens=num_tokens, finish_reason=made.finish_reason)
                check()

    def _params(self, options: AnswerOptions) -> SamplingParams:
        given: dict[str, Any] = {"max_tokens": options.max_tokens, "temperature": options.temperature}
        given = {name: value for name, value in given.items() if value is not None}
        stops = tuple(self._harmony.stop_token_ids)
        return SamplingParams(
            **{"max_tokens": self._llm.max_context, **self._defaults, **given}, stop_token_ids=stops
        )


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Delays Ctrl-C until the yielded function is called: inside a step it would leave the engine inconsistent.

    A second Ctrl-C is not delayed.
    """
    is_wanted = False

    def note(number: int, frame: object) -> None:
        nonlocal is_wanted
        if is_wanted:
            raise KeyboardInterrupt
        is_wanted = True

    def check() -> None:
        if is_wanted:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
