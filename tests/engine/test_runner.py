"""Logits of the rows that a batch asks for, and of no others."""

from array import array

import torch

from firesteel.engine.batch import build_batch
from firesteel.engine.kv_cache import new_cache
from firesteel.engine.runner import Runner
from firesteel.types import Plan, Request, SamplingParams, Span

PROMPTS = [[5, 6, 7, 8, 9], [40, 41, 42]]


def run(llm, counts):
    runner = Runner(llm.model, new_cache(llm.spec, 8, 4, llm.device, torch.float32))
    spans = [
        Span(
            request=Request(request_id=str(number), token_ids=prompt, params=SamplingParams()), token_ids=prompt,
            start=0, end=len(prompt), full_pages=array("q", [4 * number, 4 * number + 1]),
            window_pages=array("q", [4 * number + 2, 4 * number + 3]), num_logits=count,
        )
        for number, (prompt, count) in enumerate(zip(PROMPTS, counts, strict=True))
    ]  # fmt: skip
    return runner.run(build_batch(Plan(spans=spans), 4, llm.device.torch_device))


def test_rows_are_those_asked_for(llm):
    whole = torch.cat([llm.logits(prompt) for prompt in PROMPTS])
    for counts, rows in (((5, 3), range(8)), ((1, 1), [4, 7]), ((2, 0), [3, 4]), ((0, 1), [7])):
        torch.testing.assert_close(run(llm, counts), whole[list(rows)], rtol=1e-4, atol=1e-4)


def test_no_rows_are_no_logits(llm):
    assert run(llm, (0, 0)).shape == (0, 272)
