"""The ledger of a firesteel server, as the lab reads it: fields of newer and older servers."""

from firesteel.lab.path.ledger import VerifiedDrafts, parse_ledger

DRAFTS = {"kind": "ngram", "drafts": 4, "draft_tokens": 12, "accepted_tokens": 6, "accepted_at": [4, 2]}


def test_drafts_are_read_and_named_among_the_settings():
    ledger = parse_ledger({"ran": [], "drafts": DRAFTS})
    assert ledger.drafts == VerifiedDrafts(**{**DRAFTS, "accepted_at": (4, 2)})
    assert "drafts=ngram, 6 of 12 drafted tokens accepted" in ledger.settings()


def test_server_that_drafts_nothing_or_is_older_has_no_drafts():
    for content in ({"ran": []}, {"ran": [], "drafts": None}):
        ledger = parse_ledger(content)
        assert ledger.drafts is None and not any(line.startswith("drafts=") for line in ledger.settings())
    assert VerifiedDrafts(kind="eagle3").in_words() == "eagle3, nothing drafted"


def test_answer_of_another_engine_is_no_ledger():
    assert parse_ledger({"drafts": DRAFTS}) is None and parse_ledger([1]) is None
