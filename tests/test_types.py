"""Sampling parameters: refused values, their errors, and derived properties."""

import dataclasses
import pickle

import numpy as np
import pytest

import firesteel
from firesteel import SamplingParams, UserError
from firesteel.errors import RequestError
from firesteel.types import Request

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_tokens", [0, -1, 1.5, True, None]),
        ("min_tokens", [-1, 0.5]),
        ("temperature", [-0.1, NAN, INF, "warm"]),
        ("top_k", [-2, 1.5]),
        ("top_p", [0, -0.1, 1.1, NAN]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("repetition_penalty", [0, -1, INF, NAN]),
        ("presence_penalty", [-2.1, 2.1, NAN]),
        ("frequency_penalty", [-2.1, 2.1, NAN]),
        ("logit_bias", [{-1: 0.0}, {"5": 1.0}, {5: 101}, {5: -101}, {5: NAN}, [(5, 1.0)]]),
        ("allowed_token_ids", [(), (-1,), (1.5,), 7, "7"]),
        ("grammar", ["", 7, b"start: TEXT"]),
        ("seed", [2**64, -(2**63) - 1, 0.5, None]),
        ("stop", ["text", ("",), ("a",) * 17, (1,)]),
        ("stop_token_ids", [(-1,), (1.5,), 7]),
        ("logprobs", [-1, 21, 1.5, True]),
        ("prompt_logprobs", [-1, 21]),
    ],
)
def test_value_out_of_range_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(UserError, match=rf"^{name} = .*: must be "):
            SamplingParams(**{name: value})


def test_limits_themselves_are_accepted():
    low = {
        "max_tokens": 1,
        "min_tokens": 0,
        "temperature": 0,
        "top_k": -1,
        "top_p": 1e-9,
        "min_p": 0,
        "repetition_penalty": 1e-9,
        "presence_penalty": -2,
        "frequency_penalty": -2,
        "logit_bias": {0: -100},
        "seed": -(2**63),
        "stop": (),
        "logprobs": 0,
        "prompt_logprobs": 0,
    }
    high = {
        "min_tokens": 128,
        "temperature": 1e308,
        "top_k": 10**9,
        "top_p": 1,
        "min_p": 1,
        "repetition_penalty": 1e9,
        "presence_penalty": 2,
        "frequency_penalty": 2,
        "logit_bias": {10**6: 100},
        "seed": 2**64 - 1,
        "stop": ("a",) * 16,
        "logprobs": 20,
        "prompt_logprobs": 20,
    }
    for values in (low, high):
        params = SamplingParams(**values)
        assert {name: getattr(params, name) for name in values} == values


@pytest.mark.parametrize("values", [{"temperature": np.float32(0.5)}, {"top_k": np.int64(3)}])
def test_only_plain_numbers_are_accepted(values):
    """Other types cannot be sent to the engine process."""
    with pytest.raises(UserError, match=r"must be .*number"):
        SamplingParams(**values)


def test_min_tokens_must_not_exceed_max_tokens():
    with pytest.raises(UserError, match=r"^min_tokens = 5: must not exceed max_tokens = 4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_params_survive_pickling():
    params = SamplingParams(logit_bias={3: 1.0}, stop=("a",), seed=2**64 - 1)
    assert pickle.loads(pickle.dumps(params)) == params
    assert SamplingParams(**dataclasses.asdict(params)) == params


def test_stop_ids_are_those_of_the_checkpoint_and_the_user():
    assert SamplingParams(stop_token_ids=(7,)).stop_ids([1, 2]) == {1, 2, 7}
    assert SamplingParams(stop_token_ids=(7,), ignore_eos=True).stop_ids([1, 2]) == {7}


@pytest.mark.parametrize(
    "values",
    [
        {"logit_bias": {50: 1.0}},
        {"stop_token_ids": (3, 50)},
        {"allowed_token_ids": (50,)},
        {"bad_words": ((1,), (2, 50))},
    ],
)
def test_token_outside_the_vocabulary_is_refused(values):
    SamplingParams(**values).check_vocabulary(51)
    with pytest.raises(UserError, match=f"{next(iter(values))}: token id 50 .* vocabulary of 50"):
        SamplingParams(**values).check_vocabulary(50)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_each_penalty_makes_the_draw_depend_on_the_tokens_before(name):
    assert SamplingParams(**{name: 0.5}).has_penalties
    assert not SamplingParams(temperature=1.0, logit_bias={1: 1.0}).has_penalties


@pytest.mark.parametrize("token_ids", [[1, 272], (-1, 5), range(270, 273), np.array([3, 300])])
def test_request_for_tokens_outside_the_vocabulary_is_refused_by_name_and_id(token_ids):
    odd = next(token for token in token_ids if not 0 <= token < 272)
    with pytest.raises(RequestError, match=f"^request a: token id {odd} is outside the vocabulary of 272$"):
        Request(request_id="a", token_ids=token_ids, params=SamplingParams()).check_vocabulary(272)


def test_request_within_the_vocabulary_is_accepted_and_its_params_are_checked():
    Request(request_id="a", token_ids=[0, 271], params=SamplingParams()).check_vocabulary(272)
    Request(request_id="a", token_ids=[], params=SamplingParams()).check_vocabulary(272)
    with pytest.raises(UserError, match="stop_token_ids: token id 272"):
        Request(request_id="a", token_ids=[0], params=SamplingParams(stop_token_ids=(272,))).check_vocabulary(272)


def test_former_name_of_generation_is_accepted_with_a_warning():
    with pytest.warns(FutureWarning, match=r"firesteel\.Generation"):
        assert firesteel.Completion is firesteel.Generation
    with pytest.raises(AttributeError, match="Completions"):
        _ = firesteel.Completions
