"""Experts counted through the network and through the fused ops are the same, and padding does not count."""

import torch

from firesteel.engine.kv_cache import new_cache
from firesteel.measure.decode import fill_pages, first_batch, lay_out
from firesteel.measure.experts import count_step_experts
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.network_step import NetworkStep


def test_both_steps_meet_the_same_experts(llm):
    model, contexts = llm.model, [3, 9, 14]
    pages = lay_out(contexts, room=8, page_size=4, window=8, seed=1)
    caches = [new_cache(llm.spec, pages.count + 1, 4, llm.device, torch.float32) for _ in range(2)]
    for cache in caches:
        fill_pages(cache, seed=1)
    batch = first_batch([5, 6, 7], contexts, pages, caches[0])
    fused = DecodeStep(
        model, caches[0], DecodeOps.choose(llm.device, llm.kernels.ledger), num_requests=3, num_pages=pages.width
    )
    network = NetworkStep(
        model, caches[1], num_requests=5, num_pages=pages.width, idle_page=pages.count, logits=torch.empty(5, 272)
    )
    found = []
    for step in (fused, network):
        step.load(batch)
        before = step.copy()
        found.append(count_step_experts(step, num_steps=4))
        assert all(map(torch.equal, step.copy(), before)), "inputs are put back"
    assert found[0] == found[1] and found[0].num_tokens == 12
    assert llm.spec.num_active <= found[0].per_step <= llm.spec.num_experts
