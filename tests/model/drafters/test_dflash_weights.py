"""Tensors of DFlash drafters: every place, and one clear error for each file that is damaged or foreign."""

import pytest
import torch
from safetensors.torch import load_file

from firesteel.device import find_device
from firesteel.model.drafters.dflash_spec import read_dflash_spec
from firesteel.model.drafters.dflash_weights import load_dflash_weights, named_dflash_tensors, save_dflash
from firesteel.model.drafters.errors import DrafterError
from tests.model.drafters.dflash_oracle import draw_config, draw_tensors, list_shapes, write_drafter
from tests.model.tiny import SPEC as TARGET

CPU = find_device("cpu")
CONFIG = draw_config(TARGET, dflash_config={"mask_token_id": 5, "target_layer_ids": [0, 1]})


def load(folder):
    return load_dflash_weights(folder, read_dflash_spec(folder, TARGET), CPU)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_every_tensor_is_read_into_its_place(tmp_path, has_bias, prefix):
    config = CONFIG | {"attention_bias": has_bias}
    tensors = draw_tensors(config, 1)
    write_drafter(tmp_path, config, {prefix + name: tensor for name, tensor in tensors.items()})
    named = named_dflash_tensors(load(tmp_path))
    assert named.keys() == tensors.keys() == list_shapes(config).keys()
    assert all(torch.equal(named[name], tensors[name]) for name in tensors)


def test_saved_drafters_are_public_ones(tmp_path):
    tensors = draw_tensors(CONFIG, 2)
    write_drafter(tmp_path / "first", CONFIG, tensors)
    save_dflash(tmp_path / "second", read_dflash_spec(tmp_path / "first", TARGET), TARGET, load(tmp_path / "first"))
    again = load_file(tmp_path / "second" / "model.safetensors")
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)
    assert read_dflash_spec(tmp_path / "second", TARGET) == read_dflash_spec(tmp_path / "first", TARGET)


def drop(tensors):
    del tensors["layers.1.self_attn.q_norm.weight"]


def narrow(tensors):
    tensors["fc.weight"] = tensors["fc.weight"][:, :64].contiguous()


def widen(tensors):
    tensors["norm.weight"] = tensors["norm.weight"].float()


def add_lm_head(tensors):
    tensors["lm_head.weight"] = torch.zeros(TARGET.vocab_size, TARGET.hidden_size, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "tensor layers.1.self_attn.q_norm.weight is missing"),
        (narrow, r"tensor fc.weight has shape \(64, 64\), its config.json says \(64, 128\)"),
        (widen, "tensor norm.weight is torch.float32, expected torch.bfloat16"),
        (add_lm_head, "tensor lm_head.weight does not belong to a DFlash drafter"),
    ],
)
def test_foreign_tensors(tmp_path, change, said):
    tensors = draw_tensors(CONFIG, 3)
    change(tensors)
    write_drafter(tmp_path, CONFIG, tensors)
    with pytest.raises(DrafterError, match=said) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_biases_that_the_config_does_not_announce(tmp_path):
    write_drafter(tmp_path, CONFIG | {"attention_bias": False}, draw_tensors(CONFIG, 4))
    with pytest.raises(DrafterError, match=r"self_attn.k_proj.bias does not belong .* \(8 extra\)"):
        load(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 300, -1])
def test_files_that_are_cut_off(tmp_path, kept):
    write_drafter(tmp_path, CONFIG, draw_tensors(CONFIG, 5))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DrafterError, match=r"model\.safetensors"):
        load(tmp_path)


def test_missing_file(tmp_path):
    write_drafter(tmp_path, CONFIG, draw_tensors(CONFIG, 6))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DrafterError, match="not a checkpoint, or incomplete"):
        load(tmp_path)
