"""Gates are settings, flags as written, and variables of the environment; a value may hold commas."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.matrix.gates import list_removed, make_environment, make_flags, parse_gates

BACKEND = '{"backend": "FLASHINFER", "use_sinks": true}'


def test_gates_are_settings_with_values():
    assert parse_gates(["kv-dtype=auto,fp8", "sinks"]) == {"kv_dtype": ("auto", "fp8"), "sinks": ("on", "off")}
    assert make_flags({"kv_dtype": "fp8", "sinks": "off", "prefix_caching": "on"}) == [
        "--kv-dtype",
        "fp8",
        "--no-sinks",
        "--prefix-caching",
    ]


def test_gates_of_another_engine_are_its_flags_as_written():
    """Underscores became hyphens, also in --config.moe_activation, and `on` was taken for a bare flag."""
    words = ["--enforce-eager", "config.moe_activation=mxfp8", "-fa=on,off", "max-num-seqs=1,8"]
    gates = parse_gates(words, engine="llamacpp")
    assert gates["enforce-eager"] == ("with", "without") and gates["-fa"] == ("on", "off")
    chosen = {"enforce-eager": "with", "config.moe_activation": "mxfp8", "-fa": "off", "max-num-seqs": "8"}
    flags = ["--enforce-eager", "--config.moe_activation", "mxfp8", "-fa", "off", "--max-num-seqs", "8"]
    assert set(chosen) == set(gates) and make_flags(chosen, engine="llamacpp") == flags
    assert make_flags({"enforce-eager": "without"}, engine="vllm") == []


def test_gate_env_is_a_variable_and_no_flag():
    """It became the flag --env:..., and a variable without the prefix became --vllm-mxfp4-moe-kernel."""
    gates = parse_gates(
        ["env:VLLM_MXFP4_MOE_KERNEL=marlin,gemm", "env:FLASHINFER_MOE_TILE=without,64x128"], engine="vllm"
    )
    assert gates == {
        "env:VLLM_MXFP4_MOE_KERNEL": ("marlin", "gemm"),
        "env:FLASHINFER_MOE_TILE": ("without", "64x128"),
    }
    chosen = {"env:VLLM_MXFP4_MOE_KERNEL": "gemm", "env:FLASHINFER_MOE_TILE": "without"}
    assert make_flags(chosen, engine="vllm") == []
    assert make_environment(chosen) == {"VLLM_MXFP4_MOE_KERNEL": "gemm"}
    assert list_removed(chosen) == ("FLASHINFER_MOE_TILE",)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["x=1,2", "x=3"], ("1", "2", "3")),
        ([f"x={BACKEND}"], (BACKEND,)),
        (["x=[1,2]", "x=[3]"], ("[1,2]", "[3]")),
        (['x="1,2,4"', "x='8,16'"], ("1,2,4", "8,16")),
        (["x={'not': json}".replace("{", '"{').replace("}", '}"')], ("{'not': json}",)),
        (['x=""', "x=1"], ("", "1")),
        (["x=a=b,c"], ("a=b", "c")),
        (["x=without", f"x={BACKEND}"], ("without", BACKEND)),
    ],
)
def test_json_and_quoted_values_hold_commas(words, values):
    """A JSON value was split at its comma."""
    assert parse_gates(words, engine="vllm") == {"x": values}


@pytest.mark.parametrize(
    ("words", "engine", "error"),
    [
        (["nothing=1,2"], "firesteel", "no gate"),
        (["sinks=yes,no"], "firesteel", "takes the values on and off"),
        (["kv_dtype=fp8,fp8"], "firesteel", "differ"),
        (["kv_dtype=auto", "kv-dtype=auto"], "firesteel", "differ"),
        (["VLLM_MXFP4_MOE_KERNEL=marlin,gemm"], "vllm", "Write env:VLLM_MXFP4_MOE_KERNEL="),
        (["OMP_NUM_THREADS=1,2"], "firesteel", "Write env:OMP_NUM_THREADS="),
        (["env:VLLM_X"], "vllm", "env:VLLM_X: needs values, such as env:VLLM_X=1,without"),
        (["env:VLLM-X=1"], "vllm", "letters, digits and underscores"),
        (["env:FIRESTEEL_KV_TYPE=fp8"], "firesteel", "did you mean FIRESTEEL_KV_DTYPE"),
        (["env:FIRESTEEL_KV_DTYPE=fp9"], "firesteel", "fp9"),
        (["env:HF_TOKEN=hf_1,hf_2"], "vllm", "secret"),
        (["api-key=a,b"], "vllm", "secret"),
        (['x={"a": 1},{"a": 2}'], "vllm", "must be JSON .* its own --gates"),
        (['x=a,{"b": 1}'], "vllm", "its own --gates NAME=VALUE"),
        (["=a,b"], "vllm", "a gate needs a name"),
        (["--=a,b"], "firesteel", "a gate needs a name"),
        (["x=a,"], "vllm", "an empty text is not a value"),
    ],
)
def test_invalid_gates_are_refused(words, engine, error):
    with pytest.raises(UserError, match=error):
        parse_gates(words, engine=engine)
