"""Every kind of wrong implementation is detected, shown on a toy op."""

from dataclasses import dataclass, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.op.op import anywhere, capability, define_op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.proof.verify import Status, guard_all, has_failed, list_unusable, same_bits, verify

CPU = find_device("cpu")
SAMPLE = Sample("six", (torch.arange(12.0).view(2, 6)[:, :3], torch.tensor([3])))


def toy(function, **kwargs):
    @define_op(bytes=lambda x, times: 2 * x.nbytes, tolerance=fp32(why="toy"))
    def scale(x, times):
        return x * times

    scale.implementation("mine", **{"needs": anywhere, **kwargs})(function)
    return scale


def only(op, sample=SAMPLE):
    (check,) = verify(op, CPU, [sample])
    return check


def beyond(x, places):
    """Returns the memory `places` floats after the first value of x, whichever tensor it belongs to."""
    return x.as_strided((1,), (1,), x.storage_offset() + places)


def read_beyond(x, times):
    return x * times + 0 * beyond(x, 1 << 13)


def write_beyond(x, times):
    beyond(x, 9).fill_(1)
    return x * times


def write_into_a_gap(x, times):
    beyond(x, 4).fill_(1)
    return x * times


def write_before(x, times):
    beyond(x, -1).fill_(1)
    return x * times


def write_to_the_argument(x, times):
    return x.mul_(times).clone()


def leave_a_value_unwritten(x, times):
    y = torch.empty(x.shape)
    y[:, :2] = (x * times)[:, :2]
    return y


def leave_one_unwritten_in_an_empty_like(x, times):
    y = torch.empty_like(x)
    y[0] = x[0] * times
    return y


def differ_each_time(x, times, calls=[]):  # noqa: B006
    calls.append(None)
    return x * times * (1 + len(calls) * 2.0**-22)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda x, times: x * times, None),
        (lambda x, times: x * times * 1.001, "worst"),
        (lambda x, times: (x * times)[:1], "shape"),
        (read_beyond, "worst nan"),
        (write_beyond, "tensor 0 of the arguments was written to"),
        (write_into_a_gap, "tensor 0 of the arguments was written to"),
        (write_before, "tensor 0 of the arguments was written to"),
        (write_to_the_argument, "tensor 0 of the arguments was written to"),
        (leave_a_value_unwritten, "worst nan"),
        (leave_one_unwritten_in_an_empty_like, "worst nan"),
        (differ_each_time, "other bits"),
    ],
)
def test_faults_are_found(function, complaint):
    failure = only(toy(function)).failure
    assert failure is None if complaint is None else complaint in failure


def test_sample_may_have_its_own_tolerance():
    op = toy(lambda x, times: x * times * 1.001)
    wide = replace(SAMPLE, tolerance=fp32(worst=1e-2, rms=1e-2, why="toy"))
    narrow = replace(SAMPLE, tolerance=fp32(worst=1e-4, rms=1e-4, why="toy"))
    assert only(op, wide).failure is None
    assert "allowed 0.0001" in only(op, narrow).failure


def test_implementation_may_have_its_own_tolerance():
    op = toy(lambda x, times: x * times * 1.001, tolerance=fp32(worst=1e-2, rms=1e-2, why="rounds more"))
    assert only(op).failure is None
    op = toy(lambda x, times: x * times * 1.1, tolerance=fp32(worst=1e-2, rms=1e-2, why="rounds more"))
    assert "rounds more" in only(op).failure


def test_op_may_write_a_declared_argument_and_only_that():
    @define_op(bytes=lambda x: x.nbytes, tolerance=fp32(why="toy"))
    def fill(x):
        return x.fill_(1)

    op = fill
    op.implementation("right", needs=anywhere)(lambda x: x.fill_(1))
    op.implementation("too far", needs=anywhere)(lambda x: (beyond(x, 9).fill_(1), x.fill_(1))[1])
    right, too_far = verify(op, CPU, [Sample("one", (torch.zeros(2, 3),))])
    assert right.failure is None and too_far.failure == "tensor 0 of the arguments was written out of bounds"


def test_refusals_differ_from_passes_and_the_device_decides_what_runs():
    refusing = toy(read_beyond, accepts=lambda x, times: "wants none")
    assert only(refusing).refusal == "wants none" and only(refusing).failure is None
    assert list(verify(toy(read_beyond, needs=capability(8, 0)), CPU, [SAMPLE])) == []


def test_arguments_keep_their_strides_and_values_even_inside_dataclasses():
    @dataclass(frozen=True)
    class Pair:
        first: torch.Tensor
        number: int

    (pair, empty), guards = guard_all((Pair(SAMPLE.args[0], 7), torch.zeros(0, 4)))
    assert pair.first.stride() == (6, 1) and same_bits(pair.first, SAMPLE.args[0]) and pair.number == 7
    assert pair.first.data_ptr() != SAMPLE.args[0].data_ptr() and len(guards) == 2 and empty.shape == (0, 4)
    assert beyond(pair.first, 3).isnan() and beyond(pair.first, -1).isnan() and beyond(pair.first, 9).isnan()


def test_same_bits_distinguishes_signed_zeros_and_treats_nan_as_equal():
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone()) and not same_bits(torch.zeros(1), -torch.zeros(1))
    assert not same_bits(torch.zeros(2), torch.zeros(1)) and not same_bits(torch.zeros(1), torch.zeros(1).int())


def test_a_pass_carries_its_errors():
    passed = only(toy(lambda x, times: x * times * (1 + 2.0**-22)))
    assert passed.status is Status.PASSED and passed.why == ""
    assert 0 < passed.rms <= 1e-6 and 0 < passed.worst <= 1e-5
    assert only(toy(lambda x, times: x * times)).worst == 0.0


def test_kernel_that_raises_has_failed_and_the_next_one_is_still_checked():
    def broken(x, times):
        raise RuntimeError("CUDA error: an illegal memory access\nCompile with ...")

    op = toy(broken)
    op.implementation("other", needs=anywhere)(lambda x, times: x * times)
    first, second = verify(op, CPU, [SAMPLE])
    assert first.status is Status.FAILED and first.why == "RuntimeError: CUDA error: an illegal memory access"
    assert second.status is Status.PASSED


def test_implementation_that_the_device_cannot_run_is_listed_with_the_reason():
    (row,) = list_unusable(toy(read_beyond, needs=capability(8, 0)), CPU)
    assert row.status is Status.NOT_RUN and row.implementation == "mine" and "needs an NVIDIA GPU" in row.why
    assert list_unusable(toy(read_beyond), CPU) == []
    assert row.as_dict()["status"] == "not run" and row.as_dict()["not_run"] == row.why


def test_cpu_never_counts_as_broken():
    assert not has_failed(CPU)


def test_gpu_that_cannot_be_synchronized_has_failed(monkeypatch):
    gpu = replace(CPU, capability=(9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert not has_failed(gpu)

    def broken(device):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert has_failed(gpu)


def test_weights_are_put_in_the_order_that_the_implementation_reads():
    """The reference gets them in that order too, so that an order that loses something shows."""

    @define_op(bytes=lambda x, mirrored: 2 * x.nbytes, tolerance=fp32(why="toy"))
    def scale(x, mirrored):
        return x * (3 if mirrored is None else float(mirrored.flip(0)[0]))

    def mirror(calls):
        return [(x, torch.tensor([5.0, 3.0])) for x, _ in calls]

    scale.implementation("mirrored", needs=anywhere, pack=mirror)(lambda x, mirrored: x * mirrored[1])
    scale.implementation("lossy", needs=anywhere, pack=mirror)(lambda x, mirrored: x * mirrored[0])
    passed, failed = verify(scale, CPU, [Sample("six", (SAMPLE.args[0], None))])
    assert passed.status is Status.PASSED and failed.status is Status.FAILED
