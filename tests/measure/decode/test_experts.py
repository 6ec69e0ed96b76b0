"""Experts met in the network and in the fused ops are the same, padding does not count, and points are spread."""

import pytest
import torch

from firesteel import UserError
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.measure.decode.experts import ExpertMeter, spread_points
from firesteel.measure.decode.steps import fill_pages, first_batch, lay_out
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
        meter = ExpertMeter([0, 2, 3, 4])
        for _ in range(5):
            before = step.copy()
            meter.look(step)
            assert all(map(torch.equal, step.copy(), before)), "inputs are put back"
            step.run()
        found.append(meter.count(llm.spec))
    assert found[0] == found[1] and found[0].num_tokens == 12
    assert llm.spec.num_active <= found[0].per_step <= llm.spec.num_experts


def test_a_run_that_ends_before_the_first_point_is_an_error(llm):
    meter = ExpertMeter([10, 30])
    with pytest.raises(UserError, match=r"from step 10 on, and 0 steps .* raise --steps"):
        meter.count(llm.spec)


def test_points_lie_in_the_middle_of_equal_parts():
    assert spread_points(100, 5) == [10, 30, 50, 70, 90]
    assert spread_points(3, 5) == [0, 1, 2] and spread_points(0, 5) == []
