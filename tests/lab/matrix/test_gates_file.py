"""A file of configurations is read whole, or refused with the line or the key that is wrong."""

from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.matrix.gates_file import GatesFile, choose_gates, read_gates_file, to_toml
from firesteel.lab.matrix.result import Configuration, Matrix
from firesteel.lab.spec_check import check_matrix

EXAMPLE = Path(__file__).parents[3] / "examples" / "matrix.toml"
FILE = """
flags = ["--max-num-seqs", "2"]
environment = { VLLM_LOGGING_LEVEL = "INFO" }

[gates]
enforce-eager = ["with", "without"]
"env:VLLM_X" = ["1,2", "3"]

[[configuration]]
name = "best"
flags = ["--attention-config", '{"backend": "FLASHINFER", "a": 1}']
environment = { VLLM_MXFP4_MOE_KERNEL = "gemm" }
expect = "moe=cutlass,dense=marlin"

[[configuration]]
name = "plain"
path = "native-fp4"
"""


@pytest.fixture
def read(tmp_path):
    def read(text, engine="vllm"):
        path = tmp_path / "matrix.toml"
        path.write_text(text)
        return read_gates_file(path, engine=engine)

    return read


def test_configurations_have_flags_environment_and_expectations(read):
    file = read(FILE)
    assert file.flags == ("--max-num-seqs", "2") and file.environment == {"VLLM_LOGGING_LEVEL": "INFO"}
    assert file.gates == {"enforce-eager": ("with", "without"), "env:VLLM_X": ("1,2", "3")}
    best, plain = file.configurations
    assert best == Configuration(
        name="best",
        flags=("--attention-config", '{"backend": "FLASHINFER", "a": 1}'),
        environment={"VLLM_MXFP4_MOE_KERNEL": "gemm"},
        expect="moe=cutlass,dense=marlin",
    )
    assert plain == Configuration(name="plain", path="native-fp4")


def test_configurations_multiply_with_gates_and_can_be_chosen(read):
    file = read(FILE)
    gates = choose_gates(["enforce-eager=with", "x=1"], file, engine="vllm")
    assert gates == {
        "configuration": ("best", "plain"),
        "enforce-eager": ("with",),
        "env:VLLM_X": ("1,2", "3"),
        "x": ("1",),
    }
    chosen = choose_gates(["configuration=plain"], file, engine="vllm")
    assert chosen["configuration"] == ("plain",)
    assert [known.name for known in file.list_chosen(chosen)] == ["plain"]
    with pytest.raises(UserError, match="configuration=other: --gates-file has best, plain"):
        choose_gates(["configuration=other"], file, engine="vllm")
    with pytest.raises(UserError, match="at least one gate"):
        choose_gates([], GatesFile(), engine="vllm")


def test_written_file_is_read_as_it_was(read):
    file = read(FILE + '[[configuration]]\nname = "odd \\u007f \\"ä\\" \\n"\nflags = ["\\\\", "\\t"]\n')
    text = to_toml(file.environment, file.gates, file.configurations)
    assert read(text) == GatesFile(
        environment=file.environment, gates=file.gates, configurations=file.configurations
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("flags = [\n'a'\n'b']", "not valid TOML.*line 3"),
        ("", "neither"),
        ("flag = []", "unknown key 'flag'; did you mean 'flags'"),
        ("[[configuration]]\nflags = []", "configuration 1: needs a name"),
        ("[[configuration]]\nname = 3", "configuration 1: needs a name"),
        ("[configuration]\nname = 'x'", "two brackets"),
        ("[[configuration]]\nname = 'x'\nflag = []", r"configuration 1 \(x\) has the unknown key 'flag'"),
        ("[[configuration]]\nname = 'x'\nflags = '--a'", r"configuration 1 \(x\): flags must be a list"),
        ("[[configuration]]\nname = 'x'\nflags = [1]", r"\(x\): flags: must be text in quotes, such as \"1\""),
        ("[[configuration]]\nname = 'x'\nexpect = 1", r"\(x\): expect: must be text"),
        (
            "[[configuration]]\nname = 'x'\n[configuration.environment]\nA = 1",
            r"\(x\): environment.A: must be text",
        ),
        ("[[configuration]]\nname = 'x'\nenvironment = 1", "environment must be a table"),
        ("[[configuration]]\nname = 'x'\nenvironment = {'A-B' = '1'}", "letters, digits"),
        ("[[configuration]]\nname = 'x'\n[[configuration]]\nname = 'x'", "the same name"),
        ("[gates]\nx = 'a,b'", "gates.x must be a list"),
        ("[gates]\nx = ['a', 'a']", "differ"),
        ("[gates]\nx = ['a']\n--x = ['b']", "two names mean the same gate: x, --x"),
        ("[gates]\nVLLM_X = ['a', 'b']", "env:VLLM_X"),
        ("[gates]\nconfiguration = ['a', 'b']", r"gates.configuration: a configuration is a table"),
    ],
)
def test_damaged_file_names_the_line_or_the_key(read, text, error):
    with pytest.raises(UserError, match=error) as raised:
        read(text)
    assert "matrix.toml: " in str(raised.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.toml: cannot be read: No such file"):
        read_gates_file(tmp_path / "nowhere.toml", engine="vllm")


def test_example_holds_what_is_varied_on_a_spark():
    file = read_gates_file(EXAMPLE, engine="vllm")
    assert list(choose_gates([], file, engine="vllm")) == ["configuration"]
    environments = [file.environment, *(known.environment for known in file.configurations)]
    values = {name: {known[name] for known in environments if name in known} for name in file.environment}
    assert values == {
        "VLLM_MXFP4_MOE_KERNEL": {"marlin", "gemm", "gemv", "triton"},
        "VLLM_MXFP4_ACTIVATION": {"mxfp4", "mxfp8", "bf16", "fp6"},
        "VLLM_ATTENTION_SINKS": {"auto", "true", "false"},
        "FLASHINFER_MOE_TILE": {"auto", "128x128", "64x128"},
    }
    flags = [" ".join(known.flags) for known in file.configurations]
    assert sum("--speculative-config" in words for words in flags) == 3
    assert sum("--enforce-eager" in words for words in flags) == 1
    backends = {"TRITON_ATTN", "FLASH_ATTN", "FLASHINFER"}
    assert backends == {name for words in flags for name in backends if f'"{name}"' in words}


def test_every_cell_of_the_example_passes_the_checks_before_a_run():
    file = read_gates_file(EXAMPLE, engine="vllm")
    gates = choose_gates([], file, engine="vllm")
    check_matrix(
        Matrix(gates=gates, configurations=file.configurations, engine="vllm", environment=file.environment)
    )
