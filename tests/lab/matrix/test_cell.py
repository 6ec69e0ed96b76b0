"""A cell is a lab run with the flags, the variables and the expectations of its gates and its configuration."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.level import BENCHMARK, CORRECTNESS, KERNEL_PATH
from firesteel.lab.matrix.cell import check_environment, find_environment, make_cell
from firesteel.lab.matrix.result import SMALL, Configuration, Matrix

BEST = Configuration(
    name="best", flags=("--fast",), environment={"VLLM_X": "1", "VLLM_Y": "2"}, expect="moe=cutlass", path="marlin"
)
PLAIN = Configuration(name="plain")


def make_matrix(**fields):
    return Matrix(**{"gates": {}, "engine": "vllm", "configurations": (BEST, PLAIN), **fields})


def test_flags_of_matrix_configuration_and_gates_follow_each_other():
    chosen = {"configuration": "best", "max-num-seqs": "2", "env:VLLM_Z": "3"}
    spec = make_cell(make_matrix(flags=("--port", "1")), chosen).spec
    assert spec.flags == ("--port", "1", "--fast", "--max-num-seqs", "2")
    assert spec.levels == (KERNEL_PATH, CORRECTNESS, BENCHMARK) and spec.named_levels == (CORRECTNESS, BENCHMARK)


def test_variables_of_gates_beat_those_of_the_configuration_and_of_the_matrix():
    matrix = make_matrix(environment={"VLLM_X": "0", "VLLM_W": "0", "VLLM_V": "0"})
    chosen = {"configuration": "best", "env:VLLM_Z": "3", "env:VLLM_V": "without"}
    assert find_environment(matrix, chosen) == {"VLLM_X": "1", "VLLM_Y": "2", "VLLM_W": "0", "VLLM_Z": "3"}


def test_expectations_of_a_configuration_replace_those_of_the_matrix():
    matrix = make_matrix(expect="moe=triton", path="triton")
    best, plain = (make_cell(matrix, {"configuration": name}).spec for name in ("best", "plain"))
    assert (best.expect, best.path) == ("moe=cutlass", "marlin")
    assert (plain.expect, plain.path) == ("moe=triton", "triton")


def test_settings_of_the_matrix_reach_the_run():
    fields = {
        "debug": True,
        "ready_s": 5.0,
        "answer_s": 3.0,
        "grace_s": 2.0,
        "keep_going": True,
        "reference": "r.json",
        "formats": "moe=mxfp4",
        "quick": False,
    }
    spec = make_cell(make_matrix(**fields), {}).spec
    assert {name: getattr(spec, name) for name in fields} == fields


def test_workloads_are_those_of_the_matrix():
    small = make_cell(make_matrix(), {}).spec.bench_plan
    assert small.workloads() == SMALL.workloads() and small.runs == SMALL.runs
    whole = make_cell(make_matrix(plan=BenchPlan(), quick=False), {}).spec
    assert whole.bench_plan == BenchPlan()


@pytest.mark.parametrize(
    ("fields", "chosen", "error"),
    [
        ({}, {"configuration": "best", "env:VLLM_X": "2"}, "VLLM_X is set by a gate and by the configuration best"),
        ({}, {"configuration": "best", "env:VLLM_X": "without"}, "VLLM_X is set by a gate"),
        ({}, {"env:FIRESTEEL_VLLM": "on"}, "FIRESTEEL_VLLM cannot be varied: --engine vllm sets it"),
        ({"debug": True}, {"env:VLLM_LOGGING_LEVEL": "INFO"}, "--engine vllm with --debug sets it"),
        ({"environment": {"FIRESTEEL_VLLM": "on"}}, {}, "cannot be varied"),
        ({"engine": "env VLLM_X=1 vllm serve --port {port}"}, {"env:VLLM_X": "2"}, "VLLM_X cannot be varied"),
        ({"engine": "docker run -e VLLM_X=1 vllm"}, {"env:VLLM_X": "2"}, "VLLM_X cannot be varied"),
        ({"engine": "docker run --env=VLLM_X=1 vllm"}, {"env:VLLM_X": "without"}, "VLLM_X cannot be varied"),
        ({"engine": "firesteel"}, {"kv_dtype": "fp8", "env:FIRESTEEL_KV_DTYPE": "auto"}, "--kv-dtype beats it"),
    ],
)
def test_variables_without_an_effect_are_refused(fields, chosen, error):
    with pytest.raises(UserError, match=error):
        check_environment(make_matrix(**fields), chosen)


def test_variables_of_other_names_are_not_refused():
    check_environment(make_matrix(), {"configuration": "best", "env:VLLM_LOGGING_LEVEL": "DEBUG"})
