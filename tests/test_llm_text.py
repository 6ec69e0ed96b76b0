"""End of a text and its stream: stop tokens, stop strings, pieces."""

import json
import shutil
from dataclasses import replace

import pytest

from firesteel import SamplingParams

PROMPT = "The quick brown fox"
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def expected(llm):
    """Tokens of the prompt when it runs alone."""
    return llm.generate([PROMPT], GREEDY)[0].token_ids


def first_new_token(ids):
    """Returns an index above 0 of a token that did not occur before it."""
    return next(i for i in range(3, len(ids)) if ids[i] not in ids[:i])


def test_stop_token_ends_the_tokens_and_is_not_in_the_text(llm, expected):
    end = first_new_token(expected)
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(expected[end],))
    completion = llm.generate([PROMPT], params)[0]
    assert completion.token_ids == expected[: end + 1] and completion.finish_reason == "stop"
    assert completion.text == llm.tokenizer.decode(expected[:end])


def test_stop_token_at_max_tokens_finishes_with_stop(llm, expected):
    end = first_new_token(expected)
    params = SamplingParams(max_tokens=end + 1, ignore_eos=True, stop_token_ids=(expected[end],))
    assert llm.generate([PROMPT], params)[0].finish_reason == "stop"


def test_stop_token_in_the_prompt_does_not_stop(llm, expected):
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=tuple(map(ord, "Te")))
    assert llm.generate([PROMPT], params)[0].token_ids == expected


def test_end_token_of_the_checkpoint_stops_unless_ignored(open_llm, checkpoint, expected, tmp_path):
    end = first_new_token(expected)
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [expected[end]]}))
    llm = open_llm(tmp_path)
    stopped, ran_on = (
        llm.generate([PROMPT], SamplingParams(max_tokens=12, ignore_eos=ignore))[0] for ignore in (False, True)
    )
    assert (stopped.token_ids, stopped.finish_reason) == (expected[: end + 1], "stop")
    assert (ran_on.token_ids, ran_on.finish_reason) == (expected, "length")


def test_one_sequence_stops_while_the_others_continue(llm, expected):
    end = first_new_token(expected)
    stopping = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(expected[end],))
    actual = llm.generate([PROMPT] * 3, [GREEDY, stopping, GREEDY])
    assert [generation.token_ids for generation in actual] == [expected, expected[: end + 1], expected]


def test_stream_omits_the_stop_token(llm, expected):
    end = first_new_token(expected)
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(expected[end],))
    assert "".join(llm.stream(PROMPT, params)) == llm.generate([PROMPT], params)[0].text


def test_stop_string_ends_the_text_also_inside_a_token(llm):
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=4, ignore_eos=True)
    text = llm.generate([PROMPT], params)[0].text
    stop = text[20:24]
    cut = text[: text.index(stop)]
    before = llm.engine.statistics()
    for include, shown in ((False, cut), (True, cut + stop)):
        asked = replace(params, stop=(stop,), include_stop_str_in_output=include)
        completion = llm.generate([PROMPT], asked)[0]
        assert (completion.text, completion.finish_reason) == (shown, "stop")
        assert len(completion.token_ids) < 60
        assert "".join(llm.stream(PROMPT, asked)) == shown
    after = llm.engine.statistics()
    assert after.requests_finished - before.requests_finished == 4 and not llm.engine.has_work
    assert after.requests_cancelled == before.requests_cancelled


def test_stop_string_before_min_tokens_is_plain_text(llm):
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=4, ignore_eos=True)
    whole = llm.generate([PROMPT], params)[0]
    stop = next(character for character in whole.text if character.isascii() and character.isprintable())
    asked = replace(params, stop=(stop,), min_tokens=30)
    completion = llm.generate([PROMPT], asked)[0]
    assert len(completion.token_ids) > 30 and stop in completion.text


def test_stream_gives_the_text_of_generate_in_pieces(llm):
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=4, ignore_eos=True)
    pieces = list(llm.stream("héllo wörld, 日本", params))
    assert "".join(pieces) == llm.generate(["héllo wörld, 日本"], params)[0].text
    assert sum(map(bool, pieces)) > 10


def test_stream_ends_with_a_character_that_was_cut(llm):
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=4, ignore_eos=True)
    ids = llm.generate(["b"], params)[0].token_ids
    cut = next(i for i, token in enumerate(ids) if 0xC2 <= token <= 0xF4)  # first byte of a longer character
    pieces = list(llm.stream("b", replace(params, max_tokens=cut + 1)))
    assert pieces[-1] == "\ufffd" and "".join(pieces) == llm.tokenizer.decode(ids[: cut + 1])


def test_generating_while_a_stream_is_open_changes_neither(llm, expected):
    stream = llm.stream(PROMPT, GREEDY)
    begun = [next(stream) for _ in range(3)]
    assert llm.generate([PROMPT, "a"], GREEDY)[0].token_ids == expected
    assert "".join([*begun, *stream]) == llm.tokenizer.decode(expected)


def test_stream_closed_early_frees_its_pages(llm):
    stream = llm.stream(PROMPT, GREEDY)
    next(stream)
    assert llm.engine.has_work
    stream.close()
    assert not llm.engine.has_work and llm.engine.statistics().pages_held == 0
