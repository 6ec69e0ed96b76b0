"""Settings of drafts without drafts are an error."""

import pytest

from firesteel import LLM
from firesteel.config import SpeculateConfig
from firesteel.errors import UserError


@pytest.mark.parametrize(
    ("settings", "flag"),
    [({"num_speculative_tokens": 3}, "--num-speculative-tokens 3"), ({"adapt_speculation": False}, "--no-adapt")],
)
def test_settings_of_drafts_need_a_kind(settings, flag):
    """They did nothing, silently."""
    with pytest.raises(UserError, match=f"{flag}.*nothing is drafted with --speculate off: give --speculate ngram"):
        LLM(device="cpu", **settings)
    SpeculateConfig(speculate="ngram", **settings).check()


def test_defaults_that_are_spelled_out_are_accepted():
    SpeculateConfig(num_speculative_tokens=0, adapt_speculation=True).check()
    SpeculateConfig().check()
