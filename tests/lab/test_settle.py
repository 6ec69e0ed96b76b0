"""Sinks that nothing showed are settled by correct answers."""

import pytest

from firesteel.lab.level import CORRECTNESS, KERNEL_PATH, SMOKE
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.coherence import COHERENCE, SHOWS_SINKS
from firesteel.lab.levels.kernel_path import check_slots
from firesteel.lab.settle import settle_sinks
from firesteel.lab.verdict import Verdict
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge, vllm

GOOD = vllm(lines.CUTLASS, lines.FLASHINFER, lines.GRAPHS)


def path_level(log, **environment):
    slots = judge("vllm", log=log, environment=environment)
    checks = Checks(KERNEL_PATH)
    checks.facts["imports"] = {}
    check_slots(slots, checks)
    return checks.result(slots.in_words(), slots=slots)


def correctness(verdict):
    return LevelResult(level=CORRECTNESS, verdict=verdict, reason="perplexity 1.3; 192 of 192 tokens equal")


def coherence(passed, *, shows_sinks=True, seed=True):
    """Level 2 without a reference."""
    checks = Checks(CORRECTNESS)
    checks.add("seed", seed, "the same seed")
    checks.add(COHERENCE, passed, "19 of 19 questions answered correctly")
    checks.add("reference", Verdict.UNPROVEN, "too large")
    checks.facts[SHOWS_SINKS] = passed and shows_sinks
    return checks.result()


def test_correct_answers_show_that_sinks_are_on():
    before = path_level(GOOD)
    smoke = LevelResult(level=SMOKE, verdict=Verdict.PASSED, reason="fine")
    assert before.verdict is Verdict.UNPROVEN
    first, after, _ = settle_sinks([smoke, before, correctness(Verdict.PASSED)])
    assert first == smoke and after.passed and after.facts == before.facts
    row = after.slots.slots["sinks"]
    assert row.value == "on" and row.sightings[0].source == "answers" and "192 of 192" in row.in_words()
    assert "sinks=on" in after.reason


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.UNPROVEN])
def test_answers_that_are_wrong_or_were_not_compared_settle_nothing(verdict):
    before = path_level(GOOD)
    assert settle_sinks([before, correctness(verdict)])[0] == before


def test_coherent_answers_of_a_gpt_oss_show_sinks_without_a_reference():
    first, second = settle_sinks([path_level(GOOD), coherence(True)])
    assert first.passed and second.verdict is Verdict.UNPROVEN
    row = first.slots.slots["sinks"]
    assert row.value == "on" and "level 2, coherence: 19 of 19" in row.in_words()


@pytest.mark.parametrize(
    "level", [coherence(False), coherence(True, shows_sinks=False), coherence(True, seed=False)]
)
def test_garbage_another_model_or_another_fault_settles_nothing(level):
    before = path_level(GOOD)
    assert settle_sinks([before, level])[0] == before


def test_correct_answers_do_not_outweigh_what_was_seen():
    off = path_level(GOOD, VLLM_ATTENTION_SINKS="false")
    assert settle_sinks([off, correctness(Verdict.PASSED)])[0] == off
    marlin = path_level(vllm(lines.MARLIN, lines.FLASHINFER, lines.GRAPHS))
    assert settle_sinks([marlin, correctness(Verdict.PASSED)])[0].failed
