"""Rows of texts that draft networks read: drawn on the host, and the same without padding on a device."""

from dataclasses import replace

import numpy as np
import torch

from firesteel.engine.step.batch import build_batch, lay_out
from firesteel.model.drafters.dflash import load_dflash
from firesteel.model.drafters.draft_step import DraftStep, HostDraft
from firesteel.model.drafters.drafter import DraftContext
from firesteel.model.drafters.eagle3 import load_eagle3
from firesteel.model.host_batch import HostBatch
from firesteel.model.spec import PRESETS
from firesteel.types import Plan, Request, SamplingParams, Span
from tests.model.drafters.dflash_oracle import draw_config, draw_tensors, write_drafter
from tests.model.drafters.heads import LAYOUTS, Layout, write_head

GPU_TARGET = replace(
    PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096, max_context=4096
)
GPU_NETWORKS = {
    "eagle3": Layout(
        draft_vocab=1000,
        hidden_size=256,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        config={"eagle_aux_hidden_state_layer_ids": [0, 2, 4]},
    ),
    "eagle3 that shares": replace(
        LAYOUTS["final state without fc, all shared"],
        hidden_size=GPU_TARGET.hidden_size,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
    ),
    "dflash": {"head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 4},
    "dflash with an odd span": {
        "head_dim": 128,
        "block_size": 5,
        "dflash_config": {"mask_token_id": 7, "target_layer_ids": [0, 1, 3]},
    },
}


def draw_plan(lens, counts, drafter, *, page_size, pages, vocabulary, seed=0):
    """Returns a plan of requests given as (rows, tokens held then); those that draft have pages to do it.

    The followers of the last rows are known, as the engine has drawn them. Pages are unordered, unshared.
    """
    generator = np.random.default_rng(seed)
    free, spans = list(generator.permutation(pages)), []
    for number, ((rows, held), count) in enumerate(zip(lens, counts, strict=True)):
        token_ids = generator.integers(0, vocabulary, held + 1).tolist()
        reach = held + drafter.reach if count else held
        owned = [int(free.pop()) for _ in range(-(-reach // page_size))]
        request = Request(request_id=str(number), token_ids=token_ids, params=SamplingParams())
        spans.append(
            Span(
                request=request,
                token_ids=token_ids,
                start=held - rows,
                end=held,
                full_pages=owned,
                window_pages=owned,
                num_logits=0,
            )
        )
    return Plan(spans=spans)


def followers_of(plan):
    return np.concatenate([span.token_ids[span.start + 1 : span.end + 1] for span in plan.spans])


def host_of(plan, counts, drafter, *, page_size, num_features, seed=0):
    """Returns the numbers of a padded step; its rows are anywhere among `num_features`."""
    rows = np.random.default_rng(seed).permutation(num_features)[: plan.num_tokens]
    return HostDraft(
        batch=lay_out(plan, page_size, drafter.reach),
        rows=rows,
        followers=followers_of(plan),
        counts=np.array(counts),
    )


def run_padded(drafter, context, counts, size, *, idle_page):
    """Returns what a padded step of `size` drafts from the rows of a context."""
    batch = context.batch
    view = {"full": batch.full, "window": batch.full}
    names = ("token_ids", "positions", "query_starts", "kv_lens", "logit_rows")
    host = HostBatch(
        **{name: getattr(batch, name).numpy() for name in names},
        **{f"{kind}_table": pages.page_table.numpy() for kind, pages in view.items()},
        **{f"{kind}_slots": pages.slots.numpy() for kind, pages in view.items()},
    )
    width = batch.full.page_table.shape[1]
    step = DraftStep(drafter, size, num_pages=width, idle_page=idle_page, features=context.features)
    rows, followers = np.arange(len(batch.positions)), context.followers.numpy()
    step.load(HostDraft(batch=host, rows=rows, followers=followers, counts=np.array(counts)))
    return step.run()


def context_of(plan, host, features, drafter, page_size):
    """Returns the same rows without padding, for `draft`."""
    device = features.device
    return DraftContext(
        batch=build_batch(plan, page_size, device, drafter.reach),
        features=features[torch.from_numpy(host.rows).to(device)],
        followers=torch.from_numpy(host.followers).to(device),
        next_ids=torch.tensor([span.token_ids[span.end] for span in plan.spans], device=device),
    )


def pages_of(drafter):
    """Returns keys and values of all layers."""
    return [drafter.k_pages, drafter.v_pages] if drafter.name == "eagle3" else [*drafter.keys, *drafter.values]


def fill(drafter, idle_page, seed=1):
    """Fills the pages with the same keys and values each time, apart from the idle page, where nothing is."""
    for number, pages in enumerate(pages_of(drafter)):
        generator = torch.Generator(pages.device).manual_seed(seed + number)
        pages.copy_(torch.randn(pages.shape, generator=generator, device=pages.device).to(pages.dtype))
        pages[idle_page] = 0


def load_network(folder, network, target, device):
    """Loads a random head of a layout, or a random DFlash drafter with these changes."""
    if isinstance(network, Layout):
        return load_eagle3(write_head(folder, network, target=target.spec), target, device)
    config = draw_config(target.spec, **network)
    write_drafter(folder, config, draw_tensors(config, 1))
    return load_dflash(folder, target, device)


def take(drafted, counts):
    """Returns the tokens of real requests, as many as each wants."""
    return [row[:count] for row, count in zip(drafted.tolist(), counts, strict=False)]
