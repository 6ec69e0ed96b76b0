"""Heads that are damaged, incomplete or made for another target: one clear error each."""

from dataclasses import replace

import pytest
import torch

from firesteel.model.drafters.eagle3 import load_eagle3
from firesteel.model.drafters.errors import DrafterError
from tests.model.drafters.heads import CPU, LAYOUTS, TARGET, Layout, config_of, new_target, tensors_of, write_head

MAPPED = Layout(draft_vocab=23)
NORMED = LAYOUTS["fused projections, layers.0, own boundaries, norm before fc"]
BIASED = LAYOUTS["biases, Llama 3 rope, fp32"]
NESTED = LAYOUTS["speculators with norms of each state and of the output"]


@pytest.fixture(scope="module")
def target():
    return new_target()


def load(tmp_path, target, layout, change=None, without=(), **config):
    """Loads a head with tensors replaced or left out, and fields of its config replaced."""
    tensors = {name: tensor for name, tensor in tensors_of(layout).items() if name not in without}
    content = config_of(layout) | config
    return load_eagle3(write_head(tmp_path, layout, config=content, tensors=tensors | (change or {})), target, CPU)


@pytest.mark.parametrize("name", sorted(set(tensors_of(Layout())) - {"embed_tokens.weight", "lm_head.weight"}))
def test_missing_tensor_is_named(name, target, tmp_path):
    """Without fc, the ids would name three states for a head that reads one."""
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    wanted = name.replace("midlayer", "layers.0")
    with pytest.raises(DrafterError, match=f"{wanted} is missing"):
        load(tmp_path, target, Layout(config=ids), without=[name])


@pytest.mark.parametrize("name", sorted(set(tensors_of(MAPPED)) - {"t2d"}))
def test_wrong_shape_is_named(name, target, tmp_path):
    tensor = tensors_of(MAPPED)[name]
    wrong = torch.cat((tensor, tensor[:1]))
    with pytest.raises(DrafterError, match=r"model\.safetensors: tensor .* has shape .*expected"):
        load(tmp_path, target, MAPPED, {name: wrong})


def test_no_memory_is_taken_for_shapes_that_only_the_config_claims(target, tmp_path):
    """Heads of 4096 by 4096 values were allocated first: the allocator failed without a word about the config."""
    wide = {"num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 4096}
    with pytest.raises(DrafterError, match=r"q_proj.weight has shape .* expected \(16777216, "):
        load(tmp_path, target, Layout(), intermediate_size=1 << 16, **wide)


def test_tensor_that_is_not_known_is_refused(target, tmp_path):
    extra = {"midlayer.self_attn.q_norm.weight": torch.ones(8)}
    with pytest.raises(DrafterError, match=r"q_norm\.weight does not belong to this kind of head"):
        load(tmp_path, target, Layout(), extra)
    with pytest.raises(DrafterError, match=r"mask_hidden does not belong"):
        load(tmp_path, target, Layout(), {"mask_hidden": torch.ones(1, 32)})


def test_masks_and_copies_of_the_target_are_ignored(target, tmp_path):
    extra = {"verifier_lm_head.weight": torch.ones(2, 2), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    load(tmp_path, target, MAPPED, extra)


def test_prefix_of_the_model_is_taken_off(target, tmp_path):
    tensors = {f"model.{name}": tensor for name, tensor in tensors_of(Layout()).items()}
    write_head(tmp_path, Layout(), tensors=tensors)
    load_eagle3(tmp_path, target, CPU)
    twice = tensors | {"norm.weight": torch.ones(32)}
    write_head(tmp_path, Layout(), tensors=twice)
    with pytest.raises(DrafterError, match="stored under two names"):
        load_eagle3(tmp_path, target, CPU)


@pytest.mark.parametrize(
    ("layout", "config", "message"),
    [
        (Layout(), {"target_hidden_size": 64}, "target_hidden_size = 64, but the target's is 32"),
        (Layout(), {"vocab_size": 62}, "vocab_size = 62, but the target's is 61"),
        (
            Layout(num_states=None, hidden_size=48),
            {},
            "hidden_size = 48, the target has 32 and fc.weight is missing",
        ),
        (Layout(), {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "config.json: .*names 2 states"),
        (Layout(), {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "the target has 8 layers"),
        (Layout(hidden_size=48, has_embedding=False), {}, "embed_tokens.weight is missing.*cannot be shared"),
        (Layout(hidden_size=48, has_lm_head=False), {}, "lm_head.weight is missing.*cannot be shared"),
        (replace(MAPPED, has_lm_head=False), {}, "lm_head.weight is missing.*the head has 23 tokens"),
        (Layout(), {"draft_vocab_size": 23}, "d2t is missing.*draft_vocab_size = 23"),
        (Layout(), {"norm_before_fc": True}, "input_norm.weight is missing"),
        (NORMED, {"eagle_config": {"norm_before_fc": False}}, "norm_before_fc is false, but .* input_norm.weight"),
        (NESTED, {"fc_norm": False}, "fc_norm is false, but .* fc_norm.0.weight"),
        (Layout(), {"fc_norm": True}, "fc_norm.0.weight is missing"),
        (Layout(), {"attention_bias": True}, "q_proj.bias is missing"),
        (BIASED, {"attention_bias": False}, "attention_bias is false, but .*q_proj.bias"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_head_that_does_not_fit_is_refused(layout, config, message, target, tmp_path):
    with pytest.raises(DrafterError, match=message):
        load(tmp_path, target, layout, **config)


def test_width_that_is_no_multiple_of_the_targets_is_refused(target, tmp_path):
    with pytest.raises(DrafterError, match=r"fc\.weight has shape \(32, 80\).* the head of another model"):
        load(tmp_path, target, Layout(), {"fc.weight": torch.ones(32, 80)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d2t: d2t + 60, "leads to token 1[01]"),
        (lambda d2t: d2t - 30, "leads to token -"),
        (lambda d2t: -torch.arange(23), "leads 23 tokens to 1 of the target"),
        (lambda d2t: d2t.float(), "d2t is torch.float32, expected int64"),
    ],
    ids=["too high", "negative", "twice", "no integers"],
)
def test_draft_vocabulary_that_does_not_fit_is_refused(make, message, target, tmp_path):
    """Ids of the target stored in place of differences lead beyond the vocabulary, or twice to one token."""
    with pytest.raises(DrafterError, match=message):
        load(tmp_path, target, MAPPED, {"d2t": make(tensors_of(MAPPED)["d2t"])})


def test_quantised_head_is_refused(target, tmp_path):
    codes = {"fc.weight": torch.zeros(32, 96, dtype=torch.uint8)}
    with pytest.raises(DrafterError, match=r"fc\.weight is torch\.uint8.*not quantised"):
        load(tmp_path, target, Layout(), codes)


@pytest.mark.parametrize("cut", [0, 5, 400, -1])
def test_truncated_file_is_refused(cut, target, tmp_path):
    write_head(tmp_path, Layout())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DrafterError, match=r"model\.safetensors"):
        load_eagle3(tmp_path, target, CPU)


def test_folder_without_weights_is_refused(target, tmp_path):
    write_head(tmp_path, Layout())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DrafterError, match=r"holds neither model\.safetensors nor"):
        load_eagle3(tmp_path, target, CPU)


def test_target_ids_are_those_of_the_format(target, tmp_path):
    drafter = load(tmp_path, target, MAPPED)
    stored = tensors_of(MAPPED)
    assert drafter.weights.target_ids.tolist() == stored["t2d"].nonzero()[:, 0].tolist()


def test_lm_head_tied_to_the_heads_own_embedding(target, tmp_path):
    layout = Layout(has_lm_head=False, hidden_size=48)
    drafter = load(tmp_path, target, layout, tie_word_embeddings=True)
    assert drafter.lm_head is drafter.embedding and drafter.embedding.shape == (TARGET.vocab_size, 48)
