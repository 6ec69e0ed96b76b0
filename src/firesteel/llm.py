"""The LLM class: a checkpoint with its tokenizer, for Python users."""

from __future__ import annotations

import itertools
import operator
import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firesteel.chat.grammar import grammar_for
from firesteel.chat.harmony import Harmony, Message, ResponseFormat, developer_message, system_message
from firesteel.chat.message import ParsedMessage
from firesteel.chat.stop import StopFilter
from firesteel.chat.stream import read_turn
from firesteel.chat.tokenizer import Tokenizer
from firesteel.chat.tools import Tool
from firesteel.config import resolve
from firesteel.engine.load import load_engine
from firesteel.engine.sample.grammar import Grammars
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint, find_draft_model
from firesteel.kernels.ledger import Ledger
from firesteel.model.reader import Progress
from firesteel.progress import Report, watched
from firesteel.types import Generation, Request, SamplingParams, StepOutput
from firesteel.untrusted.json_file import read_object, shorten

Prompt = str | Sequence[int]  # text, or token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResult:
    """The model's turn in a chat."""

    message: ParsedMessage  # `.content`, `.reasoning`, `.tool_calls`
    finish_reason: str  # "stop", "length" or "tool_calls"
    token_ids: list[int]


class LLM:
    """A loaded model: `LLM("DIR", device="cpu", page_size=16)`. Every setting of `config` is a keyword."""

    def __init__(
        self,
        model: str | Path = "",
        *,
        progress: Progress | None = None,
        preparing: Progress | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Loads a model; `progress` is called with bytes read and in total.

        Kernels are compiled and steps captured when first needed. With `prepare=True` all of them are made now, and
        `preparing` is called with the number made and in total.

        `environ` replaces the environment of this process, from which settings that are not given are read.
        """
        self.settings = resolve({"model": str(model) or None, **settings}, environ=environ)
        self.directory = find_checkpoint(self.settings.config.model.model)
        asked = self.settings
        config = asked.config.with_draft_model(find_draft_model, self.directory, asked.origins)
        self.tokenizer = Tokenizer.load(self.directory)
        self.stop_ids = read_stop_ids(self.directory)
        loaded = load_engine(self.directory, config, progress=progress, preparing=preparing)
        self.tokenizer.check_fits(loaded.spec.vocab_size)
        self.spec, self.device, self.kernels = loaded.spec, loaded.device, loaded.kernels
        self.max_context, self.load_report = loaded.max_context, loaded.report
        self.model, self.engine = loaded.model, loaded.engine
        self.grammars = Grammars(self.directory, self.spec.vocab_size)
        self._names = itertools.count()
        self._outboxes: dict[str, deque[StepOutput]] = {}  # request id -> queue of its outputs

    def ledger(self) -> Ledger:
        """Returns the ledger of all ops that ran so far."""
        return self.kernels.ledger

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | Report | None = None,
    ) -> list[Generation]:
        """Continues every prompt.

        `progress`: True shows a bar with tokens per second, False shows none, and a function is called with the
        number of finished prompts and the total. By default a bar is shown for several prompts on a terminal.
        """
        continuations = [Continuation(self.tokenizer, request) for request in self._requests(prompts, params)]
        with watched(progress, len(continuations)) as watch:
            for stepped in self._run(continuations):
                ended = len({continuation for continuation, _ in stepped if continuation.finish_reason is not None})
                watch(ended, sum(len(continuation.outputs[-1].token_ids) for continuation, _ in stepped))
        return [continuation.generation() for continuation in continuations]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yields the text of a continuation in pieces, without the stop token. Closing early ends the request."""
        continuation = Continuation(self.tokenizer, self._requests([prompt], params)[0])
        for stepped in self._run([continuation]):
            yield from (piece for _, piece in stepped)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        function: str | None = None,
        parallel_tool_calls: bool = True,
        response_format: ResponseFormat | None = None,
        instructions: str | None = None,
        effort: str = "medium",
    ) -> ChatResult:
        """Returns the model's turn after `messages` of users, tools and the model.

        A grammar enforces the response format and tool calls as `tool_choice` (auto, none, required) or `function`,
        the name of the function to call, demand: see `chat/grammar.py`.
        """
        grammar = grammar_for(
            tools=tools,
            tool_choice=tool_choice,
            function=function,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
        )
        params = params or SamplingParams()
        params = replace(params, grammar=grammar or params.grammar)
        shown = () if tool_choice == "none" else tools
        opening = [system_message(effort=effort, has_functions=bool(shown))]
        if instructions is not None or shown or response_format is not None:
            formats = [] if response_format is None else [response_format]
            opening.append(developer_message(instructions=instructions, tools=shown, response_formats=formats))
        harmony = Harmony(self.tokenizer)
        prompt = harmony.encode_for_completion([*opening, *messages])
        [generation] = self.generate([prompt], params, progress=False)
        message = read_turn(harmony, generation.token_ids)
        return ChatResult(
            message=message,
            finish_reason=message.finish_reason(generation.finish_reason),
            token_ids=generation.token_ids,
        )

    def outputs(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[StepOutput, None, None]:
        """Yields the outputs of a continuation, with the stop token. Closing it early ends the request."""
        continuation = Continuation(self.tokenizer, self._requests([prompt], params)[0])
        for _ in self._run([continuation]):
            yield from continuation.outputs
            continuation.outputs.clear()

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Returns float32 [T, V] on the CPU: row t predicts the token after token t."""
        request = Request(
            request_id=str(next(self._names)),
            token_ids=self._checked(token_ids, room=0),
            params=SamplingParams(),
            score=True,
        )
        continuation, rows = Continuation(self.tokenizer, request), []
        for _ in self._run([continuation]):
            rows += [output.logits.cpu() for output in continuation.outputs if output.logits is not None]
            continuation.outputs.clear()
        return torch.cat(rows)

    def _run(self, continuations: Sequence[Continuation]) -> Iterator[list[tuple[Continuation, str]]]:
        """Yields new text by continuation, step by step. A step also serves other requests that are running."""
        outbox: deque[StepOutput] = deque()
        unfinished = {continuation.request.request_id: continuation for continuation in continuations}
        names = list(unfinished)
        self._outboxes |= dict.fromkeys(names, outbox)
        try:
            for continuation in continuations:
                self.engine.submit(continuation.request)
            while unfinished:
                if not outbox:
                    self._step()
                yield self._take(outbox, unfinished)
        finally:
            for name in names:
                self.engine.cancel(name)
                del self._outboxes[name]

    def _take(
        self, outbox: deque[StepOutput], unfinished: dict[str, Continuation]
    ) -> list[tuple[Continuation, str]]:
        """Passes outputs to their continuations and removes finished continuations from `unfinished`."""
        stepped = []
        while outbox:
            output = outbox.popleft()
            continuation = unfinished.get(output.request_id)
            if continuation is not None:  # else a stop string ended it while others took steps
                stepped.append((continuation, continuation.push(output)))
                if continuation.finish_reason is not None:
                    self.engine.cancel(output.request_id, finished=True)
                    del unfinished[output.request_id]
        return stepped

    def _step(self) -> None:
        for output in self.engine.step():
            self._outboxes[output.request_id].append(output)

    def _requests(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        if isinstance(prompts, str):
            raise UserError("prompts must be a list; for a single text pass [text]")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise UserError(f"{len(prompts)} prompts, but {len(params)} sampling parameters: give one each")
        return [self._request(prompt, own) for prompt, own in zip(prompts, params, strict=True)]

    def _request(self, prompt: Prompt, params: SamplingParams) -> Request:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        token_ids = self._checked(token_ids, room=1)
        most = min(params.max_tokens, self.max_context - len(token_ids))
        params = replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most))
        request = Request(
            request_id=str(next(self._names)),
            token_ids=token_ids,
            params=params,
            stops=params.stop_ids(self.stop_ids),
        )
        return self.grammars.bind(request)

    def _checked(self, prompt: Sequence[int], *, room: int) -> list[int]:
        try:
            token_ids = [operator.index(token) for token in prompt]
        except TypeError as error:
            raise UserError(f"a prompt must be a text or a list of token ids, not {prompt!r:.80}") from error
        if not token_ids:
            raise UserError("the prompt is empty: give at least one token")
        if len(token_ids) + room > self.max_context:
            raise UserError(
                f"the prompt has {len(token_ids)} tokens, the context {self.max_context}: shorten the prompt"
            )
        return token_ids


class Continuation:
    """The outputs of a request so far, and its text up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self.request = request
        self.outputs: list[StepOutput] = []
        self.finish_reason: str | None = None
        self._num_tokens = 0
        self._text = tokenizer.stream()
        self._filter = StopFilter(request.params.stop, include=request.params.include_stop_str_in_output)
        self._pieces: list[str] = []

    def push(self, output: StepOutput) -> str:
        """Returns the text that can be shown now; a complete stop string ends the continuation."""
        if output.error is not None:
            raise UserError(output.error)
        self.outputs.append(output)
        self._num_tokens += len(output.token_ids)
        shown = () if output.finish_reason == "stop" else output.token_ids  # a stop token is not text
        text = "".join(self._text.push(token) for token in shown)
        if output.finish_reason is not None:
            text += self._text.flush()
        piece = self._filter.push(text, can_stop=self._num_tokens > self.request.params.min_tokens)
        self.finish_reason = "stop" if self._filter.matched is not None else output.finish_reason
        if self.finish_reason is not None:
            piece += self._filter.flush()
        self._pieces.append(piece)
        return piece

    def generation(self) -> Generation:
        return Generation(
            token_ids=[token for output in self.outputs for token in output.token_ids],
            text="".join(self._pieces),
            finish_reason=self.finish_reason or "length",
            logprobs=[output.logprobs for output in self.outputs if output.logprobs is not None],
            prompt_logprobs=[logprobs for output in self.outputs for logprobs in output.prompt_logprobs or ()],
            num_cached=self.outputs[-1].num_cached,
        )


def read_stop_ids(directory: Path) -> frozenset[int]:
    """Reads the end-of-sequence tokens from generation_config.json, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if os.path.lexists(path):
            ids = read_object(path, UserError, "download the checkpoint again").get("eos_token_id")
            if ids is not None:
                ids = ids if isinstance(ids, list) else [ids]
                if not all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
                    raise UserError(
                        f"{path}: eos_token_id must be a token id or a list of them, not {shorten(ids)}"
                    )
                return frozenset(ids)
    return frozenset()
