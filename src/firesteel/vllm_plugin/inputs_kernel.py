"""Device code that takes over the inputs of a step from vLLM."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.tiles.launch import divide_up, launch_kernel, power_of_two
from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.step import VllmStep

BLOCK = 1024
NUM_WARPS = 4
TOKENS, REQUESTS, FULL_TABLE, WINDOW_TABLE, EMBEDDING = range(5)  # what the programs of a column of the grid do
ROLE_TOKENS, ROLE_REQUESTS = tl.constexpr(TOKENS), tl.constexpr(REQUESTS)
ROLE_FULL, ROLE_WINDOW = tl.constexpr(FULL_TABLE), tl.constexpr(WINDOW_TABLE)


@triton.jit
def convert_slots(given, ours, rows, is_token, is_row, PAGE: tl.constexpr, NOWHERE: tl.constexpr):
    slots = tl.load(given + rows, mask=is_token, other=-1).to(tl.int64)
    slots = tl.where(slots < 0, NOWHERE, slots + slots // PAGE * PAGE)
    tl.store(ours + rows, slots, mask=is_row)


@triton.jit
def convert_table(given, ours, first, length, stride, our_stride, request, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Converts the pages of a request from that of token `first` to that of token `length` - 1."""
    begin = first // PAGE
    end = (length + PAGE - 1) // PAGE
    for start in range(begin, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        blocks = tl.load(given + request * stride + columns, mask=columns < end, other=0)
        tl.store(ours + request * our_stride + columns, 2 * blocks.to(tl.int64), mask=columns < end)


@triton.jit(do_not_specialize=["num_requests", "tokens", "requests"])
def load_kernel(
    token_ids,
    positions,
    query_starts,
    kv_lens,
    full_slots,
    window_slots,
    full_table,
    window_table,
    our_token_ids,
    our_positions,
    our_query_starts,
    our_kv_lens,
    our_logit_rows,
    our_full_slots,
    our_window_slots,
    our_full_table,
    our_window_table,
    our_num_tokens,
    embedding,
    residual,
    num_requests,
    tokens,
    requests,
    full_stride,
    window_stride,
    our_stride,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Takes over a step, padded to `tokens` and `requests`; the second axis of the grid is the role.

    With HIDDEN the step decodes: every row writes somewhere.
    """
    part = tl.program_id(0)
    role = tl.program_id(1)
    IS_DECODING: tl.constexpr = HIDDEN > 0
    NOWHERE: tl.constexpr = 0 if IS_DECODING else -1
    count = tl.load(query_starts + num_requests)
    if role == ROLE_TOKENS:
        rows = part * BLOCK + tl.arange(0, BLOCK)
        is_row = rows < tokens
        is_token = is_row & (rows < count)
        ids = tl.load(token_ids + rows, mask=is_token, other=0)
        tl.store(our_token_ids + rows, ids.to(tl.int64), mask=is_row)
        places = tl.load(positions + rows, mask=is_token, other=0)
        tl.store(our_positions + rows, places.to(tl.int64), mask=is_row)
        convert_slots(full_slots, our_full_slots, rows, is_token, is_row, PAGE, NOWHERE)
        convert_slots(window_slots, our_window_slots, rows, is_token, is_row, PAGE, NOWHERE)
    elif role == ROLE_REQUESTS:
        numbers = part * BLOCK + tl.arange(0, BLOCK)
        starts = tl.load(query_starts + tl.minimum(numbers, num_requests), mask=numbers <= requests, other=0)
        tl.store(our_query_starts + numbers, starts.to(tl.int64), mask=numbers <= requests)
        lens = tl.load(kv_lens + numbers, mask=numbers < num_requests, other=0).to(tl.int64)
        if IS_DECODING:
            lens = tl.maximum(lens, 1)
        tl.store(our_kv_lens + numbers, lens, mask=numbers < requests)
        owners = tl.where(numbers < num_requests, numbers, 0)
        ends = tl.load(query_starts + owners + 1, mask=numbers < requests, other=1).to(tl.int64)
        tl.store(our_logit_rows + numbers, tl.maximum(ends - 1, 0), mask=numbers < requests)
        if part == 0:
            tl.store(our_num_tokens, count.to(tl.int64))
    elif part < num_requests:
        length = tl.load(kv_lens + part)
        if role == ROLE_FULL:
            convert_table(full_table, our_full_table, 0, length, full_stride, our_stride, part, PAGE, BLOCK)
        elif role == ROLE_WINDOW:
            queries = tl.load(query_starts + part + 1) - tl.load(query_starts + part)
            first = tl.maximum(length - queries - WINDOW, 0)
            convert_table(
                window_table, our_window_table, first, length, window_stride, our_stride, part, PAGE, BLOCK
            )
        elif IS_DECODING:
            token = tl.load(token_ids + part, mask=part < count, other=0).to(tl.int64)
            columns = tl.arange(0, COLUMNS)
            values = tl.load(embedding + token * HIDDEN + columns, mask=columns < HIDDEN, other=0.0)
            tl.store(residual + part * HIDDEN + columns, values, mask=columns < HIDDEN)


def load_on_gpu(
    inputs: StepInputs,
    step: VllmStep,
    tokens: int,
    requests: int,
    embedding: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """Launches the kernel; with `embedding` the step decodes, and `residual` gets the rows of its tokens."""
    hidden = 0 if embedding is None else embedding.shape[1]
    parts = max(divide_up(tokens, BLOCK), divide_up(requests + 1, BLOCK), step.num_requests)
    launch_kernel(
        load_kernel,
        (parts, EMBEDDING + (hidden > 0)),
        step.token_ids,
        step.positions,
        step.query_starts,
        step.kv_lens,
        step.full_slots,
        step.window_slots,
        step.full_table,
        step.window_table,
        inputs.token_ids,
        inputs.positions,
        inputs.query_starts,
        inputs.kv_lens,
        inputs.logit_rows,
        inputs.full_slots,
        inputs.window_slots,
        inputs.full_table,
        inputs.window_table,
        inputs.num_tokens,
        embedding,
        residual,
        step.num_requests,
        tokens,
        requests,
        step.full_table.stride(0),
        step.window_table.stride(0),
        inputs.full_table.stride(0),
        PAGE=inputs.page_size,
        WINDOW=inputs.window,
        HIDDEN=hidden,
        COLUMNS=power_of_two(max(hidden, 1)),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
