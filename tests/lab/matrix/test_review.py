"""A gate that is faster is accepted; one that is slower or breaks the model is rejected."""

import json
import sys
import textwrap

import pytest

from firesteel.errors import UserError
from firesteel.lab import level_two
from firesteel.lab.level_two import judge_level_two
from firesteel.lab.matrix.result import Matrix
from firesteel.lab.matrix.review import (
    ACCEPTED,
    NO_DIFFERENCE,
    OPEN,
    REJECTED,
    AnswerVerdict,
    parse_gate,
    review_gate,
)
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.report.report import build_document
from firesteel.lab.result import LabResult
from tests.lab import report_parts as parts

# A cell whose speed is given by a file for its side and round.
FAKE = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    path = Path(sys.argv[1])
    [value] = json.loads(path.read_text())["chosen"].values()
    benches = json.loads(Path(__file__).with_name("benches.json").read_text())
    number = int(path.parts[-3].removeprefix("round-")) - 1
    outcome = {"status": "done", "verdict": "passed", "unranked": "", "bench": benches[value][number]}
    faults = json.loads(Path(__file__).with_name("faults.json").read_text())
    path.with_name("outcome.json").write_text(json.dumps(outcome | faults.get(f"{value} {number + 1}", {})))
""")


@pytest.fixture
def review(tmp_path):
    """review(off, on): the review of these tokens per second, one per round."""

    def run(off, on, check=lambda matrix, chosen, folder: AnswerVerdict(True, "right"), faults=None, **given):
        (tmp_path / "fake.py").write_text(FAKE)
        (tmp_path / "faults.json").write_text(json.dumps(faults or {}))
        sides = {"off": off, "on": on}
        benches = {
            name: [parts.bench([parts.bench_row([value])]) for value in values] for name, values in sides.items()
        }
        (tmp_path / "benches.json").write_text(json.dumps(benches))
        command = (sys.executable, str(tmp_path / "fake.py"))
        matrix = Matrix(gates=parse_gate("prefix_caching"))
        return review_gate(
            matrix, tmp_path / "out", on_progress=lambda words: None, command=command, check=check, **given
        )

    return run


SLOW, FAST, WILD = (100.0, 101.0, 99.0), (110.0, 111.0, 109.0), (60.0, 150.0, 105.0)


def test_gain_is_accepted(review):
    sheet, compared = review(SLOW, FAST)
    assert sheet.verdict == ACCEPTED and "better" in sheet.why and sheet.hypothesis.startswith("prefix_caching=on")
    assert all(row.met for row in sheet.criteria) and compared.rows
    assert sheet.rounds == 3


def test_loss_is_rejected(review):
    sheet, _ = review(FAST, SLOW)
    assert sheet.verdict == REJECTED and not all(row.met for row in sheet.criteria)


def test_wrong_answers_are_rejected_despite_a_gain(review):
    seen = []

    def check(matrix, chosen, folder):
        seen.append(chosen)
        return AnswerVerdict(False, "perplexity 81 instead of 4")

    sheet, _ = review(SLOW, FAST, check=check)
    assert sheet.verdict == REJECTED and "perplexity 81" in sheet.why
    assert seen == [{"prefix_caching": "on"}]


def test_gain_without_compared_answers_stays_open(review):
    sheet, _ = review(
        SLOW, FAST, check=lambda matrix, chosen, folder: AnswerVerdict(None, "not compared: no reference")
    )
    assert sheet.verdict == OPEN and "better, but the answers were not compared: no reference" in sheet.why
    assert sheet.criteria[0].met is None


def test_gain_is_not_accepted_if_nobody_asked_for_the_answers(review):
    """The sheet said "correct: not asked, met: yes"."""
    sheet, _ = review(SLOW, FAST, check=None)
    assert sheet.verdict == OPEN and "the answers were not compared: --no-correctness" in sheet.why
    assert sheet.criteria[0].met is None


@pytest.mark.parametrize(
    ("fields", "is_right", "words"),
    [
        ({}, True, "why"),
        ({"passed": False}, False, "why"),
        ({"was_run": False}, None, "not compared: why"),
        ({"valid": False}, None, "not compared: the kernel path"),
        ({"passed": False, "was_run": False}, None, "not compared: why"),
        ({"level": "1.5"}, None, "not compared: level 2 was not run"),
    ],
)
def test_level_two_counts_only_if_it_was_run_and_is_valid(fields, is_right, words):
    level = {"level": "2", "passed": True, "was_run": True, "valid": True, "reason": "why", **fields}
    verdict = judge_level_two(parts.parsed_levels(level))
    assert verdict.is_right is is_right and verdict.words.startswith(words)


UNSEEN = {"verdict": "unproven", "unranked": "kernel path not judged: moe was not seen"}
MARLIN = {"status": "not measured", "verdict": "failed", "unranked": "kernel path failed: marlin", "bench": None}


@pytest.mark.parametrize(
    ("faults", "verdict", "met"),
    [
        ({"on 2": UNSEEN}, OPEN, None),
        ({"off 3": UNSEEN}, OPEN, None),
        ({"off 1": MARLIN}, OPEN, False),
        ({"on 1": MARLIN}, REJECTED, False),
        ({"on 2": {**MARLIN, "status": "crashed", "unranked": "SIGKILL"}}, REJECTED, False),
    ],
)
def test_gain_by_a_round_that_was_not_proven_is_not_accepted(review, faults, verdict, met):
    sheet, compared = review(SLOW, FAST, faults=faults)
    [(where, fault)] = faults.items()
    words = f"prefix_caching={where.split()[0]}: {fault['unranked']}"
    assert sheet.verdict == verdict and words in sheet.why
    [path] = [row for row in sheet.criteria if row.criterion == "kernel path"]
    assert path.met is met and path.found == words
    assert (compared is None) is ("status" in fault)
    assert words in to_markdown(build_document(LabResult(review=sheet, comparison=compared)))


def test_wrong_answers_are_rejected_also_on_an_unproven_path(review):
    wrong = AnswerVerdict(False, "garbage")
    sheet, _ = review(SLOW, FAST, check=lambda *_: wrong, faults={"on 1": UNSEEN})
    assert sheet.verdict == REJECTED and "garbage" in sheet.why


def test_equal_speed_is_no_difference(review):
    assert review(SLOW, SLOW)[0].verdict == NO_DIFFERENCE


def test_criterion_hidden_by_the_spread_is_unclear(review):
    sheet, _ = review(SLOW, (60.0, 150.0, 140.0))
    unclear = [row for row in sheet.criteria if "unclear" in row.found]
    assert unclear and all(row.met is None for row in unclear)
    assert "** unclear: " in to_markdown(build_document(LabResult(review=sheet)))


def test_difference_hidden_by_the_spread_stays_open(review):
    assert review(SLOW, WILD)[0].verdict in (OPEN, NO_DIFFERENCE)
    assert review(SLOW, WILD)[0].verdict != ACCEPTED


def test_second_review_measures_again(review, tmp_path):
    """It found the rounds of the first and reported them as its own."""
    stale = tmp_path / "out" / "correctness" / "result.json"

    def check(matrix, chosen, folder):
        assert not stale.exists()
        return AnswerVerdict(True, "right")

    assert review(SLOW, FAST, rounds=3)[0].verdict == ACCEPTED
    stale.parent.mkdir()
    stale.write_text("{}")
    assert review(FAST[:2], SLOW[:2], rounds=2, check=check)[0].verdict == REJECTED
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["round-1", "round-2"]


def test_report_has_hypothesis_criteria_result_and_verdict(review):
    sheet, _ = review(SLOW, FAST, hypothesis="caching helps")
    text = to_markdown(build_document(LabResult(review=sheet)))
    for words in ("Hypothesis: caching helps", "wanted: level 2 passes", "Verdict: accepted"):
        assert words in text
    assert text.splitlines()[2] == "**✅ prefix_caching: accepted**"


@pytest.mark.parametrize(
    ("word", "engine", "sides"),
    [
        ("prefix_caching", "firesteel", ("off", "on")),
        ("enforce-eager", "vllm", ("without", "with")),
        ("env:VLLM_X=a,b", "vllm", ("a", "b")),
        ("env:FIRESTEEL_KV_DTYPE=fp8", "firesteel", ("without", "fp8")),
        ('attention-config={"backend": "A", "b": 1}', "vllm", ("without", '{"backend": "A", "b": 1}')),
    ],
)
def test_sides_of_a_review_are_off_and_on(word, engine, sides):
    """A variable became a flag, and JSON was split at its comma."""
    [(_, values)] = parse_gate(word, engine=engine).items()
    assert values == sides


def test_variable_alone_is_no_gate_of_a_review():
    with pytest.raises(UserError, match="needs values"):
        parse_gate("env:VLLM_X", engine="vllm")


def test_answers_are_checked_with_the_variable_of_the_gate(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(level_two, "run_process", lambda *given, **_: seen.append(given))
    matrix = Matrix(gates=parse_gate("env:VLLM_X=a"), engine="vllm", flags=("--fast",), level="4")
    verdict = level_two.check_by_level_two(matrix, {"env:VLLM_X": "a"}, tmp_path)
    [(cell, environment, *_)] = seen
    assert environment == {"VLLM_X": "a"} and cell.spec.level == "2" and cell.spec.flags == ("--fast",)
    assert verdict.is_right is None and "left no result" in verdict.words


@pytest.mark.parametrize("word", ["kv_dtype=auto,fp8,bf16", "kv_dtype=fp8"])
def test_review_needs_two_values(review, word, tmp_path):
    with pytest.raises(UserError, match="two values"):
        review_gate(Matrix(gates=parse_gate(word)), tmp_path)
