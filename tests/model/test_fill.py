"""Quantising while loading: bits, errors, memory and error messages."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from firesteel.device import GIB, find_device
from firesteel.formats import mxfp4
from firesteel.model import fill as fill_module
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.fill import CHUNK_BYTES, CHUNK_VALUES, STAGED_BYTES, QuantizedLayer, room_bytes
from firesteel.model.shards import CheckpointError, find_tensors
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import empty_weights, load_weights, named_tensors, weight_bytes
from tests.model.tiny import SPEC

CPU = find_device("cpu")
ALL_DENSE = ("qkv", "o", "lm_head")
SINGLE = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path):
    save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3), shard_bytes=20_000)
    return tmp_path


def load(directory, layers, spec=SPEC, device=CPU, **options):
    held = replace(spec, mxfp4_layers=layers)
    options = {"workers": 3, "reserve_gib": 0.0, **options}
    weights, report = load_weights(directory, spec, device, held=held, **options)
    return named_tensors(weights, held), report


def quantised(named, name):
    codes, scales = mxfp4.quantize(named[name])
    return codes.view(*scales.shape, 16), scales


@pytest.mark.parametrize("layers", [("qkv",), ("o",), ("lm_head",), ALL_DENSE], ids=str)
def test_requested_layers_are_quantised_and_the_others_are_unchanged(checkpoint, layers):
    stored = named_tensors(synthetic_weights(SPEC, CPU, seed=3), SPEC)
    loaded, _ = load(checkpoint, layers)
    for name, tensor in stored.items():
        if name in loaded:
            assert torch.equal(loaded[name], tensor), name
        else:
            codes, scales = quantised(stored, name)
            assert torch.equal(loaded[name + "_blocks"], codes), name
            assert torch.equal(loaded[name + "_scales"], scales), name
    gone = {name for name in stored if name not in loaded}
    assert len(gone) == 6 * ("qkv" in layers) + 2 * ("o" in layers) + ("lm_head" in layers)


@pytest.mark.parametrize(("chunk", "staged"), [(64, 128), (200, 1 << 20), (64 * 50, 64 * 101)])
def test_any_chunks_of_rows_give_the_same_bits_and_errors(checkpoint, monkeypatch, chunk, staged):
    expected, report = load(checkpoint, ALL_DENSE)
    monkeypatch.setattr(fill_module, "CHUNK_VALUES", chunk)
    monkeypatch.setattr(fill_module, "STAGED_BYTES", 2 * staged)
    actual, chunked = load(checkpoint, ALL_DENSE)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    for layer, other in zip(report.quantized, chunked.quantized, strict=True):
        assert (layer.layer, layer.matrices, layer.values) == (other.layer, other.matrices, other.values)
        assert layer.relative_rms == pytest.approx(other.relative_rms)
        assert layer.worst == pytest.approx(other.worst)


def test_report_holds_count_bytes_and_errors_of_each_kind_of_layer(checkpoint):
    stored = named_tensors(synthetic_weights(SPEC, CPU, seed=3), SPEC)
    report = load(checkpoint, ALL_DENSE)[1]
    kinds = {layer.layer: layer for layer in report.quantized}
    assert {name: layer.matrices for name, layer in kinds.items()} == {"qkv": 6, "o": 2, "lm_head": 1}
    for layer, words in (
        ("qkv", ("q_proj.w", "k_proj.w", "v_proj.w")),
        ("o", ("o_proj.w",)),
        ("lm_head", ("lm_h",)),
    ):
        before = torch.cat([t.flatten() for name, t in stored.items() if any(word in name for word in words)])
        error = mxfp4.dequantize(*mxfp4.quantize(before)) - before.float()
        rms = before.double().square().mean().sqrt().item()
        assert kinds[layer].bytes_before == before.nbytes
        assert kinds[layer].bytes_after == before.numel() // 2 + before.numel() // 32
        assert kinds[layer].relative_rms == pytest.approx(error.double().square().mean().sqrt().item() / rms)
        assert kinds[layer].worst == pytest.approx(error.abs().max().item() / rms)
        assert 0.05 < kinds[layer].relative_rms < 0.2 < kinds[layer].worst < 3


def test_report_in_words():
    layer = QuantizedLayer(
        layer="o", matrices=2, values=64_000_000, squares=64e6, squared_errors=0.64e6, largest_error=0.5
    )
    assert layer.in_words() == (
        "o: 2 matrices, 128.0 MB in BF16, 34.0 MB in MXFP4, relative rms error 0.1000, worst value off by 0.50 rms"
    )


def test_zeros_have_no_error():
    layer = QuantizedLayer(layer="o", matrices=1, values=32)
    assert layer.relative_rms == layer.worst == 0


def test_progress_counts_every_byte_read_in_order(checkpoint):
    seen = []
    _, report = load(checkpoint, ALL_DENSE, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (weight_bytes(SPEC),) * 2
    assert report.num_bytes == weight_bytes(SPEC) and report.seconds > 0


def test_value_that_is_not_finite_names_file_and_tensor(tmp_path):
    save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3))
    tensors = load_file(tmp_path / SINGLE)
    tensors["lm_head.weight"][7, 3] = float("inf")
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor lm_head\.weight: x is not finite: 1 of"):
        load(tmp_path, ("lm_head",))


def test_memory_is_checked_for_the_smaller_weights_and_the_room(checkpoint, monkeypatch):
    held = replace(SPEC, mxfp4_layers=ALL_DENSE)
    planned = named_tensors(empty_weights(held, torch.device("meta")), held)
    room = room_bytes(planned, find_tensors(checkpoint))
    dense = 2 * (2 * (128 * 64 + 64 * 64) + 99 * 64)
    assert room == dense + CHUNK_BYTES * dense // 2
    needed = weight_bytes(held) + room
    monkeypatch.setattr("firesteel.model.weights.available_bytes", lambda device: needed)
    load(checkpoint, ALL_DENSE)
    monkeypatch.setattr("firesteel.model.weights.available_bytes", lambda device: needed - 1)
    with pytest.raises(CheckpointError, match="the weights take"):
        load(checkpoint, ALL_DENSE)


@pytest.mark.parametrize("preset", PRESETS)
def test_room_is_less_than_a_layer(preset):
    spec = PRESETS[preset]
    layer = weight_bytes(spec) - weight_bytes(
        replace(spec, num_layers=spec.num_layers - 1, windows=spec.windows[1:])
    )
    assert STAGED_BYTES + CHUNK_BYTES * CHUNK_VALUES < layer < 2 * GIB


PEAK_PROGRAM = """
import json, re, sys
from dataclasses import replace
from pathlib import Path
import torch
from firesteel.device import find_device
from firesteel.model.fill import room_bytes
from firesteel.model.quantize import quantize_checkpoint
from firesteel.model.shards import find_tensors
from firesteel.model.spec import read_spec
from firesteel.model.weights import empty_weights, load_weights, named_tensors, weight_bytes

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

folder, verb = Path(sys.argv[1]), sys.argv[2]
spec = read_spec(folder)
held = replace(spec, mxfp4_layers=("qkv", "o", "lm_head"))
cpu = find_device("cpu")
torch.randn(64, 64) @ torch.randn(64, 64)
before = peak()
if verb == "load":
    planned = named_tensors(empty_weights(held, torch.device("meta")), held)
    allowed = weight_bytes(held) + room_bytes(planned, find_tensors(folder))
    weights, report = load_weights(folder, spec, cpu, workers=4, reserve_gib=0.0, held=held)
else:
    quantize_checkpoint(folder, folder / "quantised", ("qkv", "o", "lm_head"), shard_bytes=60_000_000)
    allowed = 0
print(json.dumps({"peak": peak() - before, "allowed": allowed, "weights": weight_bytes(held)}))
"""


def measure(folder, verb):
    command = [sys.executable, "-c", PEAK_PROGRAM, str(folder), verb]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def save_a_layer_of_120b(folder, vocab_size):
    spec = replace(PRESETS["gpt-oss-120b"], num_layers=1, windows=(128,), num_experts=4, vocab_size=vocab_size)
    save_checkpoint(folder, spec, synthetic_weights(spec, CPU, seed=1))


@pytest.mark.slow
def test_peak_of_quantising_at_load_is_the_result_and_the_stated_room(tmp_path):
    save_a_layer_of_120b(tmp_path, 8_000)
    loaded = measure(tmp_path, "load")
    assert 0.9 * loaded["weights"] < loaded["peak"] < 1.1 * loaded["allowed"]


@pytest.mark.slow
def test_peak_of_quantising_a_checkpoint_is_its_largest_tensor_twice(tmp_path):
    """It is held once as a tensor and once as file content."""
    save_a_layer_of_120b(tmp_path, 20_000)
    assert measure(tmp_path, "quantize")["peak"] < 1.4 * 2 * 20_000 * 2880 * 2


@pytest.mark.gpu
def test_quantising_on_a_gpu_gives_the_same_bits_as_on_the_cpu(checkpoint):
    expected, report = load(checkpoint, ALL_DENSE)
    actual, on_gpu = load(checkpoint, ALL_DENSE, device=find_device("cuda"))
    assert all(tensor.is_cuda and torch.equal(tensor.cpu(), expected[name]) for name, tensor in actual.items())
    for layer, other in zip(report.quantized, on_gpu.quantized, strict=True):
        assert layer.relative_rms == pytest.approx(other.relative_rms, rel=1e-5)
