"""The shipped DFlash drafter of Kindling: its size, its format, and how much of it Kindling accepts."""

import json

import pytest
import torch

from firesteel import LLM
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.hub import BUILT_IN
from firesteel.model.drafters.dflash import load_dflash
from firesteel.model.drafters.drafter import DraftContext
from firesteel.types import Batch, KvView, SamplingParams, Taps
from tests.held_out import encode_held_out

CPU = find_device("cpu")
FOLDER = BUILT_IN.with_name("kindling_dflash")
PAGE_SIZE = 64
SPAN = 8


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


@pytest.fixture(scope="module")
def drafter(kindling):
    return load_dflash(FOLDER, kindling.model, CPU)


def test_folder_is_small_and_in_the_public_format(drafter):
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 1_800_000
    assert {file.name for file in FOLDER.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    assert config["block_size"] == SPAN == drafter.spec.span


def test_mask_is_a_token_that_no_text_has(kindling, drafter):
    ids = kindling.tokenizer.special_ids
    assert drafter.spec.mask_token_id == ids["<|reserved_0|>"]


@torch.inference_mode()
def compute_features(model, boundaries, batch):
    rows = torch.empty(len(batch.token_ids), len(boundaries) * model.spec.hidden_size)
    pages = 2 * batch.full.page_table.shape[1]
    model.forward(
        batch,
        new_cache(model.spec, pages, PAGE_SIZE, CPU, torch.float32),
        taps=Taps(boundaries=boundaries, rows=rows),
    )
    return rows


def batch_of(token_ids, first, end, num_pages):
    """Returns rows first to end of a text whose pages are 0, 1, ...; window layers have as many after them."""
    pages, places = torch.arange(num_pages)[None], torch.arange(first, end)
    return Batch(
        token_ids=torch.tensor(token_ids[first:end]),
        positions=places,
        query_starts=torch.tensor([0, end - first]),
        kv_lens=torch.tensor([end]),
        full=KvView(page_table=pages, slots=places),
        window=KvView(page_table=pages + num_pages, slots=places + num_pages * PAGE_SIZE),
        logit_rows=torch.zeros(0, dtype=torch.int64),
    )


def count_steps(drafter, model, prompt, generated):
    """Returns the target's steps after the prompt's own, which give all generated tokens but the first."""
    token_ids = [*prompt, *generated]
    num_pages = (len(token_ids) + SPAN) // PAGE_SIZE + 1
    features = compute_features(model, drafter.boundaries, batch_of(token_ids, 0, len(token_ids), num_pages))
    drafter.attach(num_pages, PAGE_SIZE, CPU.torch_device)
    stored, known, steps = 0, len(prompt) + 1, 0
    while known < len(token_ids):
        context = DraftContext(
            batch=batch_of(token_ids, stored, known - 1, num_pages),
            features=features[stored : known - 1],
            followers=torch.tensor(token_ids[stored + 1 : known]),
            next_ids=torch.tensor([token_ids[known - 1]]),
        )
        with torch.inference_mode():
            drafted = drafter.draft(context, [SPAN - 1])[0].tolist()
        stored, steps = known - 1, steps + 1
        following = token_ids[known:]
        while drafted and following and drafted[0] == following[0]:
            drafted, following = drafted[1:], following[1:]
            known += 1
        known += 1  # the target's own
    return steps


@pytest.mark.slow  # a minute of CPU
def test_kindling_accepts_several_drafts_per_step(kindling, drafter):
    """Tokens per step, its own included; the record has 5.2 of more prompts (records/kindling-drafters)."""
    prompts = encode_held_out(kindling)
    texts = [generation.token_ids for generation in kindling.generate(prompts, SamplingParams(max_tokens=64))]
    pairs = [(prompt, text) for prompt, text in zip(prompts, texts, strict=True) if len(text) > 1]
    steps = sum(count_steps(drafter, kindling.model, prompt, text) for prompt, text in pairs)
    assert sum(len(text) - 1 for _, text in pairs) / steps >= 4.0
