"""The endpoint /v1/completions: continues prompts of text or tokens, whole or in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from firesteel.chat.grammar import build_text_grammar
from firesteel.server.completions.answer import CompletionAnswer
from firesteel.server.generate.choice import Choice, ChoiceReader, PromptReader, TextReader
from firesteel.server.generate.constraint import build_constraint, find_text_form
from firesteel.server.generate.prompt import Words, check_prompt_logprobs, truncate
from firesteel.server.generate.sampling import sampling_params
from firesteel.server.http.body import read_body
from firesteel.server.http.errors import ApiError, json_response
from firesteel.server.http.keys import owner_of
from firesteel.server.http.sse import DONE, Computed, EventStream, event, while_client_waits
from firesteel.server.observe.access_log import LogEntry, entry_of
from firesteel.server.openai.answers import Completion, Usage
from firesteel.server.openai.requests import CompletionRequest
from firesteel.server.service import Service, count_usage, new_id
from firesteel.types import Request, SamplingParams

DEFAULT_TOKENS = 16  # as OpenAI


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionTask:
    """Prompts to continue, each once per choice; choices of a prompt follow each other."""

    name: str
    model: str
    asked: CompletionRequest
    num_prompts: int
    choices: list[Choice]
    entry: LogEntry


class Completions:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def answer(self, request: HttpRequest) -> Response:
        config = self.service.config.server
        asked = await read_body(request, CompletionRequest, config)
        async with while_client_waits(request.receive):
            task = await self.prepare(asked, entry_of(request.scope), owner_of(request.scope))
        if task.asked.stream:
            return EventStream(self.stream(task), config)
        return Computed(lambda: self.whole(task), config)

    async def prepare(self, asked: CompletionRequest, entry: LogEntry, owner: str) -> CompletionTask:
        service, name = self.service, new_id("cmpl")
        model = service.check_model(asked.model)
        check_fields(asked)
        given = split_prompts(asked)
        service.admission.check_count(len(given) * (asked.n or 1))
        encoded = [await service.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
        prompts = [self.truncate(prompt, asked) for prompt in encoded]
        grammar, bad_words = (
            await self.find_grammar(asked, len(prompts)),
            await service.encode_bad_words(asked.bad_words),
        )
        num_tokens = sum(map(len, prompts)) * (asked.n or 1)
        check_prompt_logprobs(num_tokens, count_prompt_logprobs(asked))
        requests: list[Request] = []
        salt = service.salt_of(owner, asked.cache_salt)
        for number, prompt in enumerate(prompts):
            params = self.params(asked, prompt, grammar, bad_words)
            # A grammar ends with one of Harmony's ends of a text.
            stops = params.stop_ids(service.stop_ids | (service.harmony.stop_token_ids if grammar else frozenset()))
            requests += service.requests(
                f"{name}-{number}", prompt, params, count=asked.n or 1, stops=stops, cache_salt=salt
            )
        entry.note_prompt(service.tokenizer, [token for prompt in prompts for token in prompt])
        return CompletionTask(
            name=name if asked.request_id is None else f"cmpl-{asked.request_id}",
            model=model,
            asked=asked,
            num_prompts=len(prompts),
            choices=[Choice(request=request, reader=self.new_reader(asked, request)) for request in requests],
            entry=entry,
        )

    def new_reader(self, asked: CompletionRequest, request: Request) -> ChoiceReader:
        if asked.max_tokens == 0:
            return PromptReader()
        skips_special = bool(asked.skip_special_tokens)
        return TextReader(self.service.tokenizer, request.params, skips_special=skips_special)

    def truncate(self, prompt: list[int], asked: CompletionRequest) -> list[int]:
        return truncate(
            prompt,
            asked.truncate_prompt_tokens,
            max_context=self.service.max_context,
            num_new=DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens,
            keeps_start=asked.truncation_side == "right",
        )

    async def find_grammar(self, asked: CompletionRequest, num_prompts: int) -> str | None:
        """Returns the grammar of the texts after its trial, which only a request that may be admitted gets."""
        form = find_text_form(asked)
        if form is None:
            return None
        self.service.check_ready()
        self.service.admission.check_room(num_prompts * (asked.n or 1))
        grammar = build_text_grammar(await build_constraint(form, self.service.trials))
        await self.service.trials.check(grammar)
        return grammar.text

    def new_answers(self, task: CompletionTask) -> list[CompletionAnswer]:
        return [
            CompletionAnswer(index, task.asked, self.service.tokenizer, choice.request.token_ids)
            for index, choice in enumerate(task.choices)
        ]

    def params(
        self, asked: CompletionRequest, prompt: list[int], grammar: str | None, bad_words: Words
    ) -> SamplingParams:
        if not prompt:
            raise ApiError(400, "the prompt is empty: at least one token is needed", param="prompt")
        service = self.service
        return sampling_params(
            asked,
            service.defaults,
            room=service.room_after(len(prompt), param="prompt"),
            max_tokens=DEFAULT_TOKENS if asked.max_tokens is None else max(asked.max_tokens, 1),
            logprobs=asked.logprobs,
            prompt_logprobs=count_prompt_logprobs(asked),
            grammar=grammar,
            bad_words=bad_words,
        )

    async def whole(self, task: CompletionTask) -> Response:
        answers = self.new_answers(task)
        async with aclosing(self.service.run(task.choices, task.entry)) as pieces:
            async for index, piece in pieces:
                answers[index].add(piece)
        size = sum(answer.num_scores for answer in answers)
        return await self.service.run_off_loop(size, lambda: self.respond(task, answers))

    def respond(self, task: CompletionTask, answers: Sequence[CompletionAnswer]) -> Response:
        completion = Completion(
            id=task.name,
            created=self.service.now(),
            model=task.model,
            choices=[answer.take() for answer in answers],
            usage=self.usage(task),
        )
        return json_response(completion)

    async def stream(self, task: CompletionTask) -> AsyncGenerator[bytes, None]:
        options, answers = task.asked.stream_options, self.new_answers(task)
        has_usage = options is not None and bool(options.include_usage)
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        chunk = Completion(
            id=task.name,
            created=self.service.now(),
            model=task.model,
            choices=[],
            usage=None if has_usage else UNSET,
        )
        async with aclosing(self.service.run(task.choices, task.entry)) as pieces:
            async for index, piece in pieces:
                answers[index].add(piece)
                if answers[index].has_news:
                    size, take = answers[index].num_scores, answers[index].take
                    chunk.choices = [await self.service.run_off_loop(size, take)]
                    if is_continuous:
                        chunk.usage = self.usage(task)
                    yield event(chunk)
        if has_usage:
            chunk.choices, chunk.usage = [], self.usage(task)
            yield event(chunk)
        yield DONE

    def usage(self, task: CompletionTask) -> Usage:
        return count_usage(task.choices, num_prompts=task.num_prompts, is_chat=False)


def count_prompt_logprobs(asked: CompletionRequest) -> int | None:
    """Returns the number of most likely tokens per token of the prompt; None if nothing asks for them."""
    counts = [asked.prompt_logprobs, asked.logprobs if asked.echo else None]
    return max((count for count in counts if count is not None), default=None)


def split_prompts(asked: CompletionRequest) -> list[str | list[int]]:
    """Returns the prompts of a request: a text, token ids, or a list of either."""
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(token, int) for token in prompt):
        return [[token for token in prompt if isinstance(token, int)]]
    prompts = [inner for inner in prompt if not isinstance(inner, int)]
    if len(prompts) < len(prompt):
        raise ApiError(400, "prompt: token ids and texts or lists of token ids are mixed", param="prompt")
    return prompts


def check_fields(asked: CompletionRequest) -> None:
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options needs stream = true", param="stream_options")
    if asked.prompt_logprobs is not None and asked.stream:
        raise ApiError(400, "prompt_logprobs needs stream = false", param="prompt_logprobs")
    if asked.suffix:
        raise ApiError(422, "suffix is not supported: this model only continues text", param="suffix")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise ApiError(422, "best_of is not supported: request n choices and select among them", param="best_of")
