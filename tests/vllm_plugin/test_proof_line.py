"""The line by which a rank of vLLM proves what runs; the lab reads it as a ledger."""

import logging

from firesteel.kernels.ledger import Entry, Ledger, Ran
from firesteel.lab.path.ranks import find_ranks, list_rank_rows
from firesteel.vllm_plugin.proof_line import ProofLine


def test_line_names_ops_activations_and_settings_and_is_written_once(caplog):
    ledger = Ledger()
    for ran in (Ran("linear", "reference", "bf16"), Ran("attention", "reference")):
        ledger.entries[ran] = Entry(calls=1)
    line = ProofLine(ledger, rank=0, num_ranks=1, vllm_version="0.32.0", settings={"sinks": "off"})
    with caplog.at_level(logging.INFO, "vllm.firesteel"):
        line.begin()
        line.begin()
    [message] = [record.getMessage() for record in caplog.records]
    assert list_rank_rows([message]) == ["attention=reference", "linear=reference bf16", "sinks=off"]
    assert find_ranks([message]) == ({0}, {0})
