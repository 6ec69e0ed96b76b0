"""vLLM's --speculative-config: settings, keys that change nothing, and what is refused by name with the cure."""

import json

import pytest

from firesteel import UserError
from firesteel.config import resolve
from firesteel.config.speculate_section import DRAFT_KINDS
from firesteel.config.speculative_config import (
    EXAMPLE,
    METHODS,
    REFUSED_METHODS,
    UNREAD_KEYS,
    translate_speculation,
)


def translate(given, settings=None):
    return translate_speculation(json.dumps(given), settings or {})


@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_a_kind_of_drafts_that_the_settings_know(method):
    settings, lines = translate({"method": method, "num_speculative_tokens": 4})
    assert settings == {"speculate": method, "num_speculative_tokens": 4} and lines == [] and method in DRAFT_KINDS
    assert resolve(settings, environ={}).config.speculate.speculate == method


def test_published_command_line_of_vllm_is_understood():
    settings, lines = translate_speculation(EXAMPLE, {})
    model = "nvidia/gpt-oss-120b-Eagle3-v3"
    assert settings == {"speculate": "eagle3", "draft_model": model, "num_speculative_tokens": 3} and lines == []


@pytest.mark.parametrize(
    ("model", "method"),
    [("nvidia/gpt-oss-120b-Eagle3-v3", "eagle3"), ("z-lab/gpt-oss-20b-DFlash", "dflash"), ("[ngram]", "ngram")],
)
def test_without_a_method_the_name_of_the_model_says_it(model, method):
    assert translate({"model": model})[0]["speculate"] == method


def test_model_of_ngram_drafts_is_left_out_with_a_line():
    settings, [line] = translate({"method": "ngram", "model": "openai/gpt-oss-20b"})
    assert settings == {"speculate": "ngram"} and "need no draft model" in line


def test_null_is_as_if_left_out():
    assert translate({"method": "ngram", "model": None, "revision": None}) == ({"speculate": "ngram"}, [])


ACCEPTED = [(key, value) for key, known in UNREAD_KEYS.items() for value in known.accepted]
ACCEPTED += [(key, 4) for key, known in UNREAD_KEYS.items() if known.is_count]


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_value_that_changes_nothing_is_accepted_with_what_is_done_instead(key, value):
    settings, lines = translate({"method": "ngram", key: value})
    assert settings == {"speculate": "ngram"}
    meaning = UNREAD_KEYS[key].meaning
    assert lines == ([f"--speculative-config {key} {json.dumps(value)}: {meaning}"] if meaning else [])


@pytest.mark.parametrize("key", UNREAD_KEYS)
def test_any_other_value_is_refused_by_name_with_the_reason(key):
    for value in ("strange", 0, [3]):
        with pytest.raises(UserError) as caught:
            translate({"method": "ngram", key: value})
        assert f"{key} = {json.dumps(value)}: " in str(caught.value) and UNREAD_KEYS[key].refusal in str(
            caught.value
        )
        assert UNREAD_KEYS[key].refusal


def test_true_is_not_taken_for_the_number_one():
    for key in ("draft_tensor_parallel_size", "prompt_lookup_max", "num_speculative_tokens"):
        with pytest.raises(UserError, match=key):
            translate({"method": "ngram", key: True})


@pytest.mark.parametrize("method", [*REFUSED_METHODS, "deepseek_mtp", "qwen3_next_mtp"])
def test_method_of_vllm_that_is_missing_here_is_refused_with_the_cure(method):
    with pytest.raises(UserError, match=f"method '{method}' is not possible, .*methods: ngram, eagle3, dflash"):
        translate({"method": method})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "psychic"}, "'psychic' is not possible, it is not known here"),
        ({"method": 3}, "the method 3 is not possible"),
        ({"num_speculative_tokens": 3}, "the key 'method' is missing"),
        ({"model": "nvidia/other"}, "the key 'method' is missing"),
        ({"method": "ngram", "num_spec_tokens": 3}, "'num_spec_tokens' is not known .* 'num_speculative_tokens'"),
        ({"method": "eagle3", "model": 7}, "model = 7: must be a folder or the name"),
        ({"method": "eagle3", "model": ""}, "model = ''"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens = 0"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, "num_speculative_tokens = '3'"),
    ],
)
def test_wrong_key_or_value_is_refused_by_name(given, words):
    with pytest.raises(UserError, match=words):
        translate(given)


@pytest.mark.parametrize("text", ["{method: ngram}", "", '"ngram"', "[1]", "[" * 100_000])
def test_bad_json_is_refused_with_an_example(text):
    with pytest.raises(UserError, match=r"is not JSON|must be a JSON object") as caught:
        translate_speculation(text, {})
    assert EXAMPLE in str(caught.value) and len(str(caught.value)) < 600


def test_our_own_kind_of_drafts_replaces_all_of_it_and_a_wrong_value_is_still_an_error():
    settings, lines = translate({"method": "eagle3", "model": "head"}, {"speculate": "off"})
    assert settings == {} and lines == ["--speculative-config is not used: --speculate off was given"]
    with pytest.raises(UserError, match="draft_tensor_parallel_size"):
        translate({"method": "eagle3", "draft_tensor_parallel_size": 2}, {"speculate": "off"})
