"""Samples for compute-sanitizer: every small sample of an op, reported when it is done."""

import pytest
import torch

import sanitize
from firesteel.device import find_device
from firesteel.kernels.decode.fc2 import refuse_strips
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.registry import DECODE_OPS
from firesteel.kernels.stream.plan import Machine

CPU = find_device("cpu")


@pytest.fixture
def doubled():
    @define_op(bytes=lambda x: 4 * x.numel(), tolerance=exact(why="whole numbers"))
    def doubled(x):
        return 2 * x

    doubled.implementation("right", needs=anywhere)(lambda x: x + x)
    doubled.implementation("wrong", needs=anywhere, accepts=lambda x: "is for many" if len(x) < 3 else None)(
        lambda x: x + 2
    )
    doubled.samples(lambda device: (Sample(f"{count} values", (torch.ones(count) * 3,)) for count in (1, 3, 90)))
    return doubled


def test_small_samples_are_checked_and_reported_one_by_one(doubled, capsys):
    failed = sanitize.run([doubled], CPU, 100, " over all SMs")
    told = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" (")[0] for line in told] == [
        "doubled over all SMs, 1 values: right",
        "doubled over all SMs, 3 values: right, wrong",
    ]
    assert len(failed) == 1 and failed[0].startswith("doubled wrong 3 values: ")


def test_unknown_op_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr("sys.argv", ["sanitize.py", "--all-arrive", "decode_expert"])
    with pytest.raises(SystemExit, match="unknown op decode_expert; the ops are rms_norm"):
        sanitize.main()


def test_few_sms_are_enough_for_the_rows_of_gpt_oss():
    """An op that refuses so few SMs would not be checked where the ring wraps around."""
    taken = {op.name: sanitize.few_sms(op) for op in DECODE_OPS}
    for name in ("decode_fc2", "decode_experts"):
        assert refuse_strips(Machine(taken[name], 0), sanitize.NARROW.hidden) is None
    assert refuse_strips(Machine(sanitize.FEW_SMS, 0), sanitize.NARROW.hidden) is not None
    assert {few for name, few in taken.items() if name not in sanitize.FEW_SMS_OF} == {sanitize.FEW_SMS}
