"""Opens the model that a benchmark names, and checks that its context and cache have room for the requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firesteel.cli.progress import progress_bar
from firesteel.config import Config
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded, find_max_context, load_engine, synthetic_engine
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint, find_draft_model
from firesteel.measure.tokens.runs import SEED
from firesteel.model.spec import PRESETS, ModelSpec, read_spec

UNUSED_CACHE_GIB = 0.1  # for the engine that comes with a model, if a benchmark opens its own


def find_context(config: Config, synthetic: str | None) -> int:
    """Returns the context of the model without reading weights."""
    spec = read_spec(find_checkpoint(config.model.model)) if synthetic is None else find_preset(synthetic)
    return find_max_context(spec, config)


def find_preset(name: str) -> ModelSpec:
    if name not in PRESETS:
        raise UserError(f"--synthetic {name}: must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def open_model(config: Config, synthetic: str | None) -> tuple[str, Loaded]:
    """Returns the name under which the model is recorded, and the model."""
    if synthetic is not None:
        spec, config = find_preset(synthetic), config.with_draft_model(find_draft_model, Path(synthetic))
        return f"{synthetic}, random weights", synthetic_engine(spec, config, seed=SEED)
    directory = find_checkpoint(config.model.model)
    config = config.with_draft_model(find_draft_model, directory)
    with progress_bar("loading weights", in_bytes=True) as report_progress:
        return directory.name, load_engine(directory, config, progress=report_progress)


def with_cache(config: Config, gib: float) -> Config:
    """Returns the settings with a cache of `gib` GiB."""
    return replace(config, cache=replace(config.cache, kv_cache_gib=gib))


def check_context(max_context: int, num_tokens: int, *, is_rescored: bool = False) -> None:
    """Raises unless `num_tokens` fit the context; rescoring a text needs room for one token more."""
    if num_tokens > max_context:
        raise UserError(
            f"{num_tokens} tokens per request exceed the context of {max_context}: lower --prompt-tokens or "
            "--max-tokens"
        )
    if is_rescored and num_tokens == max_context:
        raise UserError(
            f"{num_tokens} tokens per request fill the context of {max_context}, and checking them takes one more: "
            "lower --prompt-tokens or --max-tokens, or skip the check with --check 0"
        )


def check_pages(engine: Engine, num_tokens: int) -> None:
    """Raises unless the cache can hold `num_tokens` of one request; the last one is stored only for rescoring."""
    needed, pages = engine.scheduler.tables.layout.count_pages(num_tokens), engine.totals.pages
    if needed > pages:
        raise UserError(
            f"{num_tokens} tokens per request need {needed} pages, the cache has {pages}: raise --kv-cache-gib, or "
            "lower --prompt-tokens or --max-tokens"
        )
