"""A decoding step of a small model, ready to run."""

import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.measure.decode.steps import fill_pages, first_batch, lay_out
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS, DecodeOps

OURS = tuple(group for group in GROUPS if group != "experts")  # rows of Kindling's experts differ in length
CPU = find_device("cpu")


def ops_of(model, device=CPU):
    return DecodeOps.choose(device, model.kernels.ledger)


def step_of(llm, contexts, room=40):
    """A step on a CPU of requests that hold `contexts` tokens; request i starts with token i."""
    pages = lay_out(contexts, room=room, page_size=8, window=128, seed=0)
    cache = new_cache(llm.spec, pages.count, 8, CPU, torch.float32)
    fill_pages(cache, seed=0)
    step = DecodeStep(llm.model, cache, ops_of(llm.model), num_requests=len(contexts), num_pages=pages.width)
    step.load(first_batch(list(range(len(contexts))), contexts, pages, cache))
    return step
