"""The table of slots: its verdict, its words, and the same after JSON."""

import json

import pytest

from firesteel.lab.path.slots import SlotRow, SlotState, make_table, parse_table
from firesteel.lab.verdict import Verdict
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge, vllm

SEEN, NOT_SEEN, CONTRADICTED, NOT_APPLICABLE = SlotState


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        ([(SEEN, True), (SEEN, False)], Verdict.PASSED),
        ([(SEEN, True), (NOT_SEEN, True)], Verdict.UNPROVEN),
        ([(SEEN, True), (NOT_SEEN, False)], Verdict.PASSED),
        ([(SEEN, True), (NOT_SEEN, True), (CONTRADICTED, False)], Verdict.FAILED),
        ([(SEEN, True), (NOT_APPLICABLE, True)], Verdict.PASSED),
        ([(NOT_SEEN, False)], Verdict.UNPROVEN),
    ],
)
def test_required_slots_must_be_seen_and_none_contradicted(states, verdict):
    rows = [
        SlotRow(slot=str(number), state=state, is_required=is_required)
        for number, (state, is_required) in enumerate(states)
    ]
    assert make_table("x", "", rows).verdict is verdict


def test_table_is_the_same_after_json_and_names_slots_verdicts_and_lines():
    table = judge("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER, eager=True), expect="moe=cutlass,graphs=on")
    content = json.loads(json.dumps(table.as_dict()))
    assert parse_table(content) == table
    assert list(content["slots"]) == ["moe", "dense", "attention", "sinks", "graphs", "activation", "kv"]
    moe = content["slots"]["moe"]
    assert (moe["state"], moe["verdict"], moe["value"], moe["expected"]) == (
        "contradicted",
        "failed",
        "marlin",
        "cutlass",
    )
    assert moe["sightings"][0] == {
        "value": "marlin",
        "source": "log",
        "line": "Using 'MARLIN' Mxfp4 MoE backend.",
        "about": "4-bit weights, products in 16 bits",
    }
    assert content["verdict"] == "failed" and "--moe-backend flashinfer_cutlass" in moe["cure"]


def test_words_say_what_was_seen_expected_and_missing():
    table = judge("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER), expect="moe=cutlass,graphs=on")
    assert table.in_words() == "moe=marlin, attention=flashinfer, activation=bf16, kv=bf16"
    assert "moe=marlin, 4-bit weights, products in 16 bits; expected: cutlass (log: Using 'MARLIN'" in (
        table.slots["moe"].in_words()
    )
    assert table.slots["graphs"].in_words() == "graphs was not seen (expected: on)"
    assert table.slots["attention"].in_words().startswith("attention=flashinfer (log: Using FLASHINFER")
