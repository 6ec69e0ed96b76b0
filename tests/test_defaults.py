"""The defaults of a server on GB10 and elsewhere, without any of the GPUs."""

from dataclasses import replace

import pytest

from firesteel.config import BatchConfig, all_settings, resolve
from firesteel.config.presets import AS_SHIPPED, PRESETS, SPARK
from firesteel.defaults import choose_preset, find_defaults
from firesteel.device import GIB, find_device
from firesteel.device.catalogue import CATALOGUE
from firesteel.device.host_memory import HostMemory
from firesteel.engine.schedule.step_cost import LEAST_TOKENS
from firesteel.measure.roofline.prompts import predict_prompts
from firesteel.measure.roofline.roofline import GPUS, StepShape, step_cost
from firesteel.model.spec import PRESETS as MODELS

GB10 = CATALOGUE["gb10"]
CPU = find_device("cpu")
OTHERS = {"cpu": CPU} | {name: device for name, device in CATALOGUE.items() if name != "gb10"}


@pytest.fixture
def large_host(monkeypatch):
    monkeypatch.setattr("firesteel.defaults.find_host_memory", lambda: HostMemory(64 * GIB, 64 * GIB))


def defaults_on(device, triton=(3, 8), **flags):
    return find_defaults(flags, device, environ={}, triton=triton)


def test_plain_serve_on_gb10_takes_the_set_of_the_spark():
    defaults = defaults_on(GB10)
    config = defaults.config
    assert defaults.preset == SPARK
    assert (config.kernels.mxfp4_layers, config.kernels.activation) == ("qkv,o,lm_head", "bf16")
    assert config.kernels.prefill_activation == "mxfp8"
    assert config.batch.max_decode_delay_ms == 500.0 and config.batch.prepare
    assert config.model.memory_reserve_gib == 12.0
    assert [choice.setting for choice in defaults.choices] == [
        *(value.setting for value in PRESETS[SPARK]),
        "memory_reserve_gib",
        "kv_cache_gib",
    ]


def test_each_choice_says_why_what_it_costs_and_how_to_override_it():
    for choice in defaults_on(GB10).choices:
        assert choice.why and choice.quality
        assert choice.override.startswith(f"--{choice.setting.replace('_', '-')} ")
    costs = {choice.setting: choice.quality for choice in defaults_on(GB10).choices}
    assert costs["mxfp4_layers"] == (
        "measured on Kindling only: +0.26 % perplexity, 5 answers lost and 1 gained of 2,824; "
        "not measured on gpt-oss"
    )


def test_figures_of_the_reason_are_those_of_the_roofline():
    (why,) = [choice.why for choice in defaults_on(GB10).choices if choice.setting == "mxfp4_layers"]
    costs = [step_cost(MODELS["gpt-oss-120b"], StepShape(dense=dense)) for dense in ("mxfp4", "bf16")]
    few, many = (f"{cost.bytes / 1e9:.1f}" for cost in costs)
    fast, slow = (f"{cost.tok_s(GPUS['gb10'].read_gb_s):.0f}" for cost in costs)
    assert f"reads {few} GB instead of {many}: at 232 GB/s the ceiling is {fast} tok/s, not {slow}" in why


def test_bound_of_steps_beside_decoding_requests_has_room_for_a_prompt():
    """Reading the experts for the fewest prompt tokens of a step takes more than the usual bound."""
    (choice,) = [choice for choice in defaults_on(GB10).choices if choice.setting == "max_decode_delay_ms"]
    big, read = MODELS["gpt-oss-120b"], GPUS["gb10"].read_gb_s
    fewest = step_cost(big, StepShape(dense="mxfp4", tokens=LEAST_TOKENS)).seconds(0.85 * read)
    prompts = predict_prompts(big, StepShape(dense="mxfp4"), "gb10", model="gpt-oss-120b")
    (long,) = [row.predicted_ms for row in prompts if (row.activation, row.tokens) == ("mxfp8", 2048)]
    assert BatchConfig().max_decode_delay_ms < 1e3 * fewest < long < choice.value
    assert f"takes {fewest:.2f} s, one with 2048 takes {long / 1e3:.2f} s (predicted)" in choice.why
    assert f"at {BatchConfig().max_decode_delay_ms:g} ms" in choice.why


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_changes_on_other_devices(large_host, name):
    defaults = defaults_on(OTHERS[name])
    assert (defaults.preset, defaults.choices) == (AS_SHIPPED, ())
    plain = resolve(environ={}).config
    assert defaults.config == replace(plain, batch=replace(plain.batch, prepare=True))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("mxfp4_layers", ""),
        ("prefill_activation", "bf16"),
        ("max_decode_delay_ms", 20.0),
        ("memory_reserve_gib", 2.0),
        ("kv_cache_gib", 8.0),
    ],
)
def test_what_the_user_gives_is_kept_and_not_shown_as_chosen(setting, value):
    defaults = defaults_on(GB10, **{setting: value})
    section = all_settings()[setting].section
    assert getattr(getattr(defaults.config, section), setting) == value
    assert setting not in {choice.setting for choice in defaults.choices}
    assert len(defaults.choices) == 4


def test_as_shipped_on_gb10_still_leaves_memory_to_the_host():
    defaults = defaults_on(GB10, preset=AS_SHIPPED)
    assert defaults.config.kernels == resolve(environ={}).config.kernels
    assert defaults.config.model.memory_reserve_gib == 12.0
    assert [choice.setting for choice in defaults.choices] == ["memory_reserve_gib", "kv_cache_gib"]


def test_more_unified_memory_keeps_a_tenth_free():
    assert defaults_on(replace(GB10, memory_bytes=240 * GIB)).config.model.memory_reserve_gib == 24.0


def test_share_of_the_memory_replaces_the_reserve():
    defaults = defaults_on(GB10, gpu_memory_utilization=0.8)
    assert defaults.config.model.memory_reserve_gib == 1.0
    assert "memory_reserve_gib" not in {choice.setting for choice in defaults.choices}


def test_prompts_stay_in_bf16_where_triton_would_multiply_them_so_anyway():
    defaults = defaults_on(GB10, triton=(3, 7))
    assert defaults.config.kernels.prefill_activation == "auto"
    (choice,) = [choice for choice in defaults.choices if choice.setting == "prefill_activation"]
    assert choice.value == "auto" and "needs Triton >= 3.8, not 3.7" in choice.why
    asked = defaults_on(GB10, triton=(3, 7), preset=SPARK)  # by name: the engine refuses it with the cure
    assert asked.config.kernels.prefill_activation == "mxfp8"


def test_set_is_that_of_gb10_alone():
    assert [name for name, device in CATALOGUE.items() if choose_preset(device) == SPARK] == ["gb10"]
    assert choose_preset(replace(GB10, is_unified=False)) == AS_SHIPPED


@pytest.mark.parametrize("given", [{"prepare": False}, {}])
def test_everything_is_prepared_before_the_first_request_unless_switched_off(given):
    assert defaults_on(CPU, **given).config.batch.prepare == (not given)
    assert not find_defaults({}, CPU, environ={"FIRESTEEL_PREPARE": "off"}).config.batch.prepare


@pytest.mark.parametrize(("mib", "expected"), [(760, 95 / 1024), (64 << 10, 1.0)])
def test_small_container_keeps_less_memory_free_by_default(monkeypatch, mib, expected):
    memory = HostMemory(mib << 20, mib << 20)
    monkeypatch.setattr("firesteel.defaults.find_host_memory", lambda: memory)
    assert defaults_on(CPU).config.model.memory_reserve_gib == expected
    assert defaults_on(CPU, memory_reserve_gib=0.75).config.model.memory_reserve_gib == 0.75
