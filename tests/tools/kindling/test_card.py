"""The model card follows from the records, and the records are of the shipped model."""

import pytest

from firesteel.hub import BUILT_IN
from firesteel.model.spec import read_spec

pytest.importorskip("altair", reason="the curves are drawn with altair")

from kindling.card import draw_curves, model_hash, read_records, write_card


def test_card_is_written_from_the_records():
    record, log = read_records()
    assert (BUILT_IN / "README.md").read_text(encoding="utf-8") == write_card(record, log, read_spec(BUILT_IN))


def test_record_was_measured_on_the_shipped_model():
    record, _ = read_records()
    assert record["model_sha256"] == model_hash()


def test_every_expert_is_used():
    record, _ = read_records()
    shares = [share for layer in record["expert_use"] for share in layer]
    assert len(shares) == 64 and min(shares) > 0.02  # an even use is 1 / 8


def test_curves_show_loss_and_every_family():
    _, log = read_records()
    loss, checks = draw_curves(log).to_dict()["hconcat"]
    assert len(loss["data"]["values"]) > 50
    assert {"arithmetic", "retrieval", "tool_call"} <= {row["family"] for row in checks["data"]["values"]}
