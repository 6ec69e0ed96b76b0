"""Settings of what prompts are rounded to that cannot run are refused before weights are read."""

from dataclasses import replace

import pytest

from firesteel.config import resolve
from firesteel.device.catalogue import CATALOGUE
from firesteel.engine.load import load_engine
from firesteel.engine.prompt_activation import check_prompt_activation, check_step_size
from firesteel.errors import KernelError, UserError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.registry import parse_pins
from firesteel.model.spec import PRESETS

GPT_OSS = PRESETS["gpt-oss-120b"]


@pytest.mark.parametrize(
    ("device", "settings", "words"),
    [
        ("h200", {"prefill_activation": "mxfp8"}, r"natively \(SM12x\), this is NVIDIA H200: .*--activation mxfp8"),
        ("gb10", {"prefill_activation": "mxfp8"}, None),
        ("h200", {"prefill_activation": "bf16", "activation": "mxfp8"}, None),
        ("h200", {"prefill_activation": "mxfp8", "activation": "mxfp8"}, None),
        ("h200", {"prefill_activation": "fp8"}, None),
        ("gb10", {"prefill_activation": "fp8"}, r"capability 9\.0\), this is .*GB10: --prefill-activation mxfp8"),
        ("b200", {"prefill_activation": "fp8"}, r"capability 9\.0\), this is NVIDIA B200: leave it out"),
        ("h200", {"prefill_activation": "fp8", "activation": "mxfp8"}, r"not with --activation mxfp8: leave one"),
        ("h200", {}, None),
    ],
)
def test_rounding_of_prompts_alone_is_refused_where_nothing_is_gained(monkeypatch, device, settings, words):
    monkeypatch.setattr("firesteel.engine.prompt_activation.lacks_native", lambda capability, activation: None)
    config = resolve(settings, environ={}).config.kernels
    if words is None:
        check_prompt_activation(CATALOGUE[device], config)
    else:
        with pytest.raises(KernelError, match=words):
            check_prompt_activation(CATALOGUE[device], config)


def test_rounding_of_prompts_names_a_triton_that_cannot(monkeypatch):
    monkeypatch.setattr(
        "firesteel.engine.prompt_activation.lacks_native", lambda capability, activation: "needs Triton >= 3.8"
    )
    config = resolve({"prefill_activation": "mxfp8"}, environ={}).config.kernels
    with pytest.raises(KernelError, match=r"--prefill-activation mxfp8 needs Triton >= 3\.8"):
        check_prompt_activation(CATALOGUE["gb10"], config)


def check_steps(settings, device="h200", spec=GPT_OSS):
    config = resolve(settings, environ={}).config
    kernels = Kernels(CATALOGUE[device], parse_pins(config.kernels.kernels), Ledger())
    check_step_size(spec, kernels, config, CATALOGUE[device])


@pytest.mark.parametrize("settings", [{"prefill_activation": "fp8"}, {"kernels": "moe_matmul=cuda:wgmma"}])
def test_steps_with_more_tokens_than_the_kernel_counts_are_refused_with_the_largest_number(settings):
    check_steps(settings)
    check_steps(settings | {"max_num_batched_tokens": 16383})
    with pytest.raises(UserError, match=r"(fp8|moe_matmul=cuda:wgmma) .*is 16384: lower it to 16383, or leave"):
        check_steps(settings | {"max_num_batched_tokens": 16384})
    check_steps(settings | {"max_num_batched_tokens": 16384}, spec=replace(GPT_OSS, num_active=2))


def test_the_choice_is_named_as_it_was_asked_for():
    """A family was named by its first implementation, which nobody had asked for."""
    with pytest.raises(UserError, match=r"moe_matmul=cuda computes .* or leave moe_matmul=cuda out"):
        check_steps({"kernels": "moe_matmul=cuda", "max_num_batched_tokens": 16384})


def test_large_steps_are_taken_where_another_implementation_computes_them():
    for settings in ({}, {"kernels": "moe_matmul=triton"}, {"kernels": "moe_matmul=reference"}):
        check_steps(settings | {"max_num_batched_tokens": 1 << 16})
    check_steps({"prefill_activation": "fp8", "kernels": "moe_matmul=reference", "max_num_batched_tokens": 1 << 16})


def test_fp8_prompts_beside_an_implementation_that_does_not_take_them_are_refused():
    with pytest.raises(UserError, match=r"computed by moe_matmul=cuda:wgmma_fp8, not triton:gemm: leave one"):
        check_steps({"prefill_activation": "fp8", "kernels": "moe_matmul=triton:gemm"})


def test_settings_are_refused_before_weights_are_read(checkpoint, monkeypatch):
    monkeypatch.setattr("firesteel.engine.load.check_step_size", lambda *args: pytest.fail("reached"))
    with pytest.raises(pytest.fail.Exception, match="reached"):
        load_engine(checkpoint, resolve({"device": "cpu"}).config, progress=lambda *counts: 1 / 0)
