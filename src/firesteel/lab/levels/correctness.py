"""Level 2: coherent answers, and log-probabilities and tokens of the server compared with a reference's.

Rounding changes log-probabilities a little and, between two tokens that are almost equally likely, may choose the
other. So perplexity has a tolerance, and a token may differ only where the reference itself is nearly undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import CORRECTNESS
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.coherence import check_coherence
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.smoke import ask_together, random_prompt
from firesteel.lab.reference.match import check_same_model
from firesteel.lab.reference.recorded import RecordedReference, read_reference
from firesteel.lab.reference.reference import (
    LocalReference,
    Reference,
    ReferenceFailed,
    continue_greedily,
    find_reference,
    read_prompt_logprobs,
)
from firesteel.lab.reference.texts import CONTINUED, NUM_PROMPTS, find_encoder, read_prompts, read_texts
from firesteel.lab.servers.target import Target, are_finite, is_refusal
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict

SINK_TEXTS = 3
OWN_SETTINGS = (
    "the reference has default settings: if others that change the numbers are wanted, such as --mxfp4-layers, "
    "compare with a trusted server that has them too (--reference-url, --reference)"
)
MIN_SINK_EFFECT = 1.1  # perplexity without sinks divided by that with them


@dataclass(frozen=True, slots=True)
class AnswerTolerance:
    perplexity: float  # share of the reference's
    margin: float  # nats between two tokens that may be exchanged
    why: str


FLOAT32 = AnswerTolerance(1e-3, 1e-2, "both compute in float32")
ROUNDED = AnswerTolerance(2e-2, 0.5, "activations are rounded to 16 bits or fewer")


def check_correctness(context: LevelContext) -> LevelResult:
    target, spec = context.target, context.spec
    checks = Checks(CORRECTNESS)
    check_repeatable(target, spec, checks)
    check_coherence(target, checks)
    checks.facts["reference"] = None
    try:
        reference, why_none = open_reference(target, spec)
        if reference is None:
            return not_judged(checks, why_none)
        return compare_with_reference(target, reference, spec, checks)
    except ReferenceFailed as error:
        return not_judged(checks, str(error))


def open_reference(target: Target, spec: LabSpec) -> tuple[Reference | None, str]:
    """Returns the recorded reference, the reference server or the local one, or why there is none."""
    target.on_progress("loading the reference")
    if spec.reference:
        return read_reference(Path(spec.reference)), ""
    return find_reference(target.model, spec.reference_url, timeout_s=spec.answer_s)


def not_judged(checks: Checks, why: str) -> LevelResult:
    """Ends the level without a comparison; a check that failed before still fails it."""
    checks.add("reference", Verdict.UNPROVEN, why)
    return checks.result()


def compare_with_reference(target: Target, reference: Reference, spec: LabSpec, checks: Checks) -> LevelResult:
    checks.facts["reference"] = reference.name
    texts, prompts = choose_tokens(target, reference, spec)
    if missing := find_missing_feature(target, texts[0]):
        return not_judged(checks, missing)
    tolerance = choose_tolerance(target, reference)
    perplexity = check_perplexity(target, reference, texts, tolerance, checks)
    check_tokens(target, reference, prompts, tolerance, checks)
    if isinstance(reference, LocalReference):
        check_sinks(target, texts[:SINK_TEXTS], checks)
    return checks.result(f"perplexity {perplexity:.4f}; " + "; ".join(row.words for row in checks.rows[1:]))


def choose_tokens(target: Target, reference: Reference, spec: LabSpec) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the texts and prompts to compare in tokens of the served model: those recorded, or the lab's own."""
    num_texts, num_prompts = (8, 6) if spec.quick else (None, NUM_PROMPTS)
    with target.step("held-out texts in its tokens"):
        encoder = find_encoder(target)
        if isinstance(reference, RecordedReference):
            check_same_model(target, reference, encoder)
            return reference.choose_texts(num_texts), reference.choose_prompts(num_prompts)
        if encoder is None:
            raise ReferenceFailed(
                f"{target.model} is not a checkpoint on this machine and its server has no /tokenize, so texts "
                "cannot be encoded in its tokens"
            )
        return read_texts(encoder, num_texts), read_prompts(encoder, num_prompts)


def find_missing_feature(target: Target, text: Sequence[int]) -> str:
    """Returns what a comparison needs and another engine lacks; firesteel must not lack it."""
    if target.kind == "firesteel":
        return ""
    features: dict[str, Callable[[], Any]] = {
        "log-probabilities of a prompt": lambda: read_prompt_logprobs(target.api, text),
        "token ids": lambda: continue_greedily(target.api, text, 1),
    }
    for feature, ask in features.items():
        with target.step(feature):
            try:
                ask()
            except RequestFailed as error:
                if not is_refusal(error):
                    raise
                return f"the server does not return {feature}: {error}"
    return ""


def choose_tolerance(target: Target, reference: Reference) -> AnswerTolerance:
    ledger = target.read_ledger()
    return FLOAT32 if ledger is not None and ledger.is_float32 and reference.is_float32() else ROUNDED


def check_repeatable(target: Target, spec: LabSpec, checks: Checks) -> None:
    """Checks that the same seed gives the same text; no reference is needed."""
    with target.step("the same seed twice"):
        prompt = random_prompt(spec.seed, 24)
        fields = {"max_tokens": 24, "temperature": 1.0, "seed": spec.seed, "ignore_eos": True}
        first, second = (target.api.complete(prompt, **fields)["choices"][0]["text"] for _ in range(2))
    words = "the same seed gives the same text" if first == second else "the same seed gave two different texts"
    checks.add("seed", first == second, words)


def check_perplexity(
    target: Target,
    reference: Reference,
    texts: Sequence[Sequence[int]],
    tolerance: AnswerTolerance,
    checks: Checks,
) -> float:
    expected, actual = [], []
    for number, text in enumerate(texts):
        with target.step(f"perplexity of text {number + 1} of {len(texts)}"):
            actual += read_prompt_logprobs(target.api, text)
        expected += reference.logprobs(text)
    if not are_finite(actual):
        checks.add("perplexity", False, f"NaN or Inf among {len(actual)} log-probabilities")
        return math.nan
    if not are_finite(expected):
        raise ReferenceFailed(f"the reference, {reference.name}, returns log-probabilities that are NaN or Inf")
    served, right = perplexity_of(actual), perplexity_of(expected)
    change = served / right - 1
    checks.facts |= {
        "perplexity": served,
        "reference_perplexity": right,
        "perplexity_change": change,
        "tokens": len(actual),
        "worst_logprob_error": max(abs(ours - theirs) for ours, theirs in zip(actual, expected, strict=True)),
        "tolerance": tolerance.perplexity,
        "why": tolerance.why,
    }
    allowed = f"allowed {100 * tolerance.perplexity:g} %"
    words = f"{100 * change:+.3f} % from the reference over {len(actual)} tokens ({allowed})"
    is_right = abs(change) <= tolerance.perplexity
    checks.add("perplexity", is_right, words, cure="" if is_right else find_cure(reference))
    return served


def find_cure(reference: Reference) -> str:
    return OWN_SETTINGS if isinstance(reference, LocalReference) else ""


def perplexity_of(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def check_tokens(
    target: Target,
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    tolerance: AnswerTolerance,
    checks: Checks,
) -> None:
    equal = total = 0
    faults = []
    with target.step(f"{len(prompts)} continuations"):
        answers = ask_together(lambda prompt: continue_greedily(target.api, prompt, CONTINUED), prompts)
    target.on_progress(f"{len(prompts)} continuations by the reference")
    expected = reference.continue_greedily(prompts, CONTINUED)
    if not any(expected):
        raise ReferenceFailed(f"the reference, {reference.name}, continues none of {len(prompts)} prompts")
    for number, (prompt, answer, right) in enumerate(zip(prompts, answers, expected, strict=True)):
        agreed = count_agreed(answer, right)
        equal, total = equal + agreed, total + len(right)
        if agreed < len(right):
            margin = reference.margin([*prompt, *right[:agreed]])
            if margin is None or margin > tolerance.margin:
                faults.append(f"prompt {number + 1} differs at token {agreed + 1}" + _describe_margin(margin))
    checks.facts |= {"tokens_equal": equal, "tokens_compared": total}
    words = f"{equal} of {total} greedy tokens equal up to the first difference"
    cure = find_cure(reference) if faults else ""
    checks.add("tokens", not faults, f"{words}; {'; '.join(faults)}" if faults else words, cure=cure)


def count_agreed(answer: Sequence[int], right: Sequence[int]) -> int:
    """Counts tokens before the first difference or the end of the shorter sequence."""
    pairs = enumerate(zip(answer, right, strict=False))
    return next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(answer), len(right)))


def _describe_margin(margin: float | None) -> str:
    return "" if margin is None else f", where the reference's margin is {margin:.2f} nats"


def check_sinks(target: Target, texts: Sequence[Sequence[int]], checks: Checks) -> None:
    """Checks that the server uses attention sinks: without them, perplexity would be clearly higher."""
    target.on_progress("perplexity without attention sinks")
    reference = LocalReference(target.model, sinks=False)
    without = perplexity_of([value for text in texts for value in reference.logprobs(text)])
    with target.step("perplexity of the same texts"):
        served = perplexity_of([value for text in texts for value in read_prompt_logprobs(target.api, text)])
    checks.facts |= {"perplexity_without_sinks": without, "perplexity_with_sinks": served}
    words = f"without sinks perplexity would be {without:.3f}, the server's is {served:.3f} on the same text"
    checks.add("sinks", without / served >= MIN_SINK_EFFECT, words)
