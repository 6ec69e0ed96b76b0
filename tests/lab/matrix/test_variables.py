"""A variable that a flag beats is refused, because it would change nothing."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.matrix.variables import check_beaten, check_variable


@pytest.mark.parametrize("flag", ["--kv-dtype", "--kv-dtype=fp8"])
def test_variable_that_a_flag_beats_is_refused(flag):
    with pytest.raises(UserError, match="FIRESTEEL_KV_DTYPE would change nothing: the flag --kv-dtype beats it"):
        check_beaten([flag, "fp8"], {"FIRESTEEL_KV_DTYPE": "auto"})
    check_beaten([flag, "fp8"], {"FIRESTEEL_SINKS": "off"})


def test_off_flag_beats_its_variable_too():
    with pytest.raises(UserError, match="--no-sinks beats it"):
        check_beaten(["--no-sinks"], {"FIRESTEEL_SINKS": "on"})


def test_variables_of_other_engines_have_any_value():
    check_variable("VLLM_ATTENTION_BACKEND", "{,}")
    with pytest.raises(UserError, match="NUL"):
        check_variable("VLLM_ATTENTION_BACKEND", "a\0b")
