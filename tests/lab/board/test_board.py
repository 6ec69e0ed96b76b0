"""Ranks, records and verdicts of a board."""

import json

import pytest

from firesteel.lab.board.board import make_board
from firesteel.lab.board.targets import read_targets
from firesteel.lab.verdict import Verdict
from tests.lab import report_parts as parts
from tests.lab.board_results import bench_of, write_result


def names(section):
    return [ranked.entry.path.split("/")[-2] for ranked in section.ranked]


def test_proven_runs_are_ranked_by_speed_and_others_listed(tmp_path):
    for name, speed in (("slow", 40.0), ("fast", 60.0), ("middle", 50.0)):
        write_result(tmp_path, name, speed)
    marlin = [
        parts.level("1.5", "failed", reason="marlin ran"),
        parts.level("4", valid=False, bench=bench_of(99.0)),
    ]
    write_result(tmp_path, "marlin", levels=marlin)
    write_result(tmp_path, "unseen", levels=[parts.level("4", bench=bench_of(98.0))])
    board = make_board([tmp_path])
    [section] = board.sections
    assert names(section) == ["fast", "middle", "slow"] and [ranked.rank for ranked in section.ranked] == [1, 2, 3]
    assert {entry.path.split("/")[-2] for entry in board.unranked} == {"marlin", "unseen"}
    assert board.in_words() == "3 ranked, 2 not ranked" and json.dumps(board.as_dict())


def test_only_equal_workloads_models_and_devices_are_ranked_together(tmp_path):
    write_result(tmp_path, "a", 50.0)
    write_result(tmp_path, "b", 60.0, pp=512)
    write_result(tmp_path, "c", 70.0, device="NVIDIA H200")
    titles = [section.title for section in make_board([tmp_path]).sections]
    assert titles == [
        "gpt-oss-120b on NVIDIA GB10, pp2048 tg32",
        "gpt-oss-120b on NVIDIA GB10, pp512 tg32",
        "gpt-oss-120b on NVIDIA H200, pp2048 tg32",
    ]


def test_equal_speeds_share_a_rank(tmp_path):
    for name, speed in (("a", 50.0), ("b", 50.0), ("c", 40.0)):
        write_result(tmp_path, name, speed)
    assert [ranked.rank for ranked in make_board([tmp_path]).sections[0].ranked] == [1, 1, 3]


def test_runs_that_were_the_best_until_then_are_marked(tmp_path):
    for name, speed, day in (("first", 40.0, 1), ("worse", 30.0, 2), ("best", 60.0, 3), ("last", 50.0, 4)):
        write_result(tmp_path, name, speed, day=day)
    [section] = make_board([tmp_path]).sections
    assert {name for name, ranked in zip(names(section), section.ranked, strict=True) if ranked.was_best} == {
        "first",
        "best",
    }


@pytest.mark.parametrize(
    ("speed", "verdict"), [(40.0, Verdict.FAILED), (70.0, Verdict.UNPROVEN)], ids=["missed", "not all measured"]
)
def test_verdict_is_that_of_the_best_configuration_on_the_targets(tmp_path, speed, verdict):
    write_result(tmp_path, "best", speed)
    write_result(tmp_path, "other", 10.0)
    board = make_board([tmp_path], read_targets("spark"))
    assert board.verdict is verdict and board.sections[0].published[0].name == "llama.cpp"
    assert make_board([tmp_path]).verdict is Verdict.PASSED


def test_targets_of_another_gpu_judge_nothing(tmp_path):
    write_result(tmp_path, "a", 500.0, device="NVIDIA H200")
    board = make_board([tmp_path], read_targets("spark"))
    assert board.verdict is Verdict.UNPROVEN and not board.sections[0].best.targets


def test_board_without_a_ranked_run_is_unproven(tmp_path):
    assert make_board([tmp_path]).verdict is Verdict.UNPROVEN
    assert make_board([tmp_path]).in_words() == "no results"
