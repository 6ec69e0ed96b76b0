"""Measures how long decoding steps of some rows take, on the page that no request owns."""

from __future__ import annotations

import time

import numpy as np
import torch

from firesteel.engine.step.step_store import ReadyStep, StepStore
from firesteel.model.host_batch import HostBatch

LAUNCHES, ROUNDS = 3, 2  # after a first launch; the faster round counts
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)  # numbers between them are interpolated; beyond, time grows in proportion


@torch.inference_mode()
def measure_rows(store: StepStore) -> dict[int, float]:
    """Returns milliseconds by rows, of steps whose rows hold different tokens and so meet different experts.

    Steps are launched one after the other, so that the host's share is not in their times: plain steps hide it, and
    what it adds to steps that verify is learnt when they run.
    """
    return {rows: _measure(store, store.find(rows, 1)) for rows in ROWS if rows <= store.most_requests}


def _measure(store: StepStore, ready: ReadyStep) -> float:
    ready.step.load(_make_batch(store, ready))
    _time(store, ready, 1)
    return min(_time(store, ready, LAUNCHES) for _ in range(ROUNDS))


def _time(store: StepStore, ready: ReadyStep, launches: int) -> float:
    """Returns milliseconds per launch."""
    _wait(store)
    start = time.perf_counter()
    for _ in range(launches):
        ready.launch()
    _wait(store)
    return 1e3 * (time.perf_counter() - start) / launches


def _wait(store: StepStore) -> None:
    if store.device.is_cuda:
        torch.cuda.synchronize(store.device.torch_device)


def _make_batch(store: StepStore, ready: ReadyStep) -> HostBatch:
    """Returns first tokens of texts, which the steps that follow continue in the idle page."""
    rows, page = ready.step.num_requests, store.idle_page
    tables = np.full((rows, ready.step.num_pages), page, dtype=np.int64)
    slots = np.full(rows, page * store.page_size, dtype=np.int64)
    return HostBatch(
        token_ids=np.arange(rows) * (store.model.spec.vocab_size // rows),
        positions=np.zeros(rows, dtype=np.int64),
        query_starts=np.arange(rows + 1),
        kv_lens=np.ones(rows, dtype=np.int64),
        full_table=tables,
        full_slots=slots,
        window_table=tables,
        window_slots=slots,
        logit_rows=np.arange(rows),
    )
