import argparse
import json
from types import SimpleNamespace

import pytest

import vllm_tokens


def save(path, rounds, margins):
    path.write_text(json.dumps({"rounds": rounds, "margins": margins}))
    return path


@pytest.fixture
def answers(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_tokens, "ROUNDS", [[5], [7, 9]])
    rounds, margins = [[[1, 2]], [[3, 4], [5, 6]]], [[[0.5, 0.5]], [[0.5, 0.25], [1.0, 1.0]]]
    ours = save(tmp_path / "ours.json", rounds, margins)
    same = save(tmp_path / "same.json", rounds, [[[]], [[], []]])
    rounds[1][0][1] = 8
    return ours, same, save(tmp_path / "other.json", rounds, margins)


def test_equal_answers_have_no_difference(answers, capsys):
    assert vllm_tokens.compare_files(argparse.Namespace(files=answers[:2])) == 0
    assert "ours and same: 3 of 3 requests equal" in capsys.readouterr().out


def test_difference_is_shown_with_its_place_and_margin(answers, capsys):
    assert vllm_tokens.compare_files(argparse.Namespace(files=[answers[0], answers[2]])) == 1
    out = capsys.readouterr().out
    assert "7 tokens, one of 2: after 1 of 32 tokens, margin 0.2500" in out
    assert "2 of 3 requests equal" in out


def test_margin_is_the_distance_of_the_two_best():
    entries = {number: SimpleNamespace(logprob=value) for number, value in ((4, -3.0), (9, -1.0), (2, -1.5))}
    assert vllm_tokens.find_margins([entries]) == [0.5]


def test_rounds_are_the_same_each_time():
    first, again = (vllm_tokens.draw_rounds(1000) for _ in range(2))
    assert first == again
    assert [[len(prompt) for prompt in prompts] for prompts in first] == vllm_tokens.ROUNDS
