"""Loading: the right bytes from any layout, and a clear error for each kind of bad checkpoint."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from firesteel.device import GIB, find_device
from firesteel.device.host_memory import HostMemory
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.reader import PIECE_BYTES
from firesteel.model.shards import CheckpointError
from firesteel.model.spec import PRESETS, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import check_memory, empty_weights, load_weights, named_tensors, weight_bytes
from tests.model.tiny import SPEC

CPU = find_device("cpu")
ALL_DENSE = ("qkv", "o", "lm_head")
SCALES = "model.layers.1.mlp.experts.down_proj_scales"
SINGLE = "model.safetensors"


@pytest.fixture(params=[None, 20_000], ids=["one file", "sharded"])
def checkpoint(request, tmp_path):
    save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3), shard_bytes=request.param)
    return tmp_path


def load(directory, **options):
    return load_weights(directory, SPEC, CPU, **{"workers": 3, "reserve_gib": 0.0, **options})


def edit(directory, change):
    """Rewrites the single-file checkpoint after `change(tensors)`."""
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE)


@pytest.fixture
def single(tmp_path):
    save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3))
    return tmp_path


def test_every_tensor_comes_back_bit_for_bit(checkpoint):
    expected = named_tensors(synthetic_weights(SPEC, CPU, seed=3), SPEC)
    weights, report = load(checkpoint)
    for name, tensor in named_tensors(weights, SPEC).items():
        assert torch.equal(tensor, expected[name]), name
    assert report.num_bytes == weight_bytes(SPEC) and report.gb_s > 0


def test_public_names_and_shapes_at_120b():
    spec = PRESETS["gpt-oss-120b"]
    named = named_tensors(empty_weights(spec, torch.device("meta")), spec)
    shapes = {name.removeprefix("model.layers.35."): tuple(tensor.shape) for name, tensor in named.items()}
    assert shapes["mlp.experts.gate_up_proj_blocks"] == (128, 5760, 90, 16)
    assert shapes["mlp.experts.gate_up_proj_scales"] == (128, 5760, 90)
    assert shapes["mlp.experts.down_proj_blocks"] == (128, 2880, 90, 16)
    assert shapes["self_attn.q_proj.weight"] == (4096, 2880) and shapes["self_attn.k_proj.bias"] == (512,)
    assert shapes["self_attn.o_proj.weight"] == (2880, 4096) and shapes["self_attn.sinks"] == (64,)
    assert len(named) == 3 + 36 * 19
    assert abs(weight_bytes(spec) / GIB - 60.8) < 0.1  # the published size


def test_names_and_shapes_of_quantised_dense_layers_at_120b():
    spec = replace(PRESETS["gpt-oss-120b"], mxfp4_layers=ALL_DENSE)
    named = named_tensors(empty_weights(spec, torch.device("meta")), spec)
    shapes = {name.removeprefix("model.layers.0."): tuple(tensor.shape) for name, tensor in named.items()}
    assert shapes["self_attn.q_proj.weight_blocks"] == (4096, 90, 16)
    assert shapes["self_attn.q_proj.weight_scales"] == (4096, 90)
    assert shapes["self_attn.v_proj.weight_blocks"] == (512, 90, 16)
    assert shapes["self_attn.o_proj.weight_blocks"] == (2880, 128, 16)
    assert shapes["lm_head.weight_blocks"] == (201088, 90, 16) and shapes["lm_head.weight_scales"] == (201088, 90)
    assert shapes["self_attn.q_proj.bias"] == (4096,) and "self_attn.q_proj.weight" not in shapes
    assert all(
        tensor.dtype == torch.uint8 for name, tensor in named.items() if name.endswith(("_blocks", "_scales"))
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_memory_shrinks_as_the_roofline_computes(preset):
    spec = PRESETS[preset]

    def computed(dense):
        cost = step_cost(spec, StepShape(dense=dense, distinct_experts=spec.num_experts))
        read = sum(op.matrix_bytes + op.vector_bytes for op in cost.ops if op.op != "embedding")
        return read + 2 * spec.vocab_size * spec.hidden_size

    quantised = replace(spec, mxfp4_layers=ALL_DENSE)
    assert weight_bytes(spec) == computed("bf16") and weight_bytes(quantised) == computed("mxfp4")
    dense = spec.hidden_size * (spec.num_layers * (2 * spec.q_size + 2 * spec.kv_size) + spec.vocab_size)
    assert weight_bytes(spec) - weight_bytes(quantised) == dense * (64 - 17) // 32


@pytest.mark.parametrize("layers", [("qkv",), ("o",), ("lm_head",), ALL_DENSE], ids=str)
def test_checkpoint_with_quantised_layers_comes_back_bit_for_bit(layers, tmp_path):
    spec = replace(SPEC, mxfp4_layers=layers)
    saved = synthetic_weights(spec, CPU, seed=5)
    save_checkpoint(tmp_path, spec, saved, shard_bytes=20_000)
    assert read_spec(tmp_path) == spec
    loaded, report = load_weights(tmp_path, spec, CPU, workers=2, reserve_gib=0.0)
    expected = named_tensors(saved, spec)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in named_tensors(loaded, spec).items())
    assert report.quantized == () and report.num_bytes == weight_bytes(spec)
    for layer in ALL_DENSE:
        weight = loaded.lm_head if layer == "lm_head" else getattr(loaded.layers[1], layer)
        assert isinstance(weight, Mxfp4Weight) == (layer in layers)


def test_fused_rows_of_q_k_and_v_are_their_own_quantised_rows(tmp_path):
    spec = replace(SPEC, mxfp4_layers=("qkv",))
    weights = synthetic_weights(spec, CPU, seed=5)
    named = named_tensors(weights, spec)
    parts = [named[f"model.layers.0.self_attn.{name}_proj.weight_scales"] for name in "qkv"]
    assert torch.equal(torch.cat(parts), weights.layers[0].qkv.scales)
    assert weights.layers[0].qkv.shape == (128, 64)


def test_config_that_does_not_name_the_quantised_layers_of_its_checkpoint(tmp_path):
    spec = replace(SPEC, mxfp4_layers=("o",))
    save_checkpoint(tmp_path, spec, synthetic_weights(spec, CPU, seed=5))
    with pytest.raises(CheckpointError, match=r"self_attn\.o_proj\.weight is missing"):
        load(tmp_path)


def test_progress_reaches_the_end_in_order(checkpoint):
    seen = []
    load(checkpoint, progress=lambda done, total: seen.append((done, total)), workers=1)
    assert seen[-1] == (weight_bytes(SPEC), weight_bytes(SPEC)) and seen == sorted(seen)


def test_a_tensor_larger_than_a_piece_is_read_whole(tmp_path):
    spec = replace(SPEC, vocab_size=PIECE_BYTES // 128 + 77)
    weights = synthetic_weights(spec, CPU, seed=1)
    save_checkpoint(tmp_path, spec, weights)
    loaded, _ = load_weights(tmp_path, spec, CPU, workers=4, reserve_gib=0.0)
    assert loaded.embedding.nbytes > PIECE_BYTES and torch.equal(loaded.embedding, weights.embedding)


@pytest.mark.gpu
def test_loading_onto_a_gpu_gives_the_same_bytes(tmp_path):
    spec = replace(SPEC, vocab_size=PIECE_BYTES // 128 + 77)
    expected = named_tensors(synthetic_weights(spec, CPU, seed=1), spec)
    save_checkpoint(tmp_path, spec, synthetic_weights(spec, CPU, seed=1), shard_bytes=5_000_000)
    loaded, report = load_weights(tmp_path, spec, find_device("cuda"), workers=4, reserve_gib=0.0)
    for name, tensor in named_tensors(loaded, spec).items():
        assert tensor.is_cuda and torch.equal(tensor.cpu(), expected[name]), name
    assert report.num_bytes == weight_bytes(spec)


@pytest.mark.gpu
def test_synthetic_weights_of_a_gpu_repeat_by_seed():
    first, same = (named_tensors(synthetic_weights(SPEC, find_device("cuda"), seed=5), SPEC) for _ in range(2))
    assert all(torch.equal(tensor, same[name]) and tensor.is_cuda for name, tensor in first.items())


def test_truncated_file_names_file_and_tensor(single):
    data = (single / SINGLE).read_bytes()
    (single / SINGLE).write_bytes(data[:-10])
    with pytest.raises(CheckpointError, match=r"model.safetensors is truncated: tensor \S+ ends at byte"):
        load(single)


@pytest.mark.parametrize("size", [0, 4, 100])
def test_file_cut_inside_its_header(single, size):
    (single / SINGLE).write_bytes((single / SINGLE).read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a safetensors file or is cut off"):
        load(single)


def test_header_that_is_not_json(single):
    (single / SINGLE).write_bytes((8).to_bytes(8, "little") + b"notjson!" + bytes(100))
    with pytest.raises(CheckpointError, match="header is not valid JSON"):
        load(single)


def test_missing_shard_is_named(tmp_path):
    save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3), shard_bytes=20_000)
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"shard {gone.name} is missing"):
        load(tmp_path)


def test_index_that_disagrees_with_a_shard(tmp_path):
    save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3), shard_bytes=20_000)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = content["weight_map"][SCALES]
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"holds model\.norm\.weight, but .* places it in"):
        load(tmp_path)


def test_folder_without_weights(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("model.norm.weight"), r"tensor model\.norm\.weight is missing"),
        (lambda t: t.update({"model.extra": torch.zeros(1)}), r"model\.safetensors: tensor model\.extra does not"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(64)}),
            r"model\.norm\.weight is torch\.float32, expected torch\.bfloat16",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(65).bfloat16()}),
            r"model\.norm\.weight has shape \(65,\), expected \(64,\)",
        ),
        (
            lambda t: t.update({SCALES: torch.zeros(t[SCALES].shape).to(torch.float8_e4m3fn)}),
            f"{SCALES} belongs to NVFP4",
        ),
        (lambda t: t[SCALES].view(-1)[5:7].fill_(255), rf"model\.safetensors: tensor {SCALES}: 2 of 256 .*NaN"),
    ],
    ids=["missing tensor", "extra tensor", "wrong dtype", "wrong shape", "NVFP4 scales", "NaN scale"],
)
def test_a_bad_tensor_is_named_with_its_file(single, change, complaint):
    edit(single, change)
    with pytest.raises(CheckpointError, match=complaint):
        load(single)


def test_too_little_memory_refuses_before_reading(single):
    (single / SINGLE).chmod(0o600)
    with pytest.raises(CheckpointError, match=r"10000\.0 GiB must stay free, but CPU has .* GiB available"):
        load(single, reserve_gib=10_000.0, progress=lambda done, total: pytest.fail("read before the check"))


def test_unified_memory_counts_the_systems_available_bytes(monkeypatch):
    unified = replace(CPU, name="GB10", capability=(12, 1), is_unified=True)
    monkeypatch.setattr("firesteel.device.find_host_memory", lambda: HostMemory(120 * GIB, 10 * GIB))
    check_memory(8 * GIB, unified, 1.0)
    with pytest.raises(CheckpointError, match=r"GB10 has 10\.0 GiB available"):
        check_memory(8 * GIB, unified, 4.0)


PEAK_PROGRAM = """
import json, re, sys
from dataclasses import replace
from pathlib import Path
import torch
from firesteel.device import find_device
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.spec import PRESETS, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import load_weights, weight_bytes

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

experts, vocab, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
spec = replace(PRESETS["gpt-oss-120b"], num_layers=2, windows=(128, None), num_experts=experts, vocab_size=vocab)
cpu = find_device("cpu")
torch.randn(64, 64) @ torch.randn(64, 64)
before = peak()
if sys.argv[4] == "make":
    weights = synthetic_weights(spec, cpu, seed=1)
else:
    weights, report = load_weights(folder, spec, cpu, workers=4, reserve_gib=0.0)
print(json.dumps({"peak": peak() - before, "weights": weight_bytes(spec)}))
if sys.argv[4] == "make":
    save_checkpoint(folder, spec, weights)
"""


def peak_over_size(experts, vocab, folder, verb):
    command = [sys.executable, "-c", PEAK_PROGRAM, str(experts), str(vocab), str(folder), verb]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["peak"] / result["weights"]


@pytest.mark.parametrize(
    ("experts", "vocab"),
    [
        pytest.param(4, 8_000, marks=pytest.mark.slow, id="4 experts"),
        pytest.param(128, 201_088, marks=pytest.mark.slow, id="whole"),
    ],
)
def test_loading_two_layers_of_120b_width_takes_at_most_1_3_times_their_size(experts, vocab, tmp_path):
    assert 0.9 < peak_over_size(experts, vocab, tmp_path, "make") < 1.3
    assert 0.9 < peak_over_size(experts, vocab, tmp_path, "load") < 1.3
