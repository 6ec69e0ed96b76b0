"""Sampling parameters: defaults of the checkpoint and fields of a request."""

import json

import msgspec
import pytest

from firesteel import UserError
from firesteel.server.generate.sampling import read_defaults, sampling_params
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import ChatRequest


def params(defaults=None, *, room=100, max_tokens=None, **fields):
    asked = msgspec.convert({"messages": [{"role": "user", "content": "a"}], **fields}, ChatRequest)
    return sampling_params(asked, defaults or {}, room=room, max_tokens=max_tokens, logprobs=None)


def defaults_of(tmp_path, content):
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    return read_defaults(tmp_path)


def test_checkpoint_gives_the_defaults(tmp_path):
    assert read_defaults(tmp_path) == {"temperature": 1.0}
    assert defaults_of(tmp_path, {"do_sample": False, "temperature": 0.7}) == {"temperature": 0.0}
    defaults = defaults_of(tmp_path, {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "eos_token_id": 1})
    assert defaults == {"temperature": 0.7, "top_p": 0.9}
    assert params(defaults).temperature == 0.7 and params(defaults, temperature=0).temperature == 0


def test_invalid_generation_config_is_reported(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config\.json"):
        read_defaults(tmp_path)


def test_room_bounds_the_answer():
    assert params(room=50).max_tokens == 50
    assert params(room=50, max_tokens=20).max_tokens == 20
    assert params(room=50, max_tokens=200, min_tokens=200).min_tokens == 50


def test_seed_is_drawn_unless_given():
    assert params(seed=-5).seed == -5
    assert params().seed != params().seed


def test_stop_is_one_string_or_several():
    assert params(stop="a").stop == ("a",) and params(stop=["a", "b"]).stop == ("a", "b") and params().stop == ()


def test_error_names_the_value_that_sampling_refuses():
    with pytest.raises(ApiError) as caught:
        params({"top_k": -7})
    assert caught.value.status == 400 and caught.value.param == "top_k"
