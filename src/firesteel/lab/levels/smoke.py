"""Level 1: the server answers single, parallel and long requests with finite numbers, and does not grow."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from firesteel.lab.client.api import text_of
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import SMOKE
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.growth import check_growth
from firesteel.lab.servers.target import Target, are_finite
from firesteel.lab.verdict import Verdict

QUESTION = "What is the capital of France? Please reply with one word only"
PARALLEL, REPEATS = 4, 5
LONG_TOKENS, ROOM = 4096, 64
FIRST_ID, LAST_ID = 256, 1000  # plain tokens in every vocabulary that starts with single bytes


def check_smoke(context: LevelContext) -> LevelResult:
    target, seed = context.target, context.spec.seed
    checks = Checks(SMOKE)
    if target.server is not None:
        checks.facts["startup_s"] = target.server.startup_s
        checks.add("boot", True, f"ready after {target.server.startup_s or 0:.1f} s")
    check_answer(target, checks)
    check_parallel(target, checks, seed)
    check_long_prompt(target, checks, seed)
    check_finite(target, checks, seed)
    check_repeats(target, checks, seed)
    return checks.result()


def check_answer(target: Target, checks: Checks) -> None:
    with target.step("the first answer"):
        answer = target.api.chat(QUESTION, max_tokens=100, temperature=0)
    text = text_of(answer).strip()
    checks.facts["answer"] = text
    checks.add("answer", bool(text), f"answers {text[:60]!r}" if text else "an empty answer")


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
    checks.facts["long_prompt_tokens"] = length
    is_whole = counted is None or counted >= length  # some servers add a token at the start
    words = f"{length} tokens read" if is_whole else f"{counted} of {length} tokens read"
    checks.add("long prompt", is_whole, words)


def check_finite(target: Target, checks: Checks, seed: int) -> None:
    """Checks log-probabilities: a row of logits with NaN or Inf has no finite ones. A server may return none."""
    with target.step("log-probabilities of tokens"):
        logprobs, source = read_logprobs(target, random_prompt(seed, 64))
    count = len(logprobs)
    checks.facts["logprobs"] = count
    if not logprobs:
        checks.add("finite", Verdict.UNPROVEN, "the server returns no log-probabilities")
    elif are_finite(logprobs):
        checks.add("finite", True, f"{count} log-probabilities of {source} are finite")
    else:
        checks.add("finite", False, f"NaN or Inf among {count} log-probabilities")


def read_logprobs(target: Target, prompt: Sequence[int]) -> tuple[list[Any], str]:
    """Returns those of prompt and answer, without the first token; of the answer only if echo is unsupported."""
    fields = {"max_tokens": 8, "temperature": 0, "logprobs": 1}
    try:
        answer, source = target.api.complete(prompt, **fields, echo=True), "prompt and answer"
    except RequestFailed as error:
        if error.status is None or error.status >= 500:
            raise
        answer, source = target.api.complete(prompt, **fields), "the answer"
    logprobs = list_logprobs(answer["choices"][0])
    if len(logprobs) < len(prompt):  # also if echo is accepted but ignored, as by llama.cpp
        return logprobs, "the answer"
    return (logprobs[1:] if logprobs[0] is None else logprobs), source


def list_logprobs(choice: Mapping[str, Any]) -> list[Any]:
    """Reads the format of vLLM, SGLang and firesteel, or that of llama.cpp; NaN is None in JSON."""
    logprobs = choice.get("logprobs") or {}
    return logprobs.get("token_logprobs") or [token.get("logprob") for token in logprobs.get("content") or ()]


def check_repeats(target: Target, checks: Checks, seed: int) -> None:
    """Checks memory growth over repeats, after a first one that allocates what later ones reuse."""
    before = None
    for number in range(REPEATS + 1):
        with target.step(f"repeat {number} of {REPEATS}"):
            prompts = [random_prompt(seed + index, 128) for index in range(PARALLEL)]
            ask_together(lambda prompt: target.api.complete(prompt, max_tokens=16), prompts)
        before = target.footprint() if number == 0 else before
    check_growth(checks, before, target.footprint(), f"over {REPEATS} repeats")


def ask_together(ask: Callable[[Any], Any], prompts: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


def random_prompt(seed: int, length: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(FIRST_ID, LAST_ID) for _ in range(length)]
