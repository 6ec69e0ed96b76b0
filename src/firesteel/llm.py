"""LLM: a checkpoint with its tokenizer, for Python users; knows no server."""

from __future__ import annotations

import itertools
import json
import operator
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firesteel.chat.grammar import grammar_for
from firesteel.chat.harmony import Harmony, Message, ResponseFormat, developer_message, system_message
from firesteel.chat.message import AssistantMessage
from firesteel.chat.stop import StopFilter
from firesteel.chat.stream import read_turn
from firesteel.chat.tokenizer import Tokenizer
from firesteel.chat.tools import Tool
from firesteel.config import resolve
from firesteel.engine.load import load_engine
from firesteel.engine.sample.grammar import Grammars
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.kernels.ledger import Ledger
from firesteel.model.reader import Progress
from firesteel.progress import Report, watched
from firesteel.types import Completion, Request, SamplingParams, StepOutput

Prompt = str | Sequence[int]  # text, or token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """What a model said in its turn."""

    message: AssistantMessage  # `.content`, `.reasoning`, `.tool_calls`
    finish_reason: str  # "stop", "length" or "tool_calls"
    token_ids: list[int]


class LLM:
    """`LLM("DIR", device="cpu", page_size=16)`: any knob of `config` is a keyword."""

    def __init__(
        self,
        model: str | Path = "",
        *,
        progress: Progress | None = None,
        capturing: Progress | None = None,
        environ: Mapping[str, str] | None = None,
        **knobs: Any,
    ) -> None:
        """`progress` is called with bytes read and in all, `capturing` with decoding steps made and in all.

        `environ` stands for the environment; without it that of this process sets the knobs that are not given.
        """
        self.settings = resolve({"model": str(model) or None, **knobs}, environ=environ)
        config = self.settings.config
        self.directory = find_checkpoint(config.model.model)
        self.tokenizer = Tokenizer.load(self.directory)
        self.stop_ids = read_stop_ids(self.directory)
        loaded = load_engine(self.directory, config, progress=progress, capturing=capturing)
        self.spec, self.device, self.kernels = loaded.spec, loaded.device, loaded.kernels
        self.max_context, self.load_report = loaded.max_context, loaded.report
        self.model, self.engine = loaded.model, loaded.engine
        self.grammars = Grammars(self.directory, self.spec.vocab_size)
        self._names = itertools.count()
        self._outboxes: dict[str, deque[StepOutput]] = {}  # by request: where its outputs go

    def ledger(self) -> Ledger:
        """What ran so far."""
        return self.kernels.ledger

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | Report | None = None,
    ) -> list[Completion]:
        """Continues every prompt.

        `progress`: True shows a bar with tokens a second, False none, a function is called with the number finished
        and the number in all. Without it a terminal shows a bar of several prompts.
        """
        ones = [Continuation(self.tokenizer, request) for request in self._requests(prompts, params)]
        with watched(progress, len(ones)) as watch:
            for stepped in self._run(ones):
                ended = len({one for one, _ in stepped if one.finish_reason is not None})
                watch(ended, sum(len(one.outputs[-1].token_ids) for one, _ in stepped))
        return [one.completion() for one in ones]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The text of one continuation, piece by piece, stop token left out. Closing it early ends the request."""
        one = Continuation(self.tokenizer, self._requests([prompt], params)[0])
        for stepped in self._run([one]):
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
    ) -> ChatCompletion:
        """The model's turn after `messages`, which are those of users, tools and the model.

        A grammar sees to it that the answer has the format and that calls are as `tool_choice` (auto, none,
        required) or `function`, the name of the one to call, wants them: see `chat/grammar.py`.
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
        [completion] = self.generate([prompt], params, progress=False)
        message = read_turn(harmony, completion.token_ids)
        return ChatCompletion(
            message=message,
            finish_reason=message.finish_reason(completion.finish_reason),
            token_ids=completion.token_ids,
        )

    def outputs(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[StepOutput, None, None]:
        """What one continuation is given, step by step, stop token included. Closing it early ends the request."""
        one = Continuation(self.tokenizer, self._requests([prompt], params)[0])
        for _ in self._run([one]):
            yield from one.outputs
            one.outputs.clear()

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """float32 [T, V] on the CPU: row t is what follows token t."""
        request = Request(
            request_id=str(next(self._names)),
            token_ids=self._checked(token_ids, room=0),
            params=SamplingParams(),
            score=True,
        )
        one, rows = Continuation(self.tokenizer, request), []
        for _ in self._run([one]):
            rows += [output.logits.cpu() for output in one.outputs if output.logits is not None]
            one.outputs.clear()
        return torch.cat(rows)

    def _run(self, ones: Sequence[Continuation]) -> Iterator[list[tuple[Continuation, str]]]:
        """Who got what new text, step by step. Others may be under way too: a step serves all of them."""
        outbox: deque[StepOutput] = deque()
        unfinished = {one.request.request_id: one for one in ones}
        names = list(unfinished)
        self._outboxes |= dict.fromkeys(names, outbox)
        try:
            for one in ones:
                self.engine.submit(one.request)
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
        """Hands outputs to their continuations; those that end are no longer unfinished."""
        stepped = []
        while outbox:
            output = outbox.popleft()
            one = unfinished.get(output.request_id)
            if one is not None:  # else a stop string ended it while others took steps
                stepped.append((one, one.push(output)))
                if one.finish_reason is not None:
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
            raise UserError("generate takes a list of prompts; for one text pass [text]")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise UserError(f"{len(prompts)} prompts but {len(params)} sampling parameters")
        return [self._request(prompt, one) for prompt, one in zip(prompts, params, strict=True)]

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
            raise UserError(f"a prompt is a text or a list of token ids, not {prompt!r:.80}") from error
        if not token_ids:
            raise UserError("the prompt is empty: at least one token is needed")
        if len(token_ids) + room > self.max_context:
            raise UserError(
                f"the prompt has {len(token_ids)} tokens, the context {self.max_context}: shorten the prompt"
            )
        return token_ids


class Continuation:
    """What one request was given so far, and its text up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self.request = request
        self.outputs: list[StepOutput] = []
        self.finish_reason: str | None = None
        self._num_tokens = 0
        self._text = tokenizer.stream()
        self._filter = StopFilter(request.params.stop, include=request.params.include_stop_str_in_output)
        self._pieces: list[str] = []

    def push(self, output: StepOutput) -> str:
        """The text that can be shown now; it ends the continuation where a stop string is complete."""
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

    def completion(self) -> Completion:
        return Completion(
            token_ids=[token for output in self.outputs for token in output.token_ids],
            text="".join(self._pieces),
            finish_reason=self.finish_reason or "length",
            logprobs=[output.logprobs for output in self.outputs if output.logprobs is not None],
            prompt_logprobs=[one for output in self.outputs for one in output.prompt_logprobs or ()],
            num_cached=self.outputs[-1].num_cached,
        )


def read_stop_ids(directory: Path) -> frozenset[int]:
    """End-of-sequence tokens from generation_config.json, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise UserError(f"{path} is not valid JSON: {error}") from error
            ids = content.get("eos_token_id") if isinstance(content, dict) else None
            if ids is not None:
                ids = ids if isinstance(ids, list) else [ids]
                if not all(type(one) is int for one in ids):
                    raise UserError(f"{path}: eos_token_id must be a token id or a list of them, not {ids!r}")
                return frozenset(ids)
    return frozenset()
