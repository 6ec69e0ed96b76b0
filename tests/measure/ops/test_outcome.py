"""Outcomes of timing: shares of the closer ceiling, and records."""

import pytest

from firesteel.config import Config
from firesteel.device import find_device
from firesteel.measure.ops.outcome import Ceilings, Figures, OpOutcome
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.timing import Timing

CPU = find_device("cpu")
SECOND = Timing(samples_s=(1.0, 1.0, 2.0), calls=1, warmups=1)
CEILINGS = Ceilings(
    read=Ceiling(work=100e9, scale=1e9, unit="GB/s", timing=SECOND),
    matrix=Ceiling(work=10e12, scale=1e12, unit="TFLOP/s", timing=SECOND),
    matrix_type="float32",
)


def figures(num_bytes, flops):
    return Figures(
        timing=SECOND,
        bytes=num_bytes,
        flops=flops,
        rotation_bytes=num_bytes,
        read_gb_s=100.0,
        matrix_tflop_s=10.0,
        peak_memory_bytes=7,
    )


@pytest.mark.parametrize(
    ("num_bytes", "flops", "share", "bound"),
    [(50e9, 1e12, 0.5, "read"), (50e9, 8e12, 0.8, "matrix"), (90e9, 0.0, 0.9, "read")],
)
def test_closer_ceiling_bounds_a_call(num_bytes, flops, share, bound):
    measured = figures(num_bytes, flops)
    assert (measured.share, measured.bound) == (pytest.approx(share), bound)
    assert (measured.gb_s, measured.tflop_s) == (num_bytes / 1e9, flops / 1e12)


def test_records_hold_the_figures_and_can_be_loaded(tmp_path):
    outcome = OpOutcome(
        op="linear",
        part="qkv bf16",
        m=4,
        implementation="reference",
        activation="bf16",
        figures=figures(50e9, 1e12),
    )
    read, matrix = CEILINGS.records(CPU, Config())
    record = outcome.record(read)
    assert Record.load(record.save(tmp_path)) == record and record.surroundings == read.surroundings
    assert record.name == "op linear" and record.kernels == {"linear": "reference"} and record.samples == (1, 1, 2)
    assert record.peak_memory_bytes == 7
    assert record.parameters["share"] == 0.5 and record.parameters["read_gb_s"] == 100.0 and record.seed == 1
    assert read.parameters["rate"] == 100.0 and matrix.name == "matrix rate float32"
