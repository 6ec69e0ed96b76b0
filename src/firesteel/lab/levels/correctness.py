"""Level 2: likelihoods and tokens of the server against a reference's; knows no kernel.

Rounding moves likelihoods a little, and where two tokens are about as likely, the other one may win. So perplexity
has a tolerance, and a token may differ only where the reference itself is nearly undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.levels.smoke import ask_together, random_prompt
from firesteel.lab.reference.reference import (
    LocalReference,
    Reference,
    ReferenceFailed,
    continue_greedily,
    find_reference,
    is_float32,
    read_prompt_logprobs,
)
from firesteel.lab.reference.texts import find_encoder, read_prompts, read_texts
from firesteel.lab.servers.target import Target, are_finite, is_refusal
from firesteel.lab.spec import Order

CONTINUED = 32  # tokens
SINK_TEXTS = 3
LEAST_SINK_EFFECT = 1.1  # perplexity without sinks over that with them


@dataclass(frozen=True, slots=True)
class Tolerance:
    perplexity: float  # share of the reference's
    margin: float  # nats between two tokens that may change places
    why: str


FLOAT32 = Tolerance(1e-3, 1e-2, "both compute in float32")
ROUNDED = Tolerance(2e-2, 0.5, "activations are rounded to 16 bits or fewer")


def check_correctness(target: Target, order: Order) -> LevelResult:
    checks = Checks()
    check_repeatable(target, order, checks)
    checks.figures["reference"] = None
    try:
        target.tell("loading the reference")
        reference, why_none = find_reference(target.model, order.reference_url, timeout_s=order.answer_s)
        return not_judged(checks, why_none) if reference is None else compare(target, reference, order, checks)
    except ReferenceFailed as error:
        return not_judged(checks, str(error))


def not_judged(checks: Checks, why: str) -> LevelResult:
    """What was found wrong before stays wrong."""
    judged = checks.result("2")
    if not judged.passed:
        return judged
    return replace(judged, was_run=False, reason=f"not judged: {why} ({judged.reason})")


def compare(target: Target, reference: Reference, order: Order, checks: Checks) -> LevelResult:
    checks.figures["reference"] = reference.name
    encoder = find_encoder(target)
    if encoder is None:
        why = f"{target.model} is no checkpoint of this machine and its server has no /tokenize"
        return not_judged(checks, f"{why}, so texts cannot be written in its tokens")
    with target.step("held-out texts in its tokens"):
        texts = read_texts(encoder, 8 if order.quick else None)
        prompts = read_prompts(encoder, 6 if order.quick else 24)
    if lack := find_lack(target, texts[0]):
        return not_judged(checks, lack)
    tolerance = choose_tolerance(target, reference)
    perplexity = check_perplexity(target, reference, texts, tolerance, checks)
    check_tokens(target, reference, prompts, tolerance, checks)
    if isinstance(reference, LocalReference):
        check_sinks(target, texts[:SINK_TEXTS], checks)
    return checks.result("2", f"perplexity {perplexity:.4f}; " + "; ".join(row["words"] for row in checks.rows[1:]))


def find_lack(target: Target, text: Sequence[int]) -> str:
    """What a comparison needs and an engine other than ours does not give, in words; ours must."""
    if target.kind == "firesteel":
        return ""
    asked: dict[str, Callable[[], Any]] = {
        "likelihoods of a prompt": lambda: read_prompt_logprobs(target.api, text),
        "ids of tokens": lambda: continue_greedily(target.api, text, 1),
    }
    for what, ask in asked.items():
        with target.step(what):
            try:
                ask()
            except RequestFailed as error:
                if not is_refusal(error):
                    raise
                return f"the server gives no {what}: {error}"
    return ""


def choose_tolerance(target: Target, reference: Reference) -> Tolerance:
    ledger = target.read_ledger()
    return FLOAT32 if ledger is not None and is_float32(ledger) and reference.is_float32() else ROUNDED


def check_repeatable(target: Target, order: Order, checks: Checks) -> None:
    """Also where there is no reference."""
    with target.step("the same seed twice"):
        prompt = random_prompt(order.seed, 24)
        fields = {"max_tokens": 24, "temperature": 1.0, "seed": order.seed, "ignore_eos": True}
        once, again = (target.api.complete(prompt, **fields)["choices"][0]["text"] for _ in range(2))
    words = "the same seed gives the same text" if once == again else "the same seed gave two different texts"
    checks.add("seed", once == again, words)


def check_perplexity(
    target: Target, reference: Reference, texts: Sequence[Sequence[int]], tolerance: Tolerance, checks: Checks
) -> float:
    expected, actual = [], []
    for number, text in enumerate(texts):
        with target.step(f"perplexity of text {number + 1} of {len(texts)}"):
            actual += read_prompt_logprobs(target.api, text)
        expected += reference.logprobs(text)
    if not are_finite(actual):
        checks.add("perplexity", False, f"NaN or Inf among {len(actual)} likelihoods")
        return math.nan
    if not are_finite(expected):
        raise ReferenceFailed(f"the reference, {reference.name}, gives likelihoods that are NaN or Inf")
    found, right = perplexity_of(actual), perplexity_of(expected)
    change = found / right - 1
    checks.figures |= {
        "perplexity": found, "reference_perplexity": right, "perplexity_change": change, "tokens": len(actual),
        "worst_logprob_error": max(abs(one - two) for one, two in zip(actual, expected, strict=True)),
        "tolerance": tolerance.perplexity, "why": tolerance.why,
    }  # fmt: skip
    allowed = f"allowed {100 * tolerance.perplexity:g} %"
    words = f"{100 * change:+.3f} % from the reference over {len(actual)} tokens ({allowed})"
    checks.add("perplexity", abs(change) <= tolerance.perplexity, words)
    return found


def perplexity_of(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def check_tokens(
    target: Target, reference: Reference, prompts: Sequence[Sequence[int]], tolerance: Tolerance, checks: Checks
) -> None:
    equal = total = 0
    faults = []
    with target.step(f"{len(prompts)} continuations"):
        answers = ask_together(lambda prompt: continue_greedily(target.api, prompt, CONTINUED), prompts)
    target.tell(f"{len(prompts)} continuations by the reference")
    expected = reference.continue_greedily(prompts, CONTINUED)
    if not any(expected):
        raise ReferenceFailed(f"the reference, {reference.name}, continues none of {len(prompts)} prompts")
    for number, (prompt, found, right) in enumerate(zip(prompts, answers, expected, strict=True)):
        agreed = count_agreed(found, right)
        equal, total = equal + agreed, total + len(right)
        if agreed < len(right):
            margin = reference.margin([*prompt, *right[:agreed]])
            if margin is None or margin > tolerance.margin:
                faults.append(f"prompt {number + 1} differs at token {agreed + 1}" + _at(margin))
    checks.figures |= {"tokens_equal": equal, "tokens_compared": total}
    words = f"{equal} of {total} greedy tokens equal up to the first difference"
    checks.add("tokens", not faults, f"{words}; {'; '.join(faults)}" if faults else words)


def count_agreed(found: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference, which the end of one of them is too."""
    pairs = enumerate(zip(found, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(found), len(right)))


def _at(margin: float | None) -> str:
    return "" if margin is None else f", where the reference is sure by {margin:.2f} nats"


def check_sinks(target: Target, texts: Sequence[Sequence[int]], checks: Checks) -> None:
    """Without sinks the model is another, worse one: the server must not be that."""
    target.tell("perplexity without attention sinks")
    without_sinks = LocalReference(target.model, sinks=False)
    without = perplexity_of([one for text in texts for one in without_sinks.logprobs(text)])
    with target.step("perplexity of the same texts"):
        served = perplexity_of([one for text in texts for one in read_prompt_logprobs(target.api, text)])
    checks.figures |= {"perplexity_without_sinks": without, "perplexity_with_sinks": served}
    words = f"without sinks perplexity would be {without:.3f}, the server's is {served:.3f} on the same text"
    checks.add("sinks", without / served >= LEAST_SINK_EFFECT, words)
