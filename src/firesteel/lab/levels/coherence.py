"""Level 2: answers to fixed questions; no reference is needed."""

from __future__ import annotations

import re

from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.coherence.ask import ask_questions
from firesteel.lab.coherence.judge import judge_coherence
from firesteel.lab.level_result import Checks
from firesteel.lab.servers.target import Target
from firesteel.lab.verdict import Verdict
from firesteel.untrusted.json_file import read_object

COHERENCE = "coherence"  # the name of the check and of its figures
SHOWS_SINKS = "answers_show_sinks"
MODELS_WITH_SINKS = re.compile(r"(?i)gpt-?oss|kindling")  # without sinks their answers fail this check
CURE = (
    "look for attention sinks that are off (--no-sinks, VLLM_ATTENTION_SINKS), then for a wrong checkpoint, and "
    "compare with a reference (--reference, --reference-url)"
)


def check_coherence(target: Target, checks: Checks) -> None:
    """Checks that answers are right and no garbage; unproven if the server cannot be asked."""
    answers, refusals = ask_questions(target)
    coherence = judge_coherence(answers)
    verdict = coherence.verdict
    checks.facts[COHERENCE] = coherence.as_dict() | {"refusals": refusals}
    checks.facts[SHOWS_SINKS] = verdict is Verdict.PASSED and has_sinks(target)
    if verdict is Verdict.UNPROVEN:
        cure = "test a server that offers /v1/chat/completions or /v1/completions"
        checks.add(COHERENCE, verdict, f"no question could be asked ({'; '.join(refusals)})", cure=cure)
        return
    checks.add(COHERENCE, verdict, coherence.in_words(), cure=CURE if verdict is Verdict.FAILED else "")


def has_sinks(target: Target) -> bool:
    """Returns True if the served model is a gpt-oss, by its checkpoint or its name."""
    try:
        config = read_object(find_checkpoint(target.model) / "config.json", UserError, "")
    except UserError:
        return any(MODELS_WITH_SINKS.search(name) for name in (target.model, target.api.model))
    return config.get("model_type") == "gpt_oss"
