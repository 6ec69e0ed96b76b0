"""Which workloads a plan is."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan, BenchWorkload


def test_depths_and_prompts_are_multiplied_and_crowds_are_not():
    plan = BenchPlan(pp=(128, 512), tg=(32,), depths=(0, 1024), concurrency=(1, 4, 8), cached_depths=(64,))
    *found, cached = plan.workloads()
    assert cached == BenchWorkload(pp=128, tg=32, depth=64, is_cached=True)
    assert [one.concurrency for one in found] == [1, 1, 1, 1, 4, 8]
    assert {(one.pp, one.depth) for one in found[:4]} == {(128, 0), (512, 0), (128, 1024), (512, 1024)}
    assert found[-1] == BenchWorkload(pp=128, tg=32, depth=0, concurrency=8)


def test_every_prompt_and_every_answer_length_is_measured_at_every_depth_but_not_their_product():
    plan = BenchPlan(pp=(512, 2048, 8192), tg=(32, 128), depths=(0, 4096), concurrency=(1,), cached_depths=())
    lengths = [(512, 32), (512, 128), (2048, 128), (8192, 128)]
    assert [(one.depth, one.pp, one.tg) for one in plan.workloads()] == [
        (depth, pp, tg) for depth in (0, 4096) for pp, tg in lengths
    ]


def test_slow_workloads_are_run_three_times_and_fast_ones_as_often_as_planned():
    plan = BenchPlan(runs=5, enough_s=60.0)
    assert not plan.is_enough(4, 10.0) and plan.is_enough(5, 10.0)
    assert not plan.is_enough(2, 1000.0) and plan.is_enough(3, 61.0) and not plan.is_enough(3, 59.0)
    assert BenchPlan(runs=1).is_enough(1, 0.1)


def test_what_has_no_room_is_left_out_in_words():
    fitting, left_out = BenchPlan.quick().within(1024)
    assert all(one.tokens <= 1024 for one in fitting) and fitting
    assert any("d1024" in line and "1024" in line for line in left_out)


def test_a_plan_comes_back_from_its_dictionary():
    plan = BenchPlan.quick()
    assert BenchPlan.parse({**plan.as_dict(), "pp": [128, 512]}) == plan


@pytest.mark.parametrize(
    "wrong", [{"pp": ()}, {"tg": (0,)}, {"depths": (-1,)}, {"cached_depths": (0,)}, {"runs": 0}]
)
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(UserError):
        BenchPlan(**wrong)
