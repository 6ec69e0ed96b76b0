"""Level 1: the server answers, alone, in parallel and to a long prompt, with finite numbers, and does not grow."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from firesteel.lab.client.api import text_of
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.levels.growth import check_growth
from firesteel.lab.servers.target import Target, are_finite
from firesteel.lab.spec import Order

QUESTION = "What is the capital of France? Please reply with one word only"
PARALLEL, REPEATS = 4, 5
LONG_TOKENS, ROOM = 4096, 64
FIRST_ID, LAST_ID = 256, 1000  # plain tokens in every vocabulary that has single bytes first


def check_smoke(target: Target, order: Order) -> LevelResult:
    checks = Checks()
    if target.server is not None:
        checks.figures["startup_s"] = target.server.startup_s
        checks.add("boot", True, f"ready after {target.server.startup_s or 0:.1f} s")
    check_answer(target, checks)
    check_parallel(target, checks, order.seed)
    check_long_prompt(target, checks, order.seed)
    check_finite(target, checks, order.seed)
    check_repeats(target, checks, order.seed)
    return checks.result("1")


def check_answer(target: Target, checks: Checks) -> None:
    with target.step("the first answer"):
        answer = target.api.chat(QUESTION, max_tokens=100, temperature=0)
    said = text_of(answer).strip()
    checks.figures["answer"] = said
    checks.add("answer", bool(said), f"says {said[:60]!r}" if said else "an empty answer")


def check_parallel(target: Target, checks: Checks, seed: int) -> None:
    with target.step(f"{PARALLEL} requests at once"):
        prompts = [random_prompt(seed + number, 64 * (number + 1)) for number in range(PARALLEL)]
        answers = ask_together(lambda prompt: target.api.complete(prompt, max_tokens=16, temperature=0), prompts)
    checks.add("parallel", len(answers) == PARALLEL, f"{len(answers)} requests answered at once")


def check_long_prompt(target: Target, checks: Checks, seed: int) -> None:
    length = min(LONG_TOKENS, target.max_context - ROOM)
    with target.step(f"a prompt of {length} tokens"):
        answer = target.api.complete(random_prompt(seed, length), max_tokens=8, temperature=0)
    counted = (answer.get("usage") or {}).get("prompt_tokens")
    checks.figures["long_prompt_tokens"] = length
    is_whole = counted is None or counted >= length  # some add a token at the start
    checks.add(
        "long prompt", is_whole, f"{length} tokens read" if is_whole else f"{counted} of {length} tokens read"
    )


def check_finite(target: Target, checks: Checks, seed: int) -> None:
    """A row of logits with a NaN or an infinity has no finite likelihoods."""
    with target.step("likelihoods of tokens"):
        found, of = read_logprobs(target, random_prompt(seed, 64))
    count = len(found)
    checks.figures["logprobs"] = count
    words = (
        f"{count} likelihoods of {of} are finite" if are_finite(found) else f"NaN or Inf among {count} likelihoods"
    )
    checks.add("finite", bool(found) and are_finite(found), words if found else "the server gives no likelihoods")


def read_logprobs(target: Target, prompt: Sequence[int]) -> tuple[list[Any], str]:
    """Of the prompt's tokens but the first and of those added; only of those where the server keeps the others."""
    fields = {"max_tokens": 8, "temperature": 0, "logprobs": 1}
    try:
        answer, of = target.api.complete(prompt, **fields, echo=True), "prompt and answer"
    except RequestFailed as error:
        if error.status is None or error.status >= 500:
            raise
        answer, of = target.api.complete(prompt, **fields), "the answer"
    found = list_logprobs(answer["choices"][0])
    if len(found) < len(prompt):  # also where echo is taken and not heeded, as by llama.cpp
        return found, "the answer"
    return (found[1:] if found[0] is None else found), of


def list_logprobs(choice: Mapping[str, Any]) -> list[Any]:
    """As vLLM, SGLang and firesteel write them, or as llama.cpp does; None stands for what is no number in JSON."""
    found = choice.get("logprobs") or {}
    return found.get("token_logprobs") or [one.get("logprob") for one in found.get("content") or ()]


def check_repeats(target: Target, checks: Checks, seed: int) -> None:
    """The first is not counted: it makes what later ones use again."""
    before = None
    for number in range(REPEATS + 1):
        with target.step(f"repeat {number} of {REPEATS}"):
            prompts = [random_prompt(seed + one, 128) for one in range(PARALLEL)]
            ask_together(lambda prompt: target.api.complete(prompt, max_tokens=16), prompts)
        before = target.footprint() if number == 0 else before
    check_growth(checks, before, target.footprint(), f"over {REPEATS} repeats")


def ask_together(ask: Callable[[Any], Any], prompts: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


def random_prompt(seed: int, length: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(FIRST_ID, LAST_ID) for _ in range(length)]
