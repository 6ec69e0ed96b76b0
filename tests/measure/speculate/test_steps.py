"""Steps with several rows per request: positions, page tables, and the values that decoding one by one gives."""

import pytest
import torch

from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.measure.decode.bench import open_pages
from firesteel.measure.speculate.figures import VerifyCase
from firesteel.measure.speculate.steps import ROOM, first_rows, open_step
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.network_step import NetworkStep

CPU = find_device("cpu")
CONFIG = resolve({"device": "cpu", "page_size": 8, "memory_reserve_gib": 0.0}, environ={}).config


@pytest.fixture
def ops(llm):
    return DecodeOps.choose(CPU, llm.kernels.ledger)


def test_rows_of_a_request_have_consecutive_positions_and_equal_tables(llm):
    case = VerifyCase(requests=2, rows=3, context=14)
    pages, cache = open_pages(llm, CONFIG, [14, 14], room=3 + ROOM)
    batch = first_rows(range(6), case, pages, cache)
    assert batch.positions.tolist() == [14, 15, 16] * 2 and batch.kv_lens.tolist() == [15, 16, 17] * 2
    for view, table in ((batch.full, pages.full), (batch.window, pages.window)):
        for row in range(6):
            assert torch.equal(view.page_table[row], table[row // 3])
        assert len(set(view.slots.tolist())) == 6
        expected = [int(table[row // 3, (14 + row % 3) // 8]) * 8 + (14 + row % 3) % 8 for row in range(6)]
        assert view.slots.tolist() == expected


@torch.inference_mode()
def test_rows_give_the_logits_of_the_same_tokens_decoded_one_by_one(llm):
    """A row sees the keys and values that the rows before it write in the same step."""
    case = VerifyCase(requests=2, rows=3, context=14)
    together = open_step(case, llm, CONFIG, None)
    token_ids = together.first[0].view(2, 3)
    logits = together.run().clone().view(2, 3, -1)
    one_by_one = open_step(VerifyCase(requests=2, rows=1, context=14), llm, CONFIG, None)
    for row in range(3):
        one_by_one.step.feed(token_ids[:, row])
        torch.testing.assert_close(logits[:, row], one_by_one.run(), rtol=1e-4, atol=1e-4)


def test_fused_step_takes_up_to_eight_rows_and_the_network_the_rest(llm, ops):
    def kind(requests, rows, chosen):
        return type(open_step(VerifyCase(requests=requests, rows=rows, context=4), llm, CONFIG, chosen).step)

    assert kind(2, 4, ops) is DecodeStep
    assert kind(3, 3, ops) is NetworkStep and kind(1, 1, None) is NetworkStep


def test_reset_restores_the_first_tokens_and_positions(llm):
    verifying = open_step(VerifyCase(requests=1, rows=3, context=9), llm, CONFIG, None)
    first = verifying.run().clone()
    verifying.run()
    assert verifying.step.batch.positions.tolist() == [11, 12, 13]
    verifying.reset()
    assert torch.equal(verifying.run(), first) and verifying.way == "network, eager"
