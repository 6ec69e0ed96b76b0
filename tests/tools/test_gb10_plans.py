"""The decode kernels as planned for a GB10: what is built, checked and timed on another GPU."""

import pytest
import torch

import gb10_plans
from firesteel.device import find_device
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.registry import DECODE_OPS
from firesteel.kernels.stream.plan import machine_of


def test_every_decode_op_has_work_for_one_to_eight_tokens():
    work = list(gb10_plans.list_work(DECODE_OPS, find_device("cpu")))
    for op in DECODE_OPS:
        assert {workload.m for workload in work if workload.op is op} == set(range(1, 9)), op.name


def test_kernels_that_are_built_are_those_of_a_gb10():
    codes = {op.name: gb10_plans.list_codes(op.name) for op in DECODE_OPS}
    assert all(codes.values())
    limit = machine_of((12, 1)).shared_bytes
    assert all(code.kernel.shared_bytes <= limit for listed in codes.values() for code in listed)
    assert {code.kernel.source.defines["NUM_CTAS"] for code in codes["decode_o"]} == {48}


def test_sample_that_nothing_takes_is_a_failure():
    @define_op(bytes=lambda x: 4 * x.numel(), tolerance=exact(why="whole numbers"))
    def doubled(x):
        return 2 * x

    doubled.implementation("cuda", needs=anywhere, accepts=lambda x: "too short" if len(x) < 3 else None)(
        lambda x: x + x
    )
    (short,), (long,) = (gb10_plans.check(doubled, Sample(str(size), (torch.ones(size),))) for size in (2, 3))
    assert short.failure == "no implementation takes it" and long.failure is None


def test_named_ops_limit_the_run():
    assert gb10_plans.choose([]) == DECODE_OPS
    assert [op.name for op in gb10_plans.choose(["decode_sample", "decode_o"])] == ["decode_sample", "decode_o"]
    with pytest.raises(SystemExit, match="decode_p is not a decode op: choose from decode_"):
        gb10_plans.choose(["decode_p"])


def test_usage_is_shown_without_a_folder(monkeypatch):
    monkeypatch.setattr("sys.argv", ["gb10_plans.py"])
    with pytest.raises(SystemExit, match=r"gb10_plans\.py FOLDER"):
        gb10_plans.main()
