"""A checkpoint written with dense layers in MXFP4: equal to quantising at load; complete or absent."""

import json
import resource
import shutil
from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.quantize import quantize_checkpoint
from firesteel.model.shards import find_tensors
from firesteel.model.spec import read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import load_weights, named_tensors, weight_bytes
from tests.model.tiny import SPEC

CPU = find_device("cpu")
ALL_DENSE = ("qkv", "o", "lm_head")
OTHERS = {"tokenizer.json": "{}", "generation_config.json": "[1]", "chat_template.jinja": "x", "LICENSE": "free"}


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    save_checkpoint(directory, SPEC, synthetic_weights(SPEC, CPU, seed=3), shard_bytes=20_000)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "eos_token_id": 5}))
    for name, content in OTHERS.items():
        (directory / name).write_text(content)
    (directory / "notes.bin").write_text("not ours")
    (directory / "original").mkdir()
    return directory


def load(directory, layers=None):
    spec = read_spec(directory)
    held = spec if layers is None else replace(spec, mxfp4_layers=layers)
    weights, report = load_weights(directory, spec, CPU, workers=2, reserve_gib=0.0, held=held)
    return named_tensors(weights, held), report


@pytest.mark.parametrize("layers", [("qkv",), ("o",), ("lm_head",), ALL_DENSE], ids=str)
@pytest.mark.parametrize("shard_bytes", [5_000, 1 << 30], ids=["sharded", "one shard"])
def test_loading_it_equals_quantising_at_load_bit_for_bit(source, tmp_path, layers, shard_bytes):
    target = tmp_path / "target"
    written = quantize_checkpoint(source, target, layers, shard_bytes=shard_bytes)
    assert read_spec(target) == replace(SPEC, mxfp4_layers=layers)
    expected, at_load = load(source, layers)
    actual, report = load(target)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in actual.items())
    assert report.quantized == ()
    errors = {layer.layer: (layer.matrices, layer.relative_rms, layer.worst) for layer in written.layers}
    assert errors == {layer.layer: (layer.matrices, layer.relative_rms, layer.worst) for layer in at_load.quantized}


def test_report_names_quantised_layers_their_error_and_that_only_firesteel_reads_them(source, tmp_path):
    report = quantize_checkpoint(source, tmp_path / "target", ("moe", "o", "qkv"))
    assert report.mxfp4_layers == ("qkv", "o") and {layer.layer for layer in report.layers} == {"qkv", "o"}
    assert report.bytes_before == weight_bytes(SPEC)
    assert report.bytes_after == weight_bytes(replace(SPEC, mxfp4_layers=("qkv", "o")))
    words = report.in_words()
    assert len(words) == 4 and "only firesteel reads this checkpoint: transformers" in words[-1]
    content = json.loads(json.dumps(report.as_dict()))
    assert content["bytes_after"] == report.bytes_after and content["layers"][0]["relative_rms"] > 0.05


def test_more_layers_can_follow_later(source, tmp_path):
    quantize_checkpoint(source, tmp_path / "one", ("qkv",))
    report = quantize_checkpoint(tmp_path / "one", tmp_path / "two", ("lm_head",))
    assert [layer.layer for layer in report.layers] == ["lm_head"] and report.mxfp4_layers == ("qkv", "lm_head")
    expected, _ = load(source, ("qkv", "lm_head"))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load(tmp_path / "two")[0].items())


def test_settings_and_tokenizer_are_copied_and_other_files_are_not(source, tmp_path):
    target = tmp_path / "deep" / "target"
    quantize_checkpoint(source, target, ("lm_head",))
    for name, content in OTHERS.items():
        assert (target / name).read_text() == content
    names = {path.name for path in target.iterdir()}
    assert "notes.bin" not in names and "original" not in names and not any(".partial" in name for name in names)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, target))
    assert after.pop("quantization_config") != before.pop("quantization_config")
    assert before == after and after["eos_token_id"] == 5


def test_progress_counts_the_bytes_of_the_source(source, tmp_path):
    seen = []
    quantize_checkpoint(
        source, tmp_path / "target", ALL_DENSE, lambda *now: seen.append(now), workers=1, shard_bytes=9_000
    )
    assert seen == sorted(seen) and seen[-1] == (weight_bytes(SPEC),) * 2


def test_codes_and_scales_of_a_matrix_lie_in_one_file(source, tmp_path):
    quantize_checkpoint(source, tmp_path / "target", ALL_DENSE, shard_bytes=1_000)
    stored = find_tensors(tmp_path / "target")
    assert len({tensor.file for tensor in stored.values()}) > 20
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            assert tensor.file == stored[name.replace("_blocks", "_scales")].file, name


@pytest.mark.parametrize("existing", ["file", "folder"])
def test_existing_target_is_refused_and_left_alone(source, tmp_path, existing):
    target = tmp_path / "target"
    kept = target if existing == "file" else target / "precious"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("here")
    with pytest.raises(UserError, match="target exists and is not an empty folder: name a new one"):
        quantize_checkpoint(source, target, ("qkv",))
    assert kept.read_text() == "here"


def test_empty_target_is_accepted(source, tmp_path):
    (tmp_path / "target").mkdir()
    quantize_checkpoint(source, tmp_path / "target", ("qkv",))
    assert read_spec(tmp_path / "target").mxfp4_layers == ("qkv",)


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ((), "nothing to quantise: name some of qkv, o, lm_head"),
        (("moe",), "nothing to quantise: name some of"),
        (("qkv", "ffn"), "'ffn' is not a layer that can be held in MXFP4"),
    ],
)
def test_invalid_layers_are_refused_before_anything_is_written(source, tmp_path, layers, complaint):
    with pytest.raises(UserError, match=complaint):
        quantize_checkpoint(source, tmp_path / "target", layers)
    assert not (tmp_path / "target").exists()


def test_layers_that_are_mxfp4_already_are_refused(source, tmp_path):
    quantize_checkpoint(source, tmp_path / "one", ("qkv", "o"))
    with pytest.raises(UserError, match=r"nothing to quantise: .*one holds qkv in MXFP4 already"):
        quantize_checkpoint(tmp_path / "one", tmp_path / "two", ("moe", "qkv"))


def test_disk_without_room_is_refused_before_anything_is_written(source, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(UserError, match=r"the disk of .*target has 0\.0 GiB free: free some or name a folder on"):
        quantize_checkpoint(source, tmp_path / "target", ("qkv",))
    assert not (tmp_path / "target").exists()


@pytest.fixture
def small_files():
    """Limits files to 3000 bytes, so a write fails halfway, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("existing", [False, True], ids=["new folder", "empty folder"])
def test_write_that_fails_halfway_leaves_nothing_behind(source, tmp_path, small_files, existing):
    target = tmp_path / "target"
    if existing:
        target.mkdir()
    with pytest.raises(UserError, match=r"cannot write .*model-00001-of.*is the disk full"):
        quantize_checkpoint(source, target, ("qkv",))
    assert target.exists() == existing and not (existing and any(target.iterdir()))


def test_failed_copy_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def fail(path, to):
        raise OSError(28, "No space left on device", str(to))

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(UserError, match=r"cannot write .*target/.*: No space left on device"):
        quantize_checkpoint(source, tmp_path / "target", ("qkv",))
    assert not (tmp_path / "target").exists()


def test_interrupt_leaves_nothing_behind_and_config_comes_last(source, tmp_path, monkeypatch):
    written = []

    def interrupt(path, content):
        written.extend(path.parent.iterdir())
        if path.name == "config.json":
            raise KeyboardInterrupt
        path.write_text(json.dumps(content))

    monkeypatch.setattr("firesteel.model.quantize.write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(source, tmp_path / "target", ("qkv",))
    assert {path.name for path in written} > {*OTHERS, "model.safetensors.index.json"}
    assert not (tmp_path / "target").exists()


def test_damaged_source_is_refused_before_anything_is_written(source, tmp_path):
    next(iter(source.glob("*.safetensors"))).unlink()
    with pytest.raises(UserError, match=r"shard .* is missing"):
        quantize_checkpoint(source, tmp_path / "target", ("qkv",))
    assert not (tmp_path / "target").exists()


def test_full_disk_while_saving_any_checkpoint_is_a_clear_error(tmp_path, small_files):
    with pytest.raises(UserError, match=r"cannot write .*model\.safetensors: .*: is the disk full\?"):
        save_checkpoint(tmp_path, SPEC, synthetic_weights(SPEC, CPU, seed=3))
    assert list(tmp_path.iterdir()) == []
