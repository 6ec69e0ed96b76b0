import itertools
from dataclasses import replace

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import find_device
from firesteel.engine.engine import Engine
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import named_tensors

CPU = find_device("cpu")
SPEC = replace(
    PRESETS["gpt-oss-20b"],
    num_layers=24,
    hidden_size=192,
    intermediate_size=96,
    num_heads=8,
    num_kv_heads=2,
    num_experts=16,
    vocab_size=500,
)


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    first, same, other = (named_tensors(synthetic_weights(SPEC, CPU, seed=seed), SPEC) for seed in (1, 1, 2))
    for name, tensor in first.items():
        assert torch.equal(tensor, same[name]), name
        assert not torch.equal(tensor, other[name]), name


def test_no_two_tensors_share_storage_and_no_two_layers_are_equal():
    named = named_tensors(synthetic_weights(SPEC, CPU, seed=1), SPEC)
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in named.values())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    first = {name: tensor for name, tensor in named.items() if name.startswith("model.layers.0.")}
    for name, tensor in first.items():
        assert not torch.equal(tensor, named[name.replace(".0.", ".2.")]), name


def test_every_byte_value_occurs_and_no_scale_is_nan():
    named = named_tensors(synthetic_weights(SPEC, CPU, seed=1), SPEC)
    blocks = named["model.layers.0.mlp.experts.gate_up_proj_blocks"]
    counts = torch.bincount(blocks.flatten().int(), minlength=256).float()
    assert counts.min() > 0.8 * counts.mean() and counts.max() < 1.2 * counts.mean()
    scales = torch.cat([tensor.flatten() for name, tensor in named.items() if name.endswith("_scales")])
    assert 100 < int(scales.min()) <= int(scales.max()) < 130


def test_narrow_fused_matrices_are_filled_too():
    """The scales of k and v do not start at a multiple of eight bytes."""
    spec = replace(SPEC, hidden_size=96, num_heads=3, num_kv_heads=1, head_dim=34, mxfp4_layers=("qkv",))
    scales = named_tensors(synthetic_weights(spec, CPU, seed=1), spec)[
        "model.layers.0.self_attn.k_proj.weight_scales"
    ]
    assert scales.storage_offset() % 8 and 100 < int(scales.min()) < int(scales.max()) < 130


@pytest.mark.parametrize("layers", [(), ("qkv", "o", "lm_head")], ids=str)
def test_activations_stay_finite_and_routing_spreads_through_all_layers(score, layers):
    spec = replace(SPEC, mxfp4_layers=layers)
    weights = synthetic_weights(spec, CPU, seed=1)
    kernels = Kernels(CPU, {}, Ledger())
    chosen = []
    route = kernels.route

    def spy(operands):
        ids, shares = route(operands)
        chosen.append(ids)
        return ids, shares

    kernels.route = spy
    model = GptOss(spec, weights, kernels, CPU, max_context=256)
    engine = Engine(model, CPU, BatchConfig(max_num_seqs=1), CacheConfig(), max_context=256)
    logits = score(engine, list(range(200)))
    assert logits.isfinite().all() and 0.3 < logits.std() < 3
    for ids in chosen:
        share = torch.bincount(ids.flatten(), minlength=16) / ids.numel()
        assert (share > 0).sum() >= 14 and share.max() < 0.25
