"""The verb `lab board`: table, page, JSON and exit codes."""

import json

import pytest

from tests.lab.board_results import write_result


@pytest.fixture
def board(run, tmp_path):
    def call(*flags, width="200"):
        return run("lab", "board", str(tmp_path), "--out", str(tmp_path / "board.html"), *flags, COLUMNS=width)

    return call


def test_results_are_shown_and_the_page_is_written(board, tmp_path):
    write_result(tmp_path, "slow", 40.0)
    write_result(tmp_path, "fast", 60.0)
    result = board()
    assert result.exit_code == 0, result.output
    assert "gpt-oss-120b on NVIDIA GB10, pp2048 tg32" in result.output and "2 ranked; page: " in result.output
    assert result.output.index("1. vllm") < result.output.index("2. vllm")
    assert "Generation by depth" in (tmp_path / "board.html").read_text()


def test_json_holds_ranks_figures_and_faults(board, tmp_path):
    write_result(tmp_path, "fast", 60.0)
    write_result(tmp_path, "unseen", 60.0, levels=[])
    content = json.loads(board("--json").stdout)
    [ranked], unranked = content["sections"][0]["ranked"], content["unranked"]
    assert ranked["rank"] == 1 and ranked["headline"]["tg_tok_s"]["value"] == 60.0
    assert ranked["by_depth"]["4096"]["value"] == 54.0 and ranked["slots"]["moe"]["value"] == "cutlass"
    assert unranked == []  # it measured nothing
    assert content["without_speed"][0].endswith("unseen/result.json")


def test_exit_code_is_1_if_a_target_is_missed_and_3_if_nothing_is_ranked(board, tmp_path):
    assert board().exit_code == 3
    write_result(tmp_path, "slow", 40.0)
    result = board("--targets", "spark.toml")
    assert result.exit_code == 1 and "missed" in result.output


def test_wrong_folder_and_targets_are_named(run, tmp_path):
    missing = run("lab", "board", str(tmp_path / "nowhere"))
    assert "nowhere does not exist" in str(missing.exception)
    wrong = run("lab", "board", str(tmp_path), "--targets", "moon.toml")
    assert "--targets moon.toml: no such file" in str(wrong.exception)
