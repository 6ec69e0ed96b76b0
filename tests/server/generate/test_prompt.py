"""Prompts are cut as asked, bad words become tokens, and scored tokens are spelled."""

import pytest

from firesteel.errors import RequestError
from firesteel.server.generate.prompt import (
    check_prompt_logprobs,
    encode_bad_words,
    spell_prompt_logprobs,
    spell_token,
    truncate,
)
from firesteel.server.http.errors import ApiError
from firesteel.types import TokenLogprobs


@pytest.mark.parametrize(
    ("wanted", "num_new", "kept"),
    [(None, None, 9), (3, None, 3), (10, None, 9), (-1, 4, 6), (-1, None, 9), (-1, 0, 9), (-1, 50, 1)],
)
def test_last_tokens_are_kept(wanted, num_new, kept):
    prompt = list(range(9))
    assert truncate(prompt, wanted, max_context=10, num_new=num_new) == prompt[-kept:]


def test_first_tokens_are_kept_on_request():
    assert truncate([1, 2, 3], 2, max_context=10, num_new=None, keeps_start=True) == [1, 2]


@pytest.mark.parametrize("wanted", [0, 11])
def test_impossible_length_is_refused(wanted):
    with pytest.raises(ApiError, match="from 1 to the context of 10 tokens") as raised:
        truncate([1], wanted, max_context=10, num_new=None)
    assert raised.value.param == "truncate_prompt_tokens"


def test_bad_word_is_meant_at_the_start_and_after_a_space(tokenizer):
    assert encode_bad_words(["ab", " ab"], tokenizer) == ((97, 98), (32, 97, 98))


def test_tokens_of_bad_words_are_bounded(tokenizer):
    """Each choice sent all of them to the engine, on the event loop: seconds for 256 long words."""
    words = [f"{number:04}" + "a" * 28 for number in range(256)]
    assert len(encode_bad_words(words[:250], tokenizer)) == 500
    with pytest.raises(RequestError, match="the words have 16640 tokens; at most 16384"):
        encode_bad_words(words, tokenizer)


def test_number_of_prompt_logprobs_is_bounded():
    check_prompt_logprobs(131072, 1)
    check_prompt_logprobs(1 << 30, None)
    with pytest.raises(ApiError, match="3 tokens at each of 131072 tokens") as raised:
        check_prompt_logprobs(131072, 2)
    assert raised.value.param == "prompt_logprobs"


def test_prompt_logprobs_have_ranks_where_they_are_known(tokenizer):
    scored = [TokenLogprobs(token_id=97, logprob=-3.0, top=((98, -0.5), (99, -1.0)))]
    scored += [TokenLogprobs(token_id=98, logprob=-0.5, top=((98, -0.5),))]
    first, second, third = spell_prompt_logprobs(scored, tokenizer)
    assert first is None and list(second) == ["97", "98", "99"]
    assert [(entry.rank, entry.decoded_token) for entry in second.values()] == [(None, "a"), (1, "b"), (2, "c")]
    assert [(entry.rank, entry.logprob) for entry in third.values()] == [(1, -0.5)]


def test_token_is_named_by_its_id_on_request(tokenizer):
    assert spell_token(97, tokenizer, as_id=True) == "token_id:97"
    assert spell_token(97, tokenizer, as_id=False) == "a"
