"""Fixtures that compare ops with their references in Triton's interpreter and on an emulated GPU."""

import os
import shutil
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from firesteel.kernels.cuda import cache as cuda_cache
from firesteel.kernels.cuda.source import CudaKernel, CudaSource
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.proof.verify import Check, check
from firesteel.kernels.stream import plan as stream_plan

DATA = Path(__file__).with_name("data")
EARLY_LAUNCHES = 4


@pytest.fixture
def kernel_cache(monkeypatch, tmp_path):
    """A cache folder for compiled CUDA C++, used by this test alone."""
    cache = cuda_cache.CubinCache(tmp_path / "cache")
    monkeypatch.setattr(cuda_cache, "_current", cache)
    return cache


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def small(monkeypatch, shared_folder):
    """small(name, ...) returns a kernel of data/small.cu, compiled once per session and target."""
    monkeypatch.setattr(cuda_cache, "_current", cuda_cache.CubinCache(shared_folder))

    def kernel(name, *, threads=256, shared_bytes=0):
        source = CudaSource("small.cu", defines={"FACTOR": 2}, folder=DATA)
        return source.kernel(name, threads=threads, shared_bytes=shared_bytes)

    return kernel


@pytest.fixture(scope="session")
def small_operands():
    """small_operands(op, label) copies the operands of the op's first CPU sample whose label starts so."""

    def find(op, label="kindling T=5"):
        sample = next(sample for sample in op.make_samples(torch.device("cpu")) if sample.label.startswith(label))
        (operands,) = sample.clone()
        return operands

    return find


@pytest.fixture(scope="session")
def refusal(small_operands):
    """refusal(op, ...) returns why the last choice refuses a small sample with some operands replaced."""
    return lambda op, **changes: op.implementations[op.order[-1]].accepts(replace(small_operands(op), **changes))


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """The module emulator.py; parallel test processes share its compiled kernels."""
    if shutil.which("g++") is None:
        pytest.skip("the emulator compiles kernels with g++, which is not installed")
    spec = spec_from_file_location("emulator", Path(__file__).with_name("emulator.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    module.Builds.folder = folder / "emulator"
    module.Builds.folder.mkdir(exist_ok=True)
    return module


@pytest.fixture
def use_machine(emulator, monkeypatch):
    """use_machine(machine) makes CUDA kernels run on an emulated GPU of this size."""
    monkeypatch.setattr(CudaKernel, "prepare", emulator.emulated_prepare)
    monkeypatch.setattr(CudaKernel, "launch", emulator.emulated_launch)
    return lambda machine: monkeypatch.setattr(stream_plan, "_read_machine", lambda device: machine)


@pytest.fixture
def spoilt_memory(monkeypatch):
    """Fills new float tensors with NaN, so that reading unwritten memory shows."""
    plain = torch.empty

    def empty(*sizes, **options):
        made = plain(*sizes, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", empty)


@pytest.fixture
def hold_emulated(use_machine):
    """hold_emulated(op, machine, *args) checks that `cuda` equals the reference and gives the same bits twice."""

    def hold(op, machine, *args, way="cuda"):
        use_machine(machine)
        cuda = op.implementations[way]
        assert cuda.accepts(*args) is None
        assert check(op, cuda, Sample("emulated", args)) is None

    return hold


@pytest.fixture
def hold_early(use_machine, emulator):
    """hold_early(op, machine, late, operands) checks a kernel that starts before its operands `late` exist.

    A missing wait shows in most launches, not in all.
    """

    def hold(op, machine, late, operands, way="cuda"):
        use_machine(machine)
        expected = op.reference(operands.clone())
        for _ in range(EARLY_LAUNCHES):
            given = replace(operands.clone(), dependent=True)
            with emulator.coming_late(*(getattr(given, name) for name in late)):
                actual = op.implementations[way].function(given)
            assert_close(actual=actual, expected=expected, tolerance=op.tolerance)

    return hold


@pytest.fixture(scope="session")
def interpret(ask_interpreter):
    """interpret(op, samples=None) compares every Triton implementation of an op with the reference, on CPU tensors.

    Samples default to the op's own. Asserts that none failed, that each implementation accepted a sample and each
    sample was accepted; returns the checks.
    """

    def run(op, samples=None):
        samples = op.make_samples(torch.device("cpu")) if samples is None else samples
        checks = [Check(**entry) for entry in ask_interpreter(samples, verb="verify", op=op.name)["checks"]]
        failed = [f"{check.implementation} on {check.sample}: {check.failure}" for check in checks if check.failure]
        assert not failed, "\n".join(failed)
        names = {name for name in op.implementations if name.partition(":")[0] == "triton"}
        idle = names - {check.implementation for check in checks if check.refusal is None}
        assert names and not idle, f"{op.name}: took no sample: {idle or 'there is no Triton implementation'}"
        untried = {check.sample for check in checks} - {check.sample for check in checks if check.refusal is None}
        assert not untried, f"{op.name}: no implementation took {untried}"
        return checks

    return run


@pytest.fixture(scope="session")
def call_interpreted(ask_interpreter):
    """call_interpreted(op, implementation, samples) returns what the implementation returns for each sample."""

    def call(op, implementation, samples):
        answer = ask_interpreter(samples, verb="call", op=op.name, implementation=implementation)
        return torch.load(answer["results"], weights_only=False)

    return call
