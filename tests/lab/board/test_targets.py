"""Targets by depth are met, missed or not judged."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.board.entry import make_entry
from firesteel.lab.board.targets import SHIPPED, SpeedTarget, Targets, conclude_targets, judge_target, read_targets
from firesteel.lab.result import parse_result
from firesteel.lab.verdict import Verdict
from tests.lab.board_results import content_of

SPARK = read_targets("spark.toml")


def entry(*arguments, **fields):
    return make_entry("x", parse_result(content_of(*arguments, **fields)))


def test_targets_of_the_spark_are_those_published():
    [speed, first, each] = SPARK.target
    assert speed.least == {0: 52, 4096: 47, 8192: 41, 16384: 34, 32768: 26} and (speed.pp, speed.tg) == (2048, 32)
    assert (first.figure, first.most) == ("ttft_ms", {0: 100}) and (each.figure, each.most) == ("tpot_ms", {0: 20})
    [llama, sglang, _] = SPARK.engine
    assert llama.tg_tok_s[32768] == 41.72 and llama.pp_tok_s[0] == 2450 and sglang.tpot_ms == {0: 18.83}


@pytest.mark.parametrize(
    ("target", "depth", "bound", "verdict", "reason"),
    [
        (SpeedTarget(figure="tg_tok_s", least={0: 49.0}), 0, 49.0, Verdict.PASSED, ""),
        (SpeedTarget(figure="tg_tok_s", least={0: 51.0}), 0, 51.0, Verdict.FAILED, ""),
        (SpeedTarget(figure="tg_tok_s", least={0: 50.01}), 0, 50.01, Verdict.UNPROVEN, "within the noise"),
        (SpeedTarget(figure="tg_tok_s", least={4096: 44.0}), 4096, 44.0, Verdict.PASSED, ""),
        (SpeedTarget(figure="tg_tok_s", least={8192: 1.0}), 8192, 1.0, Verdict.UNPROVEN, "not measured"),
        (SpeedTarget(figure="tpot_ms", most={0: 21.0}), 0, 21.0, Verdict.PASSED, ""),
        (SpeedTarget(figure="tpot_ms", most={0: 19.0}), 0, 19.0, Verdict.FAILED, ""),
        (SpeedTarget(figure="ttft_ms", pp=128, most={0: 1e6}), 0, 1e6, Verdict.UNPROVEN, "--pp 128 --tg 32"),
    ],
)
def test_target_is_judged_by_the_interval_of_its_own_workload(target, depth, bound, verdict, reason):
    judged = judge_target(target, depth, bound, entry(50.0))
    assert judged.verdict is verdict and reason in judged.reason


def test_single_run_judges_no_target():
    judged = judge_target(SPARK.target[0], 0, 52.0, entry(90.0, runs=1))
    assert judged.verdict is Verdict.UNPROVEN and judged.reason == "too few runs"


def test_whole_is_met_only_if_every_target_is():
    rows = SPARK.judge(entry(60.0))
    assert conclude_targets(rows) is Verdict.UNPROVEN  # two depths and a short prompt are not measured
    assert conclude_targets(SPARK.judge(entry(40.0))) is Verdict.FAILED


@pytest.mark.parametrize(
    ("model", "device", "applies"),
    [
        ("gpt-oss-120b", "NVIDIA GB10", True),
        ("gpt-oss-20b", "NVIDIA GB10", False),
        ("gpt-oss-120b", "NVIDIA H200", False),
    ],
)
def test_targets_apply_to_their_model_and_gpu(model, device, applies):
    assert SPARK.apply_to(model, device) == applies and Targets().apply_to(model, device)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[", "cannot be read"),
        ("colour = 'red'", "unknown colour"),
        ("[[target]]\nfigure = 'speed'\nleast = { 0 = 1 }", "must be of pp_tok_s"),
        ("[[target]]\nfigure = 'tg_tok_s'", "either least or most"),
        ("[[target]]\nfigure = 'tg_tok_s'\nleast = { 0 = 'much' }", "cannot be read"),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path, text, words):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_targets(str(path))


def test_missing_file_is_refused_with_those_that_ship():
    with pytest.raises(UserError, match=r"ship with firesteel are spark\.toml"):
        read_targets("nowhere.toml")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.name)
def test_files_that_ship_can_be_read(path):
    assert read_targets(path.stem).target
