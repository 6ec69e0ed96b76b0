"""The workloads of a plan."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan, BenchWorkload
from firesteel.lab.codec import from_json


def test_depths_and_prompts_multiply_and_concurrency_does_not():
    plan = BenchPlan(pp=(128, 512), tg=(32,), depths=(0, 1024), concurrency=(1, 4, 8), cached_depths=(64,))
    *uncached, cached = plan.workloads()
    assert cached == BenchWorkload(pp=128, tg=32, depth=64, is_cached=True)
    assert [workload.concurrency for workload in uncached] == [1, 1, 1, 1, 4, 8]
    assert {(workload.pp, workload.depth) for workload in uncached[:4]} == {
        (128, 0),
        (512, 0),
        (128, 1024),
        (512, 1024),
    }
    assert uncached[-1] == BenchWorkload(pp=128, tg=32, depth=0, concurrency=8)


def test_prompt_and_answer_lengths_are_measured_at_every_depth_but_not_multiplied():
    """pp2048 tg32, by which engines are compared, was not among them."""
    plan = BenchPlan(pp=(512, 2048, 8192), tg=(32, 128), depths=(0, 4096), concurrency=(1,), cached_depths=())
    lengths = [(2048, 32), (512, 128), (2048, 128), (8192, 128)]
    assert [(workload.depth, workload.pp, workload.tg) for workload in plan.workloads()] == [
        (depth, pp, tg) for depth in (0, 4096) for pp, tg in lengths
    ]


def test_slow_workloads_run_three_times_and_fast_ones_as_planned():
    plan = BenchPlan(runs=5, enough_s=60.0)
    assert not plan.is_enough(4, 10.0) and plan.is_enough(5, 10.0)
    assert not plan.is_enough(2, 1000.0) and plan.is_enough(3, 61.0) and not plan.is_enough(3, 59.0)
    assert BenchPlan(runs=1).is_enough(1, 0.1)


def test_given_settings_replace_those_of_the_plan():
    plan = BenchPlan().with_settings(pp=(64,), depths=(0, 4096), warmups=0, tg=(), temperature=None)
    assert (plan.pp, plan.tg, plan.depths, plan.warmups) == ((64,), (32, 128), (0, 4096), 0)
    assert plan.cached_depths == () and plan.temperature is None  # 8192 is not among the given depths
    assert BenchPlan().with_settings(depths=(0, 8192)).cached_depths == (8192,)


def test_given_number_of_runs_is_not_cut_short():
    assert not BenchPlan().with_settings(runs=10).is_enough(9, 1e6)
    assert BenchPlan().with_settings(warmups=3).is_enough(9, 1e6)


def test_workloads_beyond_the_context_are_listed():
    fitting, left_out = BenchPlan.quick().within(1024)
    assert all(workload.tokens <= 1024 for workload in fitting) and fitting
    assert any("d1024" in line and "1024" in line for line in left_out)


def test_plan_is_the_same_after_json():
    plan = BenchPlan.quick()
    assert from_json(BenchPlan, json.loads(json.dumps(plan.as_dict())), "the plan") == plan


@pytest.mark.parametrize(
    "wrong",
    [{"pp": ()}, {"tg": (0,)}, {"depths": (-1,)}, {"cached_depths": (0,)}, {"runs": 0}, {"temperature": 3.0}],
)
def test_impossible_plan_is_refused(wrong):
    with pytest.raises(UserError):
        BenchPlan(**wrong)
