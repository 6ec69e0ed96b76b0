"""Names of formats, and what --formats accepts."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench.formats import parse_formats, shorten_format


def test_formats_are_parsed_under_the_rooflines_names():
    assert parse_formats("moe=mxfp4, dense=f16,kv=fp8_e4m3") == {"moe": "mxfp4", "dense": "bf16", "kv": "fp8"}
    assert parse_formats("") == {}


@pytest.mark.parametrize(
    ("name", "short"), [("float8_e4m3fn", "fp8"), ("bfloat16", "bf16"), ("float32", "fp32"), ("q8_0", "q8_0")]
)
def test_names_of_torch_gguf_and_flags_are_understood(name, short):
    assert shorten_format(name) == short


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("experts=mxfp4", "the parts are moe, dense, kv"),
        ("dense", "dense must be one of bf16, q8_0, fp8, mxfp4"),
        ("kv=mxfp4", "kv must be one of bf16, fp8, q8_0, fp32"),
    ],
)
def test_unknown_parts_and_formats_are_refused_with_what_is_possible(text, words):
    with pytest.raises(UserError, match=words):
        parse_formats(text)
