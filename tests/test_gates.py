"""Gates on the shipped model, alone and in pairs, by flag, environment and file, checked in what ran."""

import itertools
from dataclasses import replace

import pytest
import torch

from firesteel import LLM, UserError
from firesteel.config import BatchConfig, KernelConfig, all_settings, resolve
from firesteel.device import find_device
from firesteel.engine.limits import RUN_AHEAD_STEPS, find_ahead
from firesteel.kernels.cuda import cache as cuda_cache
from firesteel.kernels.op.op import anywhere
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rms_norm_fed import rms_norm_fed
from firesteel.measure.decode.variants import StepVariant, list_variants

TOKENS = list(range(300, 312))
# gate -> values that are not the default
GATES = {
    "kernels": ["rms_norm=twin"],
    "activation": ["mxfp8", "mxfp4"],
    "require": ["moe=reference"],
    "mxfp4_layers": ["qkv", "all"],
    "sinks": [False],
}
OF_STEPS = ("cuda_graphs", "prefill_graphs", "dependent_launch")  # seen on a GPU only
CHANGES_LOGITS = {"activation", "mxfp4_layers", "sinks"}
ALONE = [(gate, value) for gate, values in GATES.items() for value in values]
PAIRS = [dict(pair) for pair in itertools.combinations(ALONE, 2) if pair[0][0] != pair[1][0]]


@pytest.fixture(scope="module", autouse=True)
def twin():
    """Adds a second implementation of both norms that runs on a CPU, not preferred, so that pinning is visible."""
    for op in (rms_norm, rms_norm_fed):
        op.implementation("twin", needs=anywhere)(op.reference)
    yield
    for op in (rms_norm, rms_norm_fed):
        del op.implementations["twin"]


@pytest.fixture(scope="module")
def outcome():
    """outcome(**gates) returns (what ran, logits), computed once per choice."""
    known = {}

    def run(**gates):
        key = tuple(sorted(gates.items()))
        if key not in known:
            llm = LLM(device="cpu", **gates)
            logits = llm.logits(TOKENS)
            known[key] = (ran(llm), logits)
        return known[key]

    return run


def ran(llm):
    """Returns the visible effect of each gate; `require` is visible in errors only."""
    seen = {entry.op: entry for entry in llm.ledger().entries}
    dense = {"qkv": llm.model.weights.layers[0].qkv, "o": llm.model.weights.layers[7].o}
    dense["lm_head"] = llm.model.weights.lm_head
    return {
        "kernels": seen["rms_norm"].implementation,
        "activation": {entry.activation for entry in llm.ledger().entries if entry.op == "moe_matmul"},
        "dense activation": {entry.activation for entry in llm.ledger().entries if entry.op == "linear"},
        "mxfp4_layers": tuple(name for name, weight in dense.items() if isinstance(weight, Mxfp4Weight)),
        "sinks": llm.model.sinks,
    }


def expected(gates):
    """Returns what `ran` should return."""
    activation = gates.get("activation", "bf16")
    layers = {"qkv": ("qkv",), "all": ("qkv", "o", "lm_head")}.get(gates.get("mxfp4_layers"), ())
    dense = {activation} if len(layers) == 3 else {activation, "bf16"} if layers else {"bf16"}
    return {
        "kernels": "twin" if "kernels" in gates else "reference",
        "activation": {activation},
        "dense activation": dense,
        "mxfp4_layers": layers,
        "sinks": gates.get("sinks", True),
    }


def test_every_gate_is_in_this_file():
    kernel_settings = {setting.name for setting in all_settings().values() if setting.section == "kernels"}
    others = {"tile", "tiles_file", "kernel_cache_dir", "prefill_activation"}  # the last: tests/engine/test_load.py
    others |= {"batch_invariant"}  # changes every op: tests/engine/test_engine_invariant.py
    assert {*GATES, *others, *OF_STEPS} == kernel_settings


def test_unset_gates_have_their_defaults(outcome):
    assert outcome()[0] == expected({})


@pytest.mark.parametrize(("gate", "value"), ALONE)
def test_single_gate_has_its_own_effect_only(outcome, gate, value):
    seen, logits = outcome(**{gate: value})
    assert seen == expected({gate: value})
    plain = outcome()[1]
    assert torch.equal(logits, plain) == (gate not in CHANGES_LOGITS)
    assert (logits - plain).norm() / plain.norm() < 1.5


@pytest.mark.parametrize("gates", PAIRS, ids=str)
def test_gates_in_pairs_do_not_disturb_each_other(outcome, gates):
    seen, logits = outcome(**gates)
    assert seen == expected(gates)
    for gate in gates:
        without = {name: value for name, value in gates.items() if name != gate}
        assert torch.equal(logits, outcome(**without)[1]) == (gate not in CHANGES_LOGITS), gate


@pytest.mark.parametrize(
    ("gate", "value"),
    [
        *ALONE,
        ("tile", "64x64"),
        ("prefill_activation", "mxfp8"),
        ("kernel_cache_dir", "kept"),
        *((gate, False) for gate in OF_STEPS),
    ],
)
def test_gate_is_set_equally_by_flag_environment_and_file(gate, value, tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text(f"{gate} = {str(value).lower() if value is False else repr(value)}\n")
    variable = {all_settings()[gate].env: "off" if value is False else value}
    by_flag, by_environment, by_file = (
        resolve({gate: value}, environ={}),
        resolve(environ=variable),
        resolve(environ={}, file=file),
    )
    assert by_flag.config == by_environment.config == by_file.config != resolve(environ={}).config
    origins = [settings.origins[gate] for settings in (by_flag, by_environment, by_file)]
    assert origins == ["flag", f"environment {all_settings()[gate].env}", f"file {file}"]


def test_gates_from_environment_and_file_reach_the_model(outcome, monkeypatch, tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text('mxfp4_layers = "qkv"\nsinks = true\n')
    monkeypatch.setenv("FIRESTEEL_CONFIG", str(file))
    monkeypatch.setenv("FIRESTEEL_ACTIVATION", "mxfp8")
    llm = LLM(device="cpu")
    assert torch.equal(llm.logits(TOKENS), outcome(activation="mxfp8", mxfp4_layers="qkv")[1])
    assert ran(llm) == expected({"activation": "mxfp8", "mxfp4_layers": "qkv"})


@pytest.mark.parametrize("dependent_launch", [True, False])
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_gates_of_decode_steps_choose_how_they_run(cuda_graphs, dependent_launch):
    config = KernelConfig(cuda_graphs=cuda_graphs, dependent_launch=dependent_launch)
    gpu = replace(find_device("cpu"), capability=(9, 0), name="GPU")
    ways = list_variants(gpu, config)
    assert ways[0] == StepVariant(False, False) and ways[-1] == StepVariant(cuda_graphs, dependent_launch)
    assert len(ways) == 1 + cuda_graphs + dependent_launch == len(set(ways)), "one gate at a time"
    assert list_variants(find_device("cpu"), config) == [StepVariant(False, False)]


def test_running_ahead_has_an_effect_on_a_gpu_only():
    gpu = replace(find_device("cpu"), capability=(9, 0), name="GPU")
    assert find_ahead(BatchConfig(), gpu) == RUN_AHEAD_STEPS > 1
    assert find_ahead(BatchConfig(run_ahead=False), gpu) == find_ahead(BatchConfig(), find_device("cpu")) == 0
    assert LLM(device="cpu").engine.run_ahead_steps == 0


@pytest.mark.parametrize("others", [{}, *(dict([gate]) for gate in ALONE)], ids=str)
def test_pinned_tile_is_refused_without_an_implementation_that_has_tiles(others):
    llm = LLM(device="cpu", tile="64x64", **others)
    with pytest.raises(UserError, match=r"no implementation takes these arguments: reference .*tile"):
        llm.logits(TOKENS)


def test_compiled_kernels_are_kept_in_the_given_folder_or_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_cache, "_current", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    LLM(device="cpu", kernel_cache_dir=str(tmp_path / "mine"))
    assert cuda_cache.current_cache().folder == tmp_path / "mine"
    LLM(device="cpu")
    assert cuda_cache.current_cache().folder == tmp_path / "firesteel" / "kernels"


@pytest.mark.parametrize(("gate", "value"), [("activation", "mxfp8"), ("mxfp4_layers", "qkv"), ("sinks", False)])
def test_unmet_requirement_fails_whatever_else_is_set(gate, value):
    with pytest.raises(
        UserError, match=r"rms_norm=twin is required, but reference would run: add --kernels rms_norm"
    ):
        LLM(device="cpu", require="rms_norm=twin", **{gate: value})
    with pytest.raises(UserError, match=r"moe_matmul=triton is required, but it needs an NVIDIA GPU|but .* Triton"):
        LLM(device="cpu", require="moe=triton", **{gate: value})


def test_requirement_is_met_by_a_matching_pin(outcome):
    seen, _ = outcome(require="rms_norm=twin", kernels="rms_norm=twin")
    assert seen == expected({"kernels": "rms_norm=twin"})


def test_pin_that_cannot_run_here_is_an_error_whatever_else_is_set():
    for others in ({}, {"activation": "mxfp8"}, {"mxfp4_layers": "qkv"}, {"sinks": False}):
        with pytest.raises(UserError, match=r"moe_matmul=triton .*here there is reference"):
            LLM(device="cpu", kernels="moe=triton", **others)
