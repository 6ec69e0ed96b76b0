"""Cached prefixes of a real engine, from the request to its pages: salts keep them apart, and some are not kept."""

import itertools

import pytest

numbers = itertools.count()


@pytest.fixture
def ask(kindling_server):
    """ask(text, cache_salt="a"): the number of prompt tokens found in the cache."""

    def complete(text, **fields):
        body = {"prompt": text, "max_tokens": 1, **fields}
        answer = kindling_server.post("/v1/completions", body, authorization="Bearer right")
        assert answer.status == 200, answer.body
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    return complete


@pytest.fixture
def text():
    """A new text of several pages."""
    return f"{next(numbers)} apples and pears. " * 40


def test_salts_keep_prefixes_apart(ask, text):
    salts = (None, "a", "b")
    assert [ask(text, cache_salt=salt) for salt in salts] == [0, 0, 0]
    assert all(ask(text, cache_salt=salt) > 0 for salt in salts)


def test_prompt_that_is_not_cached_leaves_nothing(ask, text):
    assert ask(text, cache_prompt=False) == ask(text, cache_prompt=False) == ask(text) == 0
    assert ask(text) > 0 == ask(text, cache_prompt=False)
