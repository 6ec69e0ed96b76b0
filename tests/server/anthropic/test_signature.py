"""Signatures of thinking blocks."""

import pytest

from firesteel.server.anthropic.signature import SHOWN, read_signature, sign


def test_hidden_text_is_carried_by_its_signature():
    signature = sign("Hm. é", is_shown=False)
    assert "Hm" not in signature and read_signature(signature) == "Hm. é"


def test_signatures_of_shown_text_and_of_other_servers_carry_nothing():
    assert sign("Hm.", is_shown=True) == SHOWN
    assert read_signature(SHOWN) == read_signature("EqQBCkYIBRgC") == read_signature("") == ""


@pytest.mark.parametrize("damage", ["#", "=", "/w=="])
def test_damaged_signature_is_an_error(damage):
    with pytest.raises(ValueError, match=r"."):
        read_signature(sign("", is_shown=False) + damage)
