"""The registry: an op takes one file and one line; decode ops name the network's ops they replace."""

import json
import subprocess
import sys

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.registry import ALL_OPS, DECODE_OPS, find_op, list_replacements

OP_FILE = """
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.op import anywhere, define_op
from firesteel.kernels.op.profile import NORM, OpProfile
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import WorkloadPart

@define_op(
    bytes=lambda x: 2 * x.nbytes,
    tolerance=exact(why="a product by a power of two"),
    profile=OpProfile(NORM, kernels={"double_rows": ""}),
)
def twice(x):
    return x * 2

@twice.implementation("sum", needs=anywhere)
def sum_twice(x):
    return x + x

@twice.implementation("wrong", needs=anywhere)
def wrong_twice(x):
    return x + 1

twice.prefer("sum")

@twice.samples
def samples(device):
    import torch

    yield Sample("three", (torch.arange(3.0, device=device),))

@twice.workloads
def workloads(shapes, m, activation):
    yield WorkloadPart("rows", 1.0, 4 * m, lambda: (shapes.normal(m, 8),))
"""
REGISTRY_LINE = "from firesteel.kernels import registry; from twice import twice; registry.ALL_OPS += (twice,)\n"


@pytest.fixture
def run_with_op(tmp_path):
    """run_with_op(program) runs it with the op of OP_FILE in the registry and returns its output."""
    (tmp_path / "twice.py").write_text(OP_FILE)

    def run(program, *args):
        (tmp_path / "program.py").write_text(REGISTRY_LINE + program)
        command = [sys.executable, str(tmp_path / "program.py"), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    return run


def test_new_op_takes_one_file_and_one_line_of_the_registry(run_with_op, tmp_path):
    """It then appears in verify, in bench and in profiles."""
    main = "from firesteel.cli import main; main()\n"
    verified = run_with_op(main, "verify", "--op", "twice", "--device", "cpu", "--json")
    checks = {(row["implementation"], row["sample"]): row["status"] for row in json.loads(verified.stdout)}
    assert verified.returncode == 1 and checks["sum", "three"] == "passed" and checks["wrong", "three"] == "FAILED"
    assert checks["sum", "rows M=7"] == "passed"

    options = ("--device", "cpu", "--m", "2", "--no-plot", "--json", "--out", str(tmp_path))
    timed = run_with_op(main, "bench", "ops", "--op", "twice", *options)
    rows = {(row["implementation"], row["part"], row["m"]): row["bytes"] for row in json.loads(timed.stdout)}
    assert rows["sum", "rows", 2] == 2 * 2 * 8 * 4

    classified = run_with_op(
        "from firesteel.lab.profile.names import classify; print(classify('twice'), classify('double_rows'))"
    )
    assert classified.stdout == "norm and elementwise norm and elementwise\n", classified.stderr


def test_every_op_has_a_profile_and_names_what_it_replaces():
    assert [op.name for op in ALL_OPS if op.profile is None] == []
    assert [op.name for op in DECODE_OPS if not op.replaces] == ["decode_sample"]


def test_decode_ops_that_replace_the_networks_ops():
    assert list_replacements() == {
        "rms_norm": ("decode_qkv", "decode_router", "decode_experts|decode_fc1", "decode_lm_head"),
        "linear": ("decode_qkv", "decode_o", "decode_lm_head"),
        "rope_kv_write": ("decode_qkv",),
        "attention": ("decode_attention",),
        "route": ("decode_router",),
        "moe_matmul": ("decode_experts|decode_fc1", "decode_experts|decode_fc2"),
    }


def test_an_unknown_op_is_named_with_the_nearest():
    assert find_op("decode_o") is next(op for op in DECODE_OPS if op.name == "decode_o")
    with pytest.raises(KernelError, match="there is no op 'decode_oo'; did you mean decode_o"):
        find_op("decode_oo")
