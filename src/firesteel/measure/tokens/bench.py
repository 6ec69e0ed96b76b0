"""Measures every equality on a loaded model: an engine per setup, a record per agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from firesteel.config import Config
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import find_dtype, find_layout, page_bytes
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.record import Record
from firesteel.measure.tokens.agreement import Agreement
from firesteel.measure.tokens.equalities import NAMES, EngineSetup, Equalities, OpenEngine, Unmeasured
from firesteel.measure.tokens.logit_bits import record_logits
from firesteel.measure.tokens.runs import SEED
from firesteel.types import Request


def measure_all(
    loaded: Loaded,
    config: Config,
    requests: Sequence[Request],
    shape: dict[str, Any],
    out: Path,
    *,
    progress: Callable[[int, int], None],
    schedules: int = 0,
) -> Iterator[Agreement | Unmeasured]:
    """Measures all equalities and saves each record as soon as it is made.

    Of a batch-invariant model the logits are compared, too.
    """
    equalities = Equalities(requests, opener(loaded, config, requests), seed=SEED, schedules=schedules)
    total = len(NAMES) + (schedules > 0)
    for done, agreement in enumerate(equalities.measure(), start=1):
        if isinstance(agreement, Agreement):
            record(loaded, config, agreement, shape).save(out)
        progress(done, total)
        yield agreement


def opener(loaded: Loaded, config: Config, requests: Sequence[Request]) -> OpenEngine:
    """Returns a function that opens an engine with the cache that the requests or the setup need."""
    spec, size = loaded.spec, config.batch.page_size
    layout = find_layout(spec, size)
    bytes_per_page = page_bytes(spec, size, find_dtype(config.cache.kv_dtype, loaded.device))
    lengths = [request.num_prompt + request.max_new for request in requests]

    def count_pages(share: float | None) -> int:
        if share is None:
            return sum(layout.count_pages(length, chunk=length) for length in lengths)
        needed = [layout.count_pages(length) for length in lengths]
        return max(int(share * sum(needed)), *needed)

    def open_engine(setup: EngineSetup) -> Engine:
        free_memory(loaded.device)  # of the engine before: its steps refer to each other, and hold GPU memory
        batch = replace(
            config.batch,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
        )
        cache = replace(
            config.cache,
            kv_cache_gib=(count_pages(setup.page_share) + 0.5) * bytes_per_page / GIB,
            prefix_caching=setup.prefix_caching,
        )
        engine = Engine(
            loaded.model,
            loaded.device,
            batch,
            cache,
            max_context=loaded.max_context,
            kernels=config.kernels,
            fused=loaded.fused,
        )
        if loaded.kernels.is_invariant:
            record_logits(engine)
        return engine

    return open_engine


def record(loaded: Loaded, config: Config, agreement: Agreement, shape: dict[str, Any]) -> Record:
    """Builds the record; its samples are shares of equal tokens, one per request."""
    return Record.now(
        loaded.device,
        config,
        name=f"agreement {agreement.equality}",
        unit="share of tokens",
        samples=[pair.num_equal / pair.num_tokens for pair in agreement.pairs],
        warmups=0,
        seed=SEED,
        kernels=loaded.table(),
        startup_s=loaded.report.seconds,
        parameters={
            **agreement.as_dict(),
            **shape,
            "tokens_before": [pair.num_before for pair in agreement.pairs],
        },
    )
