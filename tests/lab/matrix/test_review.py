"""A gate that pays is accepted, one that costs or breaks the model is rejected."""

import importlib.util
import json
import sys
import textwrap
from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.matrix.matrix import Matrix
from firesteel.lab.matrix.review import (
    ACCEPTED,
    NO_DIFFERENCE,
    OPEN,
    REJECTED,
    parse_gate,
    pool,
    read_level_two,
    review_gate,
)
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.report.report import build

spec = importlib.util.spec_from_file_location("report_parts", Path(__file__).parents[1] / "report_parts.py")
parts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(parts)

# A cell whose speed is what the file beside it says for its side and round.
FAKE = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    path = Path(sys.argv[1])
    [value] = json.loads(path.read_text())["chosen"].values()
    benches = json.loads(Path(__file__).with_name("benches.json").read_text())
    number = int(path.parts[-3].removeprefix("round-")) - 1
    done = {"status": "done", "figures": {}, "reason": "", "bench": benches[value][number]}
    path.with_name("outcome.json").write_text(json.dumps(done))
""")


@pytest.fixture
def review(tmp_path):
    """review(off, on): of tokens a second, one a round."""

    def run(off, on, **given):
        (tmp_path / "fake.py").write_text(FAKE)
        sides = {"off": off, "on": on}
        benches = {
            name: [parts.bench([parts.bench_row([value])]) for value in values] for name, values in sides.items()
        }
        (tmp_path / "benches.json").write_text(json.dumps(benches))
        command = (sys.executable, str(tmp_path / "fake.py"))
        matrix = Matrix(gates=parse_gate("prefix_caching"))
        return review_gate(matrix, tmp_path / "out", tell=lambda words: None, command=command, **given)

    return run


SLOW, FAST, WILD = (100.0, 101.0, 99.0), (110.0, 111.0, 109.0), (60.0, 150.0, 105.0)


def test_a_gain_is_accepted(review):
    found, compared = review(SLOW, FAST)
    assert found.verdict == ACCEPTED and "better" in found.why and found.hypothesis.startswith("prefix_caching=on")
    assert all(one.met for one in found.criteria) and compared.rows
    assert found.rounds == 3


def test_a_loss_is_rejected(review):
    found, _ = review(FAST, SLOW)
    assert found.verdict == REJECTED and not all(one.met for one in found.criteria)


def test_wrong_answers_are_rejected_whatever_they_gain(review):
    seen = []

    def check(flags, folder):
        seen.append(list(flags))
        return False, "perplexity 81 instead of 4"

    found, _ = review(SLOW, FAST, check=check)
    assert found.verdict == REJECTED and "perplexity 81" in found.why
    assert seen == [["--prefix-caching"]]


def test_answers_that_nobody_compared_leave_a_gain_open(review):
    found, _ = review(SLOW, FAST, check=lambda flags, folder: (None, "not compared: no reference"))
    assert found.verdict == OPEN and "better, but the answers were not compared: no reference" in found.why
    assert found.criteria[0].met is None


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
def test_level_two_is_right_only_where_it_was_run_and_counts(fields, is_right, words):
    level = {"level": "2", "passed": True, "was_run": True, "valid": True, "reason": "why", **fields}
    found = read_level_two([level])
    assert found[0] is is_right and found[1].startswith(words)


def test_the_same_speed_is_no_difference(review):
    assert review(SLOW, SLOW)[0].verdict == NO_DIFFERENCE


def test_criterion_that_the_spread_hides_is_neither_met_nor_missed(review):
    found, _ = review(SLOW, (60.0, 150.0, 140.0))
    unclear = [one for one in found.criteria if "unclear" in one.found]
    assert unclear and all(one.met is None for one in unclear)
    assert "| ⚠️ unclear |" in to_markdown(build({"levels": [], "review": found.as_dict()}))


def test_what_the_spread_hides_stays_open(review):
    assert review(SLOW, WILD)[0].verdict in (OPEN, NO_DIFFERENCE)
    assert review(SLOW, WILD)[0].verdict != ACCEPTED


def test_second_review_measures_anew(review, tmp_path):
    """It found the first one's rounds and wrote them down as its own."""
    stale = tmp_path / "out" / "correctness" / "result.json"

    def check(flags, folder):
        assert not stale.exists()
        return True, "right"

    assert review(SLOW, FAST, rounds=3)[0].verdict == ACCEPTED
    stale.parent.mkdir()
    stale.write_text("{}")
    assert review(FAST[:2], SLOW[:2], rounds=2, check=check)[0].verdict == REJECTED
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["round-1", "round-2"]


def test_a_round_is_one_sample():
    pooled = pool([parts.bench([parts.bench_row(SLOW)]), parts.bench([parts.bench_row(FAST)], peak=9 << 30)])
    assert pooled["rows"][0]["series"]["tg_tok_s"]["values"] == [100.0, 110.0]
    assert pooled["usage"]["peak_memory_bytes"] == 9 << 30


def test_the_sheet_has_hypothesis_criteria_result_and_verdict(review):
    found, _ = review(SLOW, FAST, hypothesis="caching helps")
    text = to_markdown(build({"levels": [], "review": found.as_dict()}))
    for words in ("Hypothesis: caching helps", "| criterion | wanted | result | met |", "Verdict: accepted"):
        assert words in text
    assert text.splitlines()[2] == "**✅ prefix_caching: accepted**"


@pytest.mark.parametrize("word", ["kv_dtype=auto,fp8,bf16", "kv_dtype=fp8"])
def test_a_review_has_two_sides(review, word, tmp_path):
    with pytest.raises(UserError, match="two values"):
        review_gate(Matrix(gates=parse_gate(word)), tmp_path)
