"""Expectations: what --expect accepts, and which values contradict it."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.path.expectation import Expectation, check_names, parse_expectations


@pytest.mark.parametrize(
    ("text", "values", "wrong"),
    [
        ("cutlass", ["cutlass"], None),
        ("cutlass", ["marlin"], "marlin"),
        ("cutlass", ["cutlass", "marlin"], "marlin"),
        ("cutlass|trtllm", ["trtllm"], None),
        ("!marlin|cpu", ["cutlass"], None),
        ("!marlin|cpu", ["cutlass", "cpu"], "cpu"),
        ("any", ["whatever"], None),
        ("mxfp8|(bf16)", ["mxfp8", "bf16"], None),
        ("mxfp8|(bf16)", ["bf16"], "bf16"),
        ("mxfp8|(bf16)", ["mxfp8", "mxfp4"], "mxfp4"),
        ("cuda", ["cuda:even"], None),
        ("cuda:even", ["cuda"], "cuda"),
        ("!triton:bf16", ["triton"], None),
        ("triton", ["triton_kernels"], "triton_kernels"),
    ],
)
def test_value_contradicts_an_expectation_unless_it_or_its_family_is_named(text, values, wrong):
    assert Expectation.parse(text).find_contradiction(values) == wrong


def test_several_slots_are_joined_by_commas():
    expected = parse_expectations("moe=cutlass|trtllm, dense=marlin,graphs=on")
    assert {slot: expectation.text for slot, expectation in expected.items()} == {
        "moe": "cutlass|trtllm",
        "dense": "marlin",
        "graphs": "on",
    }
    assert parse_expectations("") == {}
    assert str(expected["moe"]) == "cutlass or trtllm" and str(Expectation.parse("!cpu")) == "not cpu"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("experts=cutlass", "--expect experts=cutlass: must be SLOT=VALUE with a slot of moe, dense"),
        ("moe", "must be SLOT=VALUE"),
        ("moe=", "'' is not an expected value"),
        ("moe=a b", "is not an expected value: write a, a|b, !a or any".replace("|", r"\|")),
        ("moe=cutlass,moe=marlin", r"names moe twice; alternatives are written moe=a\|b"),
    ],
)
def test_wrong_expectation_is_refused_with_the_form(text, words):
    with pytest.raises(UserError, match=words):
        parse_expectations(text)


def test_value_that_no_sign_shows_is_refused_with_those_that_exist():
    known = {"moe": {"cutlass", "cuda:even"}}
    check_names(parse_expectations("moe=cutlass|cuda"), known, "--expect")
    check_names(parse_expectations("moe=cuda:even"), known, "--expect")
    with pytest.raises(
        UserError, match="--expect: moe=cutlas can never be seen; values of moe are cuda:even, cutlass"
    ):
        check_names(parse_expectations("moe=cutlas"), known, "--expect")
