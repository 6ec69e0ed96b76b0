"""The engine is recognised by what only it writes."""

import pytest

from firesteel.lab.judge.recognise import ENGINES, recognise_engine
from firesteel.lab.path.engine_rules import RULES
from tests.lab.path import evidence_lines as lines


def test_every_engine_with_rules_can_be_recognised():
    assert {path.stem for path in RULES.glob("*.toml")} == set(ENGINES)


@pytest.mark.parametrize(
    ("log", "engine"),
    [
        (lines.vllm(), "vllm"),
        (lines.read_log("vllm-0.14-gb10.log"), "vllm"),
        (lines.read_log("vllm-0.32-cpu-llama.log"), "vllm"),
        (lines.read_log("vllm-0.32-cpu-plugin.log"), "vllm+firesteel"),
        ([lines.SGLANG.format(device="cuda", attention="triton", eager=False, moe="x")], "sglang"),
        (lines.LLAMA, "llamacpp"),
        (lines.read_log("llamacpp-2026-08-cpu.log"), "llamacpp"),
        (lines.read_log("llamacpp-2026-08-cpu-default.log"), "llamacpp"),
        (["firesteel 0.3.0", "loading kindling from x"], "firesteel"),
        (["INFO The user asked: vLLM API server version", "Using 'MARLIN' Mxfp4 MoE backend."], ""),
    ],
)
def test_log_names_its_engine(log, engine):
    assert recognise_engine(["noise", *log], [])[0] == engine


@pytest.mark.parametrize(
    ("kernel", "engine"),
    [
        ("void vllm::moe::topkGatingSoftmax<float>", "vllm"),
        ("void mul_mat_q<(ggml_type)39, 128, false>", "llamacpp"),
        ("void sgl_kernel::x", "sglang"),
        ("nvjet_tst_64x8", ""),
    ],
)
def test_trace_names_its_engine_if_a_kernel_is_its_own(kernel, engine):
    assert recognise_engine([], ["void at::native::copy", kernel]) == (engine, kernel if engine else "")
