"""The settings of the mock server; test_bench.py checks its speed."""

import pytest

from firesteel.errors import UserError
from tests.lab.mock import parse_settings


def test_settings_have_the_type_of_their_default():
    settings = parse_settings(["pp_tok_s=10", "token_ids=False", "tokens_a_chunk=4"])
    assert settings == {"pp_tok_s": 10.0, "token_ids": False, "tokens_a_chunk": 4}


def test_unknown_settings_are_refused():
    with pytest.raises(UserError, match="tg_tok_s"):
        parse_settings(["speed=9"])
