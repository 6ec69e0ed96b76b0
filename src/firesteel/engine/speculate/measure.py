"""Measures how long decoding steps of some rows take, on the page that no request owns."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from firesteel.engine.step.step_store import ReadyStep, StepStore
from firesteel.types import Batch, KvView

LAUNCHES = 3  # after a first one; the median counts
ROWS = (1, 2, 4, 8, 16, 32)  # numbers between them are interpolated; beyond, time grows in proportion


@torch.inference_mode()
def measure_rows(store: StepStore) -> dict[int, float]:
    """Returns milliseconds by rows, of steps whose rows hold different tokens and so meet different experts."""
    return {rows: _measure(store, store.find(rows, 1)) for rows in ROWS if rows <= store.most_requests}


def _measure(store: StepStore, ready: ReadyStep) -> float:
    ready.step.load(_make_batch(store, ready))
    _time(store, ready)
    return statistics.median(_time(store, ready) for _ in range(LAUNCHES))


def _time(store: StepStore, ready: ReadyStep) -> float:
    _wait(store)
    start = time.perf_counter()
    ready.launch()
    _wait(store)
    return 1e3 * (time.perf_counter() - start)


def _wait(store: StepStore) -> None:
    if store.device.is_cuda:
        torch.cuda.synchronize(store.device.torch_device)


def _make_batch(store: StepStore, ready: ReadyStep) -> Batch:
    """Returns first tokens of texts, which the steps that follow continue in the idle page."""
    device, rows = store.device.torch_device, ready.step.num_requests
    vocab_size = store.model.spec.vocab_size

    def numbers(value: int, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=torch.int64, device=device)

    view = KvView(
        page_table=numbers(store.idle_page, rows, ready.step.num_pages),
        slots=numbers(store.idle_page * store.page_size, rows),
    )
    return Batch(
        token_ids=torch.arange(rows, device=device) * (vocab_size // rows),
        positions=numbers(0, rows),
        query_starts=torch.arange(rows + 1, device=device),
        kv_lens=numbers(1, rows),
        full=view,
        window=view,
        logit_rows=torch.arange(rows, device=device),
    )
