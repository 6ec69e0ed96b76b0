"""Ops, tested on a toy op: choice of implementations, refusals, the ledger, and detection of wrong results."""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import ArgumentsRefused, KernelError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.kernels.op.op import anywhere, capability, define_op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import assert_close, fp32
from firesteel.kernels.proof.verify import tensors
from firesteel.kernels.registry import ALL_OPS, NETWORK_OPS, parse_pins

CPU = find_device("cpu")
FEW_BYTES = 4e6  # small enough for references on a CPU
H200 = replace(CPU, name="H200", capability=(9, 0))


def toy_op():
    @define_op(bytes=lambda x: 2 * x.nbytes, tolerance=fp32(why="toy"))
    def double(x):
        return x * 2

    @double.implementation("fast", needs=anywhere, accepts=lambda x: None if x.numel() > 1 else "wants two values")
    def fast(x):
        return x + x

    @double.implementation("gpu", needs=capability(9, 0))
    def gpu(x):
        return x + x

    return double


def every_case(ops):
    """Yields (op, implementation, sample) for each implementation but the reference that can run here."""
    device = find_device("auto")
    for op in ops:
        for name, implementation in op.implementations.items():
            if name != "reference" and implementation.needs(device) is None:
                for sample in op.make_samples(device.torch_device):
                    yield op, implementation, sample


def check(op, implementation, sample):
    expected = op.reference(*sample.clone())
    tolerance = sample.tolerance or op.tolerance
    assert_close(actual=implementation.function(*sample.clone()), expected=expected, tolerance=tolerance)


def test_every_implementation_here_matches_its_reference():
    for op, implementation, sample in every_case(ALL_OPS):
        check(op, implementation, sample)


def test_a_wrong_implementation_is_caught():
    op = toy_op()
    op.samples(lambda device: iter([Sample("two", (torch.ones(2, device=device),))]))
    assert [case[1].name for case in every_case([op])][:1] == ["fast"]
    for case in every_case([op]):
        check(*case)
    op.implementation("wrong", needs=anywhere)(lambda x: x * 2.001)
    with pytest.raises(AssertionError, match="worst"):
        for case in every_case([op]):
            check(*case)


@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_every_op_has_samples_bytes_and_a_reasoned_tolerance(op):
    samples = list(op.make_samples(torch.device("cpu")))
    assert len(samples) >= 3 and len({sample.label for sample in samples}) == len(samples)
    assert op.tolerance.why
    assert all(op.bytes(*sample.args) > 0 for sample in samples)
    few = [sample for sample in samples if op.bytes(*sample.args) < FEW_BYTES]
    assert few
    check_finite(op, few)


@pytest.mark.slow
@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_the_result_of_every_sample_is_finite(op):
    check_finite(op, op.make_samples(torch.device("cpu")))


def check_finite(op, samples):
    for sample in samples:
        results = tensors(op.reference(*sample.clone()))
        assert results and all(result.float().isfinite().all() for result in results), sample.label


def test_reference_runs_when_nothing_better_is_preferred():
    ledger = Ledger()
    toy_op().choose(CPU, None, ledger)(torch.ones(2))
    assert list(ledger.entries) == [Ran("double", "reference")]


def test_preference_is_followed_and_arguments_decide_among_candidates():
    op, ledger = toy_op(), Ledger()
    op.prefer("gpu", "fast", "reference")
    chosen = op.choose(CPU, None, ledger)
    chosen(torch.ones(2))
    chosen(torch.ones(2))
    chosen(torch.ones(1))
    assert {key[1]: entry.calls for key, entry in ledger.entries.items()} == {"fast": 2, "reference": 1}
    candidates = op.choose(H200, None, ledger).candidates
    assert [candidate.name for candidate in candidates] == ["gpu", "fast", "reference"]


def test_refusal_of_the_preferred_implementation_is_an_error_with_the_cure_not_a_fallback():
    op = toy_op()
    op.prefer("gpu", "fast")
    assert [candidate.name for candidate in op.choose(CPU, None, Ledger()).candidates] == ["fast"]
    cure = r"two values; --kernels double=IMPLEMENTATION chooses among reference$"
    with pytest.raises(ArgumentsRefused, match=cure):
        op.choose(CPU, None, Ledger())(torch.ones(1))


def test_required_implementation_must_be_the_one_that_runs():
    op = toy_op()
    fast = Requirement("double", "fast")
    with pytest.raises(
        KernelError, match=r"double=fast is required, but reference would run: add --kernels double="
    ):
        op.choose(CPU, None, Ledger(), fast)
    op.prefer("fast", "reference")
    chosen = op.choose(CPU, None, Ledger(), fast)
    chosen(torch.ones(2))
    with pytest.raises(KernelError, match=r"fast is required, but reference would run: fast wants two values$"):
        chosen(torch.ones(1))
    plain = op.choose(CPU, None, Ledger(), Requirement("double", "reference"))
    with pytest.raises(
        KernelError, match=r"but fast would run; --kernels double=reference has it run in every call$"
    ):
        plain(torch.ones(2))


def test_requesting_a_missing_implementation_lists_the_existing_ones():
    with pytest.raises(KernelError, match=r"double has no implementation 'cuda'; it has reference, fast$"):
        toy_op().choose(CPU, "cuda", Ledger())


def test_requesting_an_implementation_that_the_device_cannot_run_says_why():
    with pytest.raises(
        KernelError, match=r"double=gpu needs .* 9.0 or later, this is CPU; here there is reference"
    ):
        toy_op().choose(CPU, "gpu", Ledger())


def test_a_pinned_implementation_that_refuses_the_arguments_does_not_fall_back():
    with pytest.raises(KernelError, match="fast wants two values"):
        toy_op().choose(CPU, "fast", Ledger())(torch.ones(1))


def test_op_reads_stored_activations_if_an_implementation_that_may_run_does():
    op = toy_op()
    op.implementation("reader", needs=anywhere, reads_fed=True)(lambda x: x + x)
    op.prefer("fast", "reader")
    assert op.choose(CPU, None, Ledger()).reads_fed and op.choose(CPU, "reader", Ledger()).reads_fed
    assert not op.choose(CPU, "fast", Ledger()).reads_fed and not op.choose(CPU, "reference", Ledger()).reads_fed


def test_preferring_an_unknown_implementation_is_an_error():
    with pytest.raises(ValueError, match="no implementation"):
        toy_op().prefer("cutlass")


def test_timed_ledger_measures_and_untimed_does_not():
    for timed in (True, False):
        ledger = Ledger(timed=timed)
        toy_op().choose(CPU, None, ledger)(torch.ones(1000))
        assert (ledger.entries[Ran("double", "reference")].seconds > 0) == timed


def test_kernels_bind_every_op_and_an_unknown_one_is_an_error():
    assert [name for name, _ in Kernels(CPU, {}, Ledger()).table()] == [op.name for op in NETWORK_OPS]
    with pytest.raises(KernelError, match="no op 'rmsnorm'; did you mean rms_norm"):
        Kernels(CPU, parse_pins("rmsnorm=triton"), Ledger())


def test_pin_of_an_op_covers_what_runs_in_its_place_unless_that_is_pinned_itself():
    both = {"rms_norm": "reference", "rms_norm_fed": "reference"}
    assert parse_pins("rms_norm=reference") == both
    assert parse_pins("rms_norm_fed=triton,rms_norm=reference") == {**both, "rms_norm_fed": "triton"}
    assert parse_pins("rms_norm_fed=triton") == {"rms_norm_fed": "triton"}
    chosen = Kernels(H200, parse_pins("rms_norm=reference"), Ledger()).rms_norm_fed
    assert [candidate.name for candidate in chosen.candidates] == ["reference"]


def test_an_op_pinned_twice_is_an_error():
    assert parse_pins("moe=reference, linear=triton") == {"moe_matmul": "reference", "linear": "triton"}
    with pytest.raises(KernelError, match="moe_matmul is pinned twice: to reference and to triton"):
        parse_pins("moe=reference,moe_matmul=triton")


def test_samples_are_copied_so_that_ops_may_write_into_them():
    sample = Sample("one", (torch.zeros(1), 3))
    sample.clone()[0].fill_(9)
    assert sample.args[0].item() == 0
