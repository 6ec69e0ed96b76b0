"""The emulated GPU detects faults: those planted in a small kernel, and missing waits of a decode kernel."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from firesteel.kernels.cuda.source import CudaSource
from firesteel.kernels.decode.o import DecodeOOperands, decode_o
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.proof.verify import check
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

ROOT = Path(__file__).parents[2]
SHARED_BYTES, COUNT = 256, 512
THREE = Machine(3, 232_448)
FAULTS = (
    "none",
    "reads too soon",
    "reuses too soon",
    "never arrives",
    "spins",
    "writes behind",
    "copies crooked",
    "leaves copies",
    "waits for nothing",
    "reads a finished peer",
    "reads unwritten",
    "copies early",
    "reads past the end",
    "writes before the begin",
    "writes next to the end",
    "copies past the end",
    "reads anywhere",
)


@pytest.fixture
def launch(emulator, monkeypatch):
    """launch(fault) returns x and y of two CTAs; y should be 2 x."""
    source = CudaSource("planted.cu", defines={"SHARED_BYTES": SHARED_BYTES}, folder=emulator.FOLDER)
    kernel = source.kernel("planted", threads=64, shared_bytes=SHARED_BYTES)

    def run(fault, cluster=(), late=False, patience_s=emulator.PATIENCE_S, in_place=False):
        monkeypatch.setattr(emulator, "PATIENCE_S", patience_s)
        x, y = torch.arange(2.0 * COUNT), torch.zeros(2 * COUNT)
        args = (x if in_place else y, x, torch.zeros(1, dtype=torch.int64), FAULTS.index(fault))
        prepared = emulator.emulated_prepare(kernel, grid=(2,), args=args, dependent=late, cluster=cluster)
        with emulator.coming_late(x):
            prepared()
        return x, y

    return run


def test_kernel_without_fault_is_correct_in_any_order(launch):
    for number in range(20):
        x, y = launch("none", late=number % 2 == 1)
        assert torch.equal(y, 2 * x)


@pytest.mark.parametrize("fault", ["reads too soon", "reads unwritten"])
def test_data_read_before_its_arrival_is_nan(fault, launch):
    for _ in range(5):
        assert launch(fault)[1].isnan().any()


@pytest.mark.parametrize(
    ("fault", "why"),
    [("reuses too soon", "wait for what never happens"), ("waits for nothing", "ended before the prior grid")],
)
def test_data_overwritten_or_read_too_early_is_wrong_or_the_kernel_fails(fault, why, launch, emulator):
    """Not every order shows it. A thread that misses a phase of its barrier waits forever."""

    def is_found():
        try:
            return launch(fault, late=fault == "waits for nothing", patience_s=0.5)[1].isnan().any()
        except emulator.EmulationError as error:
            return why in str(error)

    assert any(is_found() for _ in range(20))


def test_copies_issued_before_the_wait_are_found_in_every_second_launch(launch):
    """The prior grid then ends when nothing else can happen."""
    assert [launch("copies early", late=True)[1].isnan().any() for _ in range(4)].count(True) >= 2


@pytest.mark.parametrize("fault", ["never arrives", "spins"])
def test_kernel_that_hangs_is_ended(fault, launch, emulator):
    with pytest.raises(emulator.EmulationError, match=r"planted: CTA [01]: \d+ threads wait for what never"):
        launch(fault, patience_s=0.3)


@pytest.mark.parametrize(
    ("fault", "why", "tries"),
    [
        ("writes behind", "CTA . wrote past the end of its shared memory", 1),
        ("copies crooked", "a copy is not of whole 16 bytes", 1),
        ("leaves copies", "ended before its copies completed", 20),  # in some orders they complete in time
        ("reads a finished peer", "CTA 0 ended before its peer was done", 1),
    ],
)
def test_operations_that_a_gpu_forbids_are_reported(fault, why, tries, launch, emulator):
    with pytest.raises(emulator.EmulationError, match=why):
        for _ in range(tries):
            launch(fault, cluster=(2,))


OUTSIDE = [
    ("reads past the end", "CTA 1, thread 63 reads or writes 8 bytes past the end of argument 1"),
    ("writes before the begin", "CTA 0, thread 5 reads or writes 8 bytes before argument 0"),
    ("writes next to the end", "wrote past the end of argument 2"),
    ("copies past the end", "CTA 1, thread 0 reads or writes 63 bytes past the end of argument 1"),
    ("reads anywhere", "CTA 1, thread 63 reads or writes at 0x10"),
]


@pytest.mark.parametrize(("fault", "why"), OUTSIDE, ids=[fault for fault, _ in OUTSIDE])
def test_accesses_outside_of_tensors_are_reported(fault, why, launch, emulator):
    """Later launches are as before."""
    for _ in range(2):
        with pytest.raises(emulator.EmulationError, match=f"planted: {why}$"):
            launch(fault)
        x, y = launch("none")
        assert torch.equal(y, 2 * x)


def test_tensors_that_overlap_are_one_memory_in_a_launch(launch):
    x, _ = launch("none", in_place=True)
    assert torch.equal(x, 2 * torch.arange(2.0 * COUNT))


FAULT_ELSEWHERE = """
import ctypes, threading
import torch
from firesteel.kernels.cuda.source import CudaSource
from tests.kernels import emulator
source = CudaSource("planted.cu", defines={"SHARED_BYTES": 256}, folder=emulator.FOLDER)
args = (torch.zeros(1024), torch.zeros(1024), torch.zeros(1, dtype=torch.int64), 4)  # spins
launch = emulator.emulated_prepare(source.kernel("planted", threads=64, shared_bytes=256), grid=(2,), args=args)
threading.Timer(1, ctypes.string_at, (0,)).start()
launch()
"""


@pytest.mark.slow
def test_faults_of_other_threads_end_the_process_as_ever():
    command = [sys.executable, "-X", "faulthandler", "-c", FAULT_ELSEWHERE]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=50)
    assert ended.returncode == -signal.SIGSEGV and "string_at" in ended.stderr


def test_wrong_number_of_arguments_is_refused(emulator):
    source = CudaSource("planted.cu", defines={"SHARED_BYTES": SHARED_BYTES}, folder=emulator.FOLDER)
    with pytest.raises(AssertionError, match="planted has 4 parameters"):
        emulator.emulated_prepare(source.kernel("planted", threads=64), grid=(1,), args=(None, None, 3))


ARRIVE = "void arrive(u64 *bars, int number) {\n        "
WAITS = [
    ("multiply_bf16.cuh", "barrier_wait(ring.full + stage, number / S::STAGES & 1);"),
    ("ring.cuh", "if (number >= S::STAGES) ring.wait(ring.free, number - S::STAGES);"),
    ("ring.cuh", "ring.wait(ring.done, number);"),
    ("ring.cuh", "ring.arrive(ring.free, number);"),
    ("ring.cuh", ARRIVE + "__syncwarp();"),
    ("decode_o.cu", "named_barrier_sync(1, S::CONSUMERS);"),
]


@pytest.fixture
def leave_out(monkeypatch):
    """leave_out(file, text) removes `text` from `file` in all later compilations."""
    read = CudaSource._read

    def leave(file, text):
        def read_without(self, name, *, needed_by):
            source = read(self, name, needed_by=needed_by)
            assert name != file or text in source
            return source.replace(text, ARRIVE if text.startswith(ARRIVE) else "") if name == file else source

        monkeypatch.setattr(CudaSource, "_read", read_without)

    return leave


def make_operands():
    """Builds operands with eight strips of two parts for each of three CTAs, through six stages."""
    draw = Draw(torch.device("cpu"))
    return DecodeOOperands(
        mixed=draw.normal(3, 1344), weight=draw.weight(384, 1344), bias=draw.normal(384), r=draw.normal(3, 384)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("file", "wait"), WAITS, ids=[wait.removeprefix(ARRIVE) for _, wait in WAITS])
def test_decode_kernel_without_one_of_its_waits_fails(file, wait, leave_out, use_machine, emulator, monkeypatch):
    use_machine(THREE)
    monkeypatch.setattr(emulator, "PATIENCE_S", 10.0)
    cuda, sample = decode_o.implementations["cuda"], Sample("emulated", (make_operands(),))
    assert check(decode_o, cuda, sample) is None
    leave_out(file, wait)
    assert any(check(decode_o, cuda, sample) for _ in range(5))


@pytest.mark.slow
def test_a_decode_kernel_that_does_not_wait_for_its_inputs_fails(leave_out, hold_early, emulator):
    late = ("mixed", "bias", "r")
    hold_early(decode_o, THREE, late, make_operands())
    leave_out("decode_o.cu", "wait_for_inputs();")
    with pytest.raises(AssertionError, match=r"worst|ended before the prior grid"):
        for _ in range(8):  # the inputs may arrive in time, or so late that they replace what was written
            hold_early(decode_o, THREE, late, make_operands())
