"""The endpoint /v1/completions: prompts of text or tokens in, their continuations out, whole or in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.server.completions.answer import CompletionAnswer
from firesteel.server.generate.choice import PromptReader, TextReader
from firesteel.server.generate.sampling import sampling_params
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.sse import DONE, Computed, EventStream, event
from firesteel.server.observe.access_log import Entry, entry_of
from firesteel.server.openai.answers import Completion, Usage
from firesteel.server.openai.requests import CompletionRequest
from firesteel.server.service import Service, count_usage, new_id
from firesteel.types import Request, SamplingParams

DEFAULT_TOKENS = 16  # as OpenAI


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Prompts that are to be continued, each as often as asked."""

    name: str
    model: str
    asked: CompletionRequest
    num_prompts: int
    requests: list[Request]
    readers: list[TextReader | PromptReader]
    answers: list[CompletionAnswer]
    entry: Entry


class Completions:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def answer(self, request: HttpRequest) -> Response:
        config = self.service.config.server
        task = await self.prepare(await read_body(request, CompletionRequest, config), entry_of(request.scope))
        if task.asked.stream:
            return EventStream(self.stream(task), config)
        return Computed(lambda: self.whole(task), config)

    async def prepare(self, asked: CompletionRequest, entry: Entry) -> Task:
        service, name = self.service, new_id("cmpl")
        model = service.check_model(asked.model)
        check_fields(asked)
        given = split_prompts(asked)
        service.admission.check_count(len(given) * (asked.n or 1))
        prompts = [await service.encode(one) if isinstance(one, str) else one for one in given]
        requests: list[Request] = []
        for number, prompt in enumerate(prompts):
            params = self.params(asked, prompt)
            stops = params.stop_ids(service.stop_ids)
            requests += service.requests(f"{name}-{number}", prompt, params, count=asked.n or 1, stops=stops)
        entry.note_prompt(service.tokenizer, [token for prompt in prompts for token in prompt])
        return Task(
            name=name, model=model, asked=asked, num_prompts=len(prompts), requests=requests, entry=entry,
            readers=[self.reader(asked, one) for one in requests],
            answers=[
                CompletionAnswer(number, asked, service.tokenizer, one.token_ids)
                for number, one in enumerate(requests)
            ],
        )  # fmt: skip

    def reader(self, asked: CompletionRequest, request: Request) -> TextReader | PromptReader:
        if asked.max_tokens == 0:
            return PromptReader(num_prompt=request.num_prompt)
        return TextReader(self.service.tokenizer, request.params, num_prompt=request.num_prompt)

    def params(self, asked: CompletionRequest, prompt: list[int]) -> SamplingParams:
        if not prompt:
            raise ApiError(400, "the prompt is empty: at least one token is needed", param="prompt")
        service = self.service
        return sampling_params(
            asked, service.defaults, room=service.room_after(len(prompt)),
            max_tokens=DEFAULT_TOKENS if asked.max_tokens is None else max(asked.max_tokens, 1),
            logprobs=asked.logprobs, prompt_logprobs=asked.logprobs if asked.echo else None,
        )  # fmt: skip

    async def whole(self, task: Task) -> Response:
        async with aclosing(self.service.run(task.requests, task.readers, task.entry)) as pieces:
            async for number, piece in pieces:
                task.answers[number].add(piece)
        made = Completion(
            id=task.name, created=self.service.now(), model=task.model,
            choices=[answer.take() for answer in task.answers], usage=self.usage(task),
        )  # fmt: skip
        return json_response(made)

    async def stream(self, task: Task) -> AsyncGenerator[bytes, None]:
        options = task.asked.stream_options
        has_usage = options is not None and bool(options.include_usage)
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        chunk = Completion(
            id=task.name, created=self.service.now(), model=task.model, choices=[],
            usage=None if has_usage else UNSET,
        )  # fmt: skip
        async with aclosing(self.service.run(task.requests, task.readers, task.entry)) as pieces:
            async for number, piece in pieces:
                answer = task.answers[number]
                answer.add(piece)
                if answer.has_news:
                    chunk.choices = [answer.take()]
                    if is_continuous:
                        chunk.usage = self.usage(task)
                    yield event(chunk)
        if has_usage:
            chunk.choices, chunk.usage = [], self.usage(task)
            yield event(chunk)
        yield DONE

    def usage(self, task: Task) -> Usage:
        tallies = [reader.tally for reader in task.readers]
        return count_usage(tallies, num_prompts=task.num_prompts, is_chat=False)


def split_prompts(asked: CompletionRequest) -> list[str | list[int]]:
    """A text, token ids, or several of one of them."""
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(one, int) for one in prompt):
        return [[one for one in prompt if isinstance(one, int)]]
    found = [one for one in prompt if not isinstance(one, int)]
    if len(found) < len(prompt):
        raise ApiError(400, "prompt: token ids and texts or lists of token ids are mixed", param="prompt")
    return found


def check_fields(asked: CompletionRequest) -> None:
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options needs stream = true", param="stream_options")
    if asked.suffix:
        raise ApiError(422, "this model cannot write text before a suffix", param="suffix")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise ApiError(422, "best_of is not offered: ask for n choices and choose", param="best_of")
