"""The tensor-parallel cut: sizes at the published shapes, and each rank's weights by every way of loading them."""

import itertools
from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.formats import mxfp4
from firesteel.hub import BUILT_IN
from firesteel.kernels.decode.fc1 import plan as plan_fc1
from firesteel.kernels.decode.fc2 import plan as plan_fc2
from firesteel.kernels.decode.lm_head import plan as plan_lm_head
from firesteel.kernels.decode.o import plan as plan_o
from firesteel.kernels.decode.qkv import plan as plan_qkv
from firesteel.kernels.rope import RopeSpec
from firesteel.kernels.stream.plan import TOKENS, machine_of
from firesteel.kernels.stream.ring import refuse_columns
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.reader import LONG_RUN_BYTES
from firesteel.model.spec import PRESETS, ModelSpec, SpecError, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import load_weights, named_tensors, weight_bytes
from firesteel.vllm_plugin.sharding import Shard, ShardError, cut_intermediate, load_shard, synthetic_shard

CPU = find_device("cpu")
KINDLING = read_spec(BUILT_IN)
ALL_DENSE = ("qkv", "o", "lm_head")
SMALL = ModelSpec(
    num_layers=2,
    hidden_size=96,
    intermediate_size=320,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    num_experts=3,
    num_active=2,
    vocab_size=299,
    windows=(8, None),
    rope=RopeSpec(theta=150000.0),
    max_context=256,
)


def shards_of(spec, size):
    return [Shard(whole=spec, rank=rank, size=size) for rank in range(size)]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("size", "heads", "parts"),
    [
        (1, (64, 8), [2880]),
        (2, (32, 4), [1536, 1344]),
        (4, (16, 2), [768, 704, 704, 704]),
        (8, (8, 1), [384] * 5 + [320] * 3),
    ],
)
def test_heads_and_intermediate_values_of_the_published_models(preset, size, heads, parts):
    specs = [shard.spec for shard in shards_of(PRESETS[preset], size)]
    assert {(spec.num_heads, spec.num_kv_heads) for spec in specs} == {heads}
    assert [spec.intermediate_size for spec in specs] == parts
    assert {shard.lm_head_rows for shard in shards_of(PRESETS[preset], size)} == {201088 // size}


def test_the_shipped_model_is_cut_for_two_ranks():
    assert [shard.spec.intermediate_size for shard in shards_of(KINDLING, 2)] == [128, 64]
    assert {(shard.spec.num_heads, shard.spec.num_kv_heads) for shard in shards_of(KINDLING, 2)} == {(4, 1)}


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("preset", PRESETS)
def test_ranks_hold_everything_once_and_what_is_replicated_on_each(preset, size):
    """Norms, router and embedding are on every rank; biases of o and down are zeros on all but the first."""
    whole = PRESETS[preset]
    layer = 2 * whole.hidden_size * (2 + 1) + 2 * whole.num_experts * (2 * whole.hidden_size + 1)
    replicated = 2 * whole.vocab_size * whole.hidden_size + 2 * whole.hidden_size + whole.num_layers * layer
    held = sum(shard.weight_bytes() for shard in shards_of(whole, size))
    assert held == weight_bytes(whole) + (size - 1) * replicated


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0), (12, 1)], ids=str)
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("preset", PRESETS)
def test_decode_kernels_of_every_rank_fit_the_gpus(preset, size, capability):
    machine = machine_of(capability)
    for shard, tokens, is_fp4 in itertools.product(shards_of(PRESETS[preset], size), TOKENS, (False, True)):
        spec = shard.spec
        dense = {"is_fp4": is_fp4, "tokens": tokens, "hidden": spec.hidden_size}
        experts = {
            "tokens": tokens,
            "hidden": spec.hidden_size,
            "intermediate": spec.intermediate_size,
            "experts": spec.num_experts,
            "active": spec.num_active,
        }
        plans = [
            plan_qkv(machine, **dense, heads=spec.num_heads, kv_heads=spec.num_kv_heads),
            plan_o(machine, **dense, columns=spec.q_size),
            plan_lm_head(machine, **dense, vocabulary=shard.lm_head_rows),
            plan_fc1(machine, **experts),
            plan_fc2(machine, **experts),
        ]
        assert not any(plan.refuse(machine) for plan in plans)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_every_part_can_be_streamed_and_the_largest_is_the_least_possible(num_ranks):
    for num_units in range(1, 100):
        try:
            parts = cut_intermediate(64 * num_units, num_ranks)
        except ShardError:
            continue
        assert (
            len(parts) == num_ranks and sum(parts) == 64 * num_units and list(parts) == sorted(parts, reverse=True)
        )
        assert not any(refuse_columns(True, part) for part in parts)
        if num_ranks == 2:
            halves = range(-(-num_units // 2), parts[0] // 64)
            assert all(refuse_columns(True, 64 * n) or refuse_columns(True, 64 * (num_units - n)) for n in halves)


@pytest.mark.parametrize(
    ("change", "rank", "size", "message"),
    [
        ({}, 2, 2, "rank 2 of 2: ranks count from 0 to 1"),
        ({}, -1, 2, "rank -1 of 2"),
        ({}, 0, 3, "4 KV heads cannot be shared equally by 3 ranks: use a tensor parallel size of 1, 2, 4"),
        (
            {"intermediate_size": 96},
            0,
            2,
            "intermediate size of 96 cannot be cut for 2 ranks: each needs a multiple of",
        ),
        ({"intermediate_size": 128}, 0, 4, "intermediate size of 128 cannot be cut for 4 ranks"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_its_cure(change, rank, size, message):
    with pytest.raises(ShardError, match=message):
        Shard(whole=replace(SMALL, **change), rank=rank, size=size)


def test_the_shipped_model_is_refused_for_four_ranks():
    with pytest.raises(ShardError, match="2 KV heads cannot be shared equally by 4 ranks"):
        Shard(whole=KINDLING, rank=0, size=4)


def test_heads_that_split_a_group_of_mxfp4_are_refused():
    spec = replace(SMALL, head_dim=8, mxfp4_layers=("o",))
    with pytest.raises(SpecError, match="leave o in BF16"):
        Shard(whole=spec, rank=0, size=4)


def dequantise(named, name):
    return mxfp4.dequantize(named[name + "_blocks"].flatten(-2), named[name + "_scales"])


def check_parts(whole, parts, size):
    """Checks that the ranks' tensors `parts` are those of `whole`, put together again."""
    experts = "model.layers.1.mlp.experts."
    attention = "model.layers.1.self_attn."
    for name in ("gate_up_proj", "down_proj"):
        joined = torch.cat(
            [dequantise(part, experts + name) for part in parts], dim=1 if name == "gate_up_proj" else 2
        )
        assert torch.equal(joined, dequantise(whole, experts + name))
    joined_bias = torch.cat([part[experts + "gate_up_proj_bias"] for part in parts], dim=1)
    assert torch.equal(joined_bias, whole[experts + "gate_up_proj_bias"])
    axes = {
        name: 1 if name.startswith(attention + "o_proj.weight") else 0
        for name in whole
        if name.startswith(attention)
    }
    for name, axis in axes.items():
        if not name.endswith("o_proj.bias"):
            assert torch.equal(torch.cat([part[name] for part in parts], axis), whole[name]), name
    for name in (attention + "o_proj.bias", experts + "down_proj_bias"):
        assert torch.equal(parts[0][name], whole[name]) and whole[name].any()
        assert not any(part[name].any() for part in parts[1:])
    for name in (name for name in whole if name.startswith("lm_head.")):
        rows = torch.cat([part[name] for part in parts])
        assert torch.equal(rows[: len(whole[name])], whole[name]) and not rows[len(whole[name]) :].any()
        assert {len(part[name]) for part in parts} == {len(rows) // size}
    for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.router.weight"):
        assert all(torch.equal(part[name], whole[name]) for part in parts)


@pytest.mark.parametrize("layers", [(), ALL_DENSE], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_random_weights_of_the_ranks_are_those_of_the_whole(size, layers):
    spec = replace(SMALL, mxfp4_layers=layers)
    whole = named_tensors(synthetic_weights(spec, CPU, seed=7), spec)
    shards = shards_of(spec, size)
    check_parts(whole, [named_tensors(synthetic_shard(shard, CPU, seed=7), shard.spec) for shard in shards], size)


@pytest.mark.parametrize("layers", [(), ALL_DENSE], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_checkpoint_is_read_in_parts(size, layers, tmp_path):
    spec = replace(SMALL, mxfp4_layers=layers)
    weights = synthetic_weights(spec, CPU, seed=7)
    save_checkpoint(tmp_path, spec, weights, shard_bytes=100_000)
    parts = []
    for shard in shards_of(spec, size):
        loaded, report = load_shard(tmp_path, spec, shard, CPU, workers=3, reserve_gib=0.0)
        parts.append(named_tensors(loaded, shard.spec))
        assert report.num_bytes <= shard.weight_bytes()
    check_parts(named_tensors(weights, spec), parts, size)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_layers_quantised_while_they_are_loaded_are_those_of_the_whole(size, tmp_path):
    """Cuts lie between groups, so the codes do not change."""
    save_checkpoint(tmp_path, SMALL, synthetic_weights(SMALL, CPU, seed=7))
    held = replace(SMALL, mxfp4_layers=ALL_DENSE)
    whole, _ = load_weights(tmp_path, SMALL, CPU, workers=2, reserve_gib=0.0, held=held)
    shards = shards_of(held, size)
    loaded = [load_shard(tmp_path, SMALL, shard, CPU, workers=2, reserve_gib=0.0)[0] for shard in shards]
    parts = [named_tensors(weights, shard.spec) for weights, shard in zip(loaded, shards, strict=True)]
    check_parts(named_tensors(whole, held), parts, size)


def test_tensors_given_one_by_one_are_cut_into_place():
    whole = named_tensors(synthetic_weights(SMALL, CPU, seed=7), SMALL)
    parts = []
    for shard in shards_of(SMALL, 4):
        weights = shard.empty_weights(torch.device("cpu"))
        targets = named_tensors(weights, shard.spec)
        for name, tensor in whole.items():
            targets[name].fill_(77)
            shard.copy_part(name, tensor, targets[name])
        parts.append(targets)
    check_parts(whole, parts, 4)


def test_vocabulary_smaller_than_the_padding_leaves_the_last_ranks_zeros(tmp_path):
    spec = replace(SMALL, vocab_size=20)
    weights = synthetic_weights(spec, CPU, seed=1)
    save_checkpoint(tmp_path, spec, weights)
    loaded = [
        load_shard(tmp_path, spec, shard, CPU, workers=2, reserve_gib=0.0)[0].lm_head
        for shard in shards_of(spec, 4)
    ]
    assert [tuple(part.shape) for part in loaded] == [(16, 96)] * 4
    assert torch.equal(torch.cat(loaded)[:20], weights.lm_head) and not torch.cat(loaded)[20:].any()


def test_long_runs_are_read_one_by_one(tmp_path):
    """A rank's rows of gate and up are long enough here, as they are at the published sizes."""
    spec = replace(SMALL, num_layers=1, windows=(8,), hidden_size=1024, intermediate_size=1024)
    assert LONG_RUN_BYTES <= 2 * 512 * 1024 // 2
    weights = synthetic_weights(spec, CPU, seed=1)
    save_checkpoint(tmp_path, spec, weights)
    shards = shards_of(spec, 2)
    parts = [load_shard(tmp_path, spec, shard, CPU, workers=2, reserve_gib=0.0)[0] for shard in shards]
    codes = [part.layers[0].experts.gate_up_codes for part in parts]
    assert torch.equal(torch.cat(codes, 1), weights.layers[0].experts.gate_up_codes)
