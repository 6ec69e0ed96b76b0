"""Counts of distinct experts: the same in the network and in fused ops, without padding."""

import pytest
import torch

from firesteel import UserError
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.measure.decode.experts import ExpertMeter, count_experts, spread_points
from firesteel.measure.decode.steps import fill_pages, first_batch, lay_out, watch
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.network_step import NetworkStep
from tests.measure.decode.small_steps import step_of


def test_network_and_fused_steps_choose_the_same_experts(llm):
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
    ops, route = fused.ops, model.kernels.route
    counts = []
    for step in (fused, network):
        step.load(batch)
        meter = ExpertMeter([0, 2, 3, 4])
        for _ in range(5):
            before = step.copy()
            meter.look(step)
            assert all(map(torch.equal, step.copy(), before)), "inputs are restored"
            step.run()
        counts.append(meter.count(llm.spec))
    assert fused.ops is ops and model.kernels.route is route
    assert counts[0] == counts[1] and counts[0].num_tokens == 12
    assert llm.spec.num_active <= counts[0].per_step <= llm.spec.num_experts


def test_experts_are_counted_from_the_routers_logits(llm):
    step = step_of(llm, [9, 30, 4])
    begin, spec = step.inputs.copy(), llm.spec
    met, per_step = [set() for _ in range(spec.num_layers)], []
    for _ in range(4):
        for layer, call in enumerate(watch(step)["router"]):
            chosen = set(call.result.topk(spec.num_active).indices.flatten().tolist())
            met[layer] |= chosen
            per_step.append(len(chosen))
    step.inputs.restore(begin)
    counted = count_experts(step, num_tokens=10)
    assert (
        counted.num_tokens == 12
        and counted.per_layer == tuple(map(len, met))
        and counted.total == sum(map(len, met))
    )
    assert counted.per_step == pytest.approx(sum(per_step) / len(per_step))
    assert all(map(torch.equal, begin, step.inputs.tensors()))


def test_run_that_ends_before_the_first_point_is_an_error(llm):
    meter = ExpertMeter([10, 30])
    with pytest.raises(UserError, match=r"from step 10 on, but only 0 steps .* raise --steps"):
        meter.count(llm.spec)


def test_points_lie_in_the_middle_of_equal_parts():
    assert spread_points(100, 5) == [10, 30, 50, 70, 90]
    assert spread_points(3, 5) == [0, 1, 2] and spread_points(0, 5) == []
