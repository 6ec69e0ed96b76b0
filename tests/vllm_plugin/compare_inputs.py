"""Run by an interpreter: takes over steps of vLLM by the kernel and by plain torch, and compares all inputs."""

import itertools
from dataclasses import fields

import torch

from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.inputs_kernel import load_on_gpu
from firesteel.vllm_plugin.step import VllmStep

PAGE, WINDOW, PAGES, HIDDEN, VOCABULARY = 16, 32, 96, 40, 50
GARBAGE = -7


def new_inputs(tokens, requests):
    inputs = StepInputs.new(
        torch.device("cpu"),
        num_tokens=tokens,
        num_requests=requests,
        num_pages=PAGES,
        page_size=PAGE,
        window=WINDOW,
    )
    for field in fields(inputs):
        if isinstance(tensor := getattr(inputs, field.name), torch.Tensor):
            tensor.fill_(GARBAGE)
    return inputs


def new_step(queries, held, padding=0):
    """Returns a step of requests with `queries` new tokens each, behind `held`, and padded as vLLM pads."""
    count, requests = sum(queries), len(queries)
    lens = [new + old for new, old in zip(queries, held, strict=True)]
    starts = [0, *itertools.accumulate(queries), *[count] * padding]
    draw = torch.Generator().manual_seed(count)
    tables = torch.randint(1, 1000, (2, requests + padding, PAGES + 8), generator=draw, dtype=torch.int32)
    slots = torch.randint(0, 10_000, (2, count), generator=draw)
    slots = torch.cat((slots, torch.full((2, padding), -1)), dim=1)
    return VllmStep(
        token_ids=torch.randint(0, VOCABULARY, (count + padding,), generator=draw, dtype=torch.int32),
        positions=torch.randint(0, 300, (count + padding,), generator=draw),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        kv_lens=torch.tensor(lens + [0] * padding, dtype=torch.int32),
        full_slots=slots[0],
        window_slots=slots[1],
        full_table=tables[0],
        window_table=tables[1],
        most_queries=max(queries),
    )


def check_prompt(queries, held, tokens, requests):
    step, ours, reference = new_step(queries, held), new_inputs(2048, 20), new_inputs(2048, 20)
    load_on_gpu(ours, step, tokens, requests)
    reference.load_by_torch(step, tokens, requests)
    names = ("token_ids", "positions", "full_slots", "window_slots", "query_starts", "kv_lens", "logit_rows")
    for name in (*names, "num_tokens"):
        assert torch.equal(getattr(ours, name), getattr(reference, name)), name
    for request, (new, old) in enumerate(zip(queries, held, strict=True)):
        last = -(-(new + old) // PAGE)
        first = max(old - WINDOW, 0) // PAGE
        assert torch.equal(ours.full_table[request, :last], reference.full_table[request, :last])
        assert torch.equal(ours.window_table[request, first:last], reference.window_table[request, first:last])
        assert (ours.full_table[request, last:] == GARBAGE).all(), "pages that the request does not have"
    assert (ours.full_table[len(queries) :] == GARBAGE).all(), "rows of no request"


def check_decoding(count, padding):
    step, ours = new_step([1] * count, [17 * number for number in range(count)], padding), new_inputs(16, 16)
    embedding = torch.randn(VOCABULARY, HIDDEN)
    residual = torch.full((count + padding, HIDDEN), float("nan"))
    load_on_gpu(ours, step, step.num_tokens, step.num_tokens, embedding, residual)
    assert torch.equal(residual[:count], embedding[step.token_ids[:count].long()])
    assert torch.equal(residual[count:], embedding[:1].expand(padding, -1)), "padding rows compute token 0"
    assert ours.num_tokens.item() == count
    assert (ours.full_slots[count : count + padding] == 0).all(), "padding writes to block 0"
    assert (ours.kv_lens[count : count + padding] == 1).all()
    slots = step.full_slots[:count]
    assert torch.equal(ours.full_slots[:count], slots // PAGE * 2 * PAGE + slots % PAGE), "block b is page 2b"


check_prompt([5], [0], 16, 1)
check_prompt([16, 1, 30, 1], [0, 100, 7, 320], 64, 8)
check_prompt([1, 200], [383, 64], 256, 20)
check_prompt([1500], [0], 1536, 1)
check_prompt([7], [3], 7, 1)
check_decoding(1, 0)
check_decoding(8, 0)
check_decoding(5, 3)
