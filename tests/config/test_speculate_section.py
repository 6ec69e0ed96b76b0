"""Settings of drafts that the kind of drafts does not read are an error that names their origin."""

import re

import pytest

from firesteel import LLM
from firesteel.config import SpeculateConfig
from firesteel.errors import UserError

OFF = "nothing is drafted with --speculate off: give --speculate"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_speculative_tokens": 3}, f"num_speculative_tokens = 3 (flag): {OFF} ngram"),
        ({"adapt_speculation": False}, f"adapt_speculation = False (flag): {OFF} ngram"),
        ({"draft_model": "x"}, f"draft_model = 'x' (flag): {OFF} auto"),
        (
            {"draft_model": "x", "speculate": "ngram"},
            "draft_model = 'x' (flag): no model is used with --speculate ngram: give --speculate auto",
        ),
    ],
)
def test_settings_of_drafts_need_a_kind_that_reads_them(settings, told):
    """They did nothing, silently."""
    with pytest.raises(UserError, match=re.escape(told)):
        LLM(device="cpu", **settings)
    SpeculateConfig(**{**settings, "speculate": "eagle3"}).check()


def test_variable_is_named_as_the_origin():
    """The error named a flag that nobody had given."""
    environ = {"FIRESTEEL_NUM_SPECULATIVE_TOKENS": "3"}
    told = f"num_speculative_tokens = 3 (environment FIRESTEEL_NUM_SPECULATIVE_TOKENS): {OFF} ngram"
    with pytest.raises(UserError, match=re.escape(told)):
        LLM(device="cpu", environ=environ)


def test_origin_that_is_unknown_is_not_named():
    with pytest.raises(UserError, match=f"^num_speculative_tokens = 3: {OFF} ngram"):
        SpeculateConfig(num_speculative_tokens=3).check()


def test_defaults_that_are_spelled_out_are_accepted():
    SpeculateConfig(num_speculative_tokens=0, adapt_speculation=True).check()
    SpeculateConfig().check()
