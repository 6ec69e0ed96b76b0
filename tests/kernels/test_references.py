"""Each reference compared with an independent formulation: loops, torch's own ops or transformers."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from firesteel.formats import mxfp4, mxfp8
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.quantize_mxfp8 import quantize_mxfp8
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rope_kv_write import rope_kv_write
from firesteel.kernels.ops.route import route
from firesteel.kernels.rope import RopeSpec, rope_table

CPU = torch.device("cpu")


def cases(op, suits=lambda sample: True):
    samples = [sample for sample in op.make_samples(CPU) if suits(sample)]
    return pytest.mark.parametrize("sample", samples, ids=lambda sample: sample.label)


def close(actual, expected, relative=1e-5):
    assert actual.shape == expected.shape
    assert (actual.double() - expected.double()).norm() <= relative * expected.double().norm()


@cases(rms_norm)
def test_rms_norm_adds_and_normalises(sample):
    (operands,) = sample.args
    residual, weight, eps = operands.residual.float(), operands.weight, operands.eps
    update = None if operands.update is None else operands.update.float()
    y, total = rms_norm.reference(replace(operands, residual=residual, update=update))
    expected = residual + (0 if update is None else update)
    close(total, expected)
    close(y, functional.rms_norm(expected, (weight.numel(),), weight.float(), eps))


@cases(linear)
def test_linear_is_a_product_in_double(sample):
    (operands,) = sample.args
    x, weight, bias = operands.x, operands.weight, operands.bias
    rounded = {"mxfp8": mxfp8, "mxfp4": mxfp4}.get(operands.activation)
    wide = x if rounded is None else rounded.dequantize(*rounded.quantize(x))
    if isinstance(weight, Mxfp4Weight):
        matrix = mxfp4.dequantize(weight.codes, weight.scales).double()
    else:
        matrix = weight.double()
    expected = wide.double() @ matrix.T + (0 if bias is None else bias.double())
    close(linear.reference(replace(operands, x=x.float())), expected)


def test_linear_in_several_row_groups_equals_one_group(monkeypatch):
    operands = LinearOperands(x=torch.randn(3, 32), weight=torch.randn(50, 32).bfloat16())
    whole = linear.reference(operands)
    monkeypatch.setattr(sys.modules["firesteel.kernels.ops.linear"], "ROWS_AT_ONCE", 7)
    close(linear.reference(operands), whole, 1e-6)


@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
@pytest.mark.parametrize("truncate", [True, False])
def test_rope_table_equals_transformers(factor, truncate):
    parameters = {"rope_type": "default", "rope_theta": 150000.0}
    if factor > 1:
        parameters |= {
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": truncate,
            "original_max_position_embeddings": 4096,
        }
    oracle = GptOssRotaryEmbedding(GptOssConfig(head_dim=64, rope_parameters=parameters))
    cos, sin = oracle(torch.zeros(1), torch.arange(9000)[None])
    table = rope_table(RopeSpec(theta=150000.0, factor=factor, truncate=truncate), 64, 9000, CPU)
    close(table, torch.cat((cos[0], sin[0]), dim=-1), 1e-6)


@cases(rope_kv_write)
def test_rope_rotates_each_pair_of_halves(sample):
    (operands,) = sample.clone()
    q, k, positions, table, slots = operands.q, operands.k, operands.positions, operands.table, operands.slots
    pages = {"k_pages": operands.k_pages.float(), "v_pages": operands.v_pages.float()}
    plain = {"key_scale": 1.0, "value_scale": 1.0, "clipped": None}
    turned_q, *_ = rope_kv_write.reference(replace(operands, q=q.float(), **pages, **plain))
    is_stored = slots >= 0
    written = pages["k_pages"].transpose(1, 2).flatten(0, 1)[slots[is_stored]]
    for x, turned, at in ((q, turned_q, positions), (k[is_stored], written, positions[is_stored])):
        turns = torch.complex(table[at, :32], table[at, 32:])[:, None]
        pairs = torch.complex(x.float()[..., :32], x.float()[..., 32:]) * turns
        close(turned, torch.cat((pairs.real, pairs.imag), dim=-1))


@cases(rope_kv_write)
def test_rope_kv_write_touches_its_slots_only(sample):
    (operands,) = sample.clone()
    k, v, table, slots = operands.k, operands.v, operands.table, operands.slots
    k_pages, v_pages = operands.k_pages, operands.v_pages
    key_scale, value_scale = operands.key_scale, operands.value_scale
    straight = torch.cat((torch.ones_like(table[:, :32]), torch.zeros_like(table[:, :32])), dim=1)
    before = k_pages.clone(), v_pages.clone()
    same = rope_kv_write.reference(replace(operands, table=straight))
    assert same[1] is k_pages and same[2] is v_pages
    size, bits = k_pages.shape[2], torch.uint8 if k_pages.element_size() == 1 else k_pages.dtype
    for token, slot in ((token, slot) for token, slot in enumerate(slots.tolist()) if slot >= 0):
        for pages, old, new, scale in ((k_pages, before[0], k, key_scale), (v_pages, before[1], v, value_scale)):
            divided = (new[token].float() / scale).clamp(-448, 448) if scale != 1.0 else new[token]
            expected = divided.to(pages.dtype).view(bits)
            assert torch.equal(pages.view(bits)[slot // size, :, slot % size], expected)
            old.view(bits)[slot // size, :, slot % size] = expected
    assert torch.equal(before[0].view(bits), k_pages.view(bits))
    assert torch.equal(before[1].view(bits), v_pages.view(bits))


@cases(quantize_mxfp8)
def test_quantize_mxfp8_leaves_at_most_half_a_step_of_error(sample):
    (x,) = sample.args
    codes, scales = quantize_mxfp8.reference(x)
    assert codes.shape == x.shape and scales.shape == (x.shape[0], x.shape[1] // 32)
    kept = mxfp8.dequantize(codes, scales).double()
    groups = x.double().abs().unflatten(-1, (-1, 32))
    step = torch.exp2(scales.double() - 127)[..., None]  # of the group; its largest elements lie in steps of 32
    bound = torch.maximum(groups * 2.0**-4, step * 2.0**-10).clamp(max=1e38)
    saturated = groups > 448 * step
    assert ((kept - x.double()).abs().unflatten(-1, (-1, 32)) <= bound)[~saturated].all()
    assert ((kept.abs().unflatten(-1, (-1, 32)) == 448 * step) | ~saturated).all()


@cases(route)
def test_route_takes_the_largest_and_normalises_their_weights(sample):
    (operands,) = sample.args
    ids, weights = route.reference(operands)
    logits = operands.x.double() @ operands.weight.double().T + operands.bias.double()
    num_tokens = len(operands.x) if operands.num_tokens is None else int(operands.num_tokens)
    assert (ids[num_tokens:] == -1).all() and (weights[num_tokens:] == 0).all()
    for token in range(num_tokens):
        best = sorted(range(logits.shape[1]), key=lambda expert: -logits[token, expert])[: operands.active]
        assert ids[token].tolist() == best
        close(weights[token], logits[token, best].softmax(0))


def attend_naively(operands):
    """Computes one query and head at a time, in Python; every 37th row of long requests, NaN elsewhere."""
    q, k_pages, v_pages, sinks = operands.q, operands.k_pages, operands.v_pages, operands.sinks
    table, starts, lens, window = operands.page_table, operands.query_starts, operands.kv_lens, operands.window
    y = torch.full(q.shape, float("nan"), dtype=torch.float64)
    size, shared = k_pages.shape[2], q.shape[1] // k_pages.shape[1]
    for request, held in enumerate(lens.tolist()):
        begin, end = int(starts[request]), int(starts[request + 1])
        for row in range(begin, end, 1 if end - begin < 10 else 37):
            position = held - (end - row)
            first = 0 if window is None else max(0, position - window + 1)
            seen = [(int(table[request, p // size]), p % size) for p in range(first, position + 1)]
            pages, at = (torch.tensor(part) for part in zip(*seen, strict=True))
            for head in range(0, q.shape[1], 13):
                keys = k_pages[pages, head // shared, at].double() * operands.key_scale
                values = v_pages[pages, head // shared, at].double() * operands.value_scale
                scores = keys @ q[row, head].double() * operands.scale
                total = scores.exp().sum() + (0 if sinks is None else math.exp(float(sinks[head])))
                y[row, head] = (scores.exp() / total) @ values
    return y


@cases(attention)
def test_attention_equals_a_naive_loop(sample):
    (operands,) = sample.args
    expected = attend_naively(operands)
    actual = attention.reference(replace(operands, q=operands.q.float()))
    looked = ~expected.isnan()
    assert looked.sum() > 500 and actual.isfinite().all()
    close(actual[looked], expected[looked])


@pytest.mark.parametrize("at_once", [7, 512])
def test_attention_does_not_depend_on_how_queries_are_split(at_once, monkeypatch):
    (operands,) = list(attention.make_samples(CPU))[6].args
    operands = replace(operands, q=operands.q.float())
    whole = attention.reference(operands)
    monkeypatch.setattr(sys.modules["firesteel.kernels.ops.attention"], "QUERIES_AT_ONCE", at_once)
    close(attention.reference(operands), whole, 1e-6)


def test_window_excludes_129th_token():
    k_pages, v_pages = torch.zeros(3, 1, 64, 64), torch.zeros(3, 1, 64, 64)
    v_pages.view(-1, 64)[0] = 1.0  # the value of the first token alone
    table, starts = torch.tensor([[0, 1, 2]]), torch.tensor([0, 1])
    for held, sees in ((128, True), (129, False)):
        operands = AttentionOperands(
            q=torch.ones(1, 1, 64),
            k_pages=k_pages,
            v_pages=v_pages,
            page_table=table,
            query_starts=starts,
            kv_lens=torch.tensor([held]),
            sinks=None,
            window=128,
            scale=0.125,
        )
        y = attention.reference(operands)
        assert (y.abs().max() > 0) == sees


def test_attention_never_reads_pages_before_the_window():
    k_pages, v_pages = torch.randn(2, 9, 1, 16, 64)
    operands = AttentionOperands(
        q=torch.randn(1, 1, 64),
        k_pages=k_pages,
        v_pages=v_pages,
        page_table=torch.arange(9)[None],
        query_starts=torch.tensor([0, 1]),
        kv_lens=torch.tensor([144]),
        sinks=None,
        window=20,
        scale=0.125,
    )
    released = replace(operands, page_table=torch.tensor([[0] * 7 + [7, 8]]))
    assert torch.equal(attention.reference(released), attention.reference(operands))


@cases(moe_matmul, lambda sample: sample.args[0].activation == "bf16")
def test_moe_matmul_equals_a_loop_over_tokens_and_experts(sample):
    """test_moe_matmul.py tests the other activations."""
    (operands,) = sample.args
    x, ids, weights, experts, limit = operands.x, operands.ids, operands.weights, operands.experts, operands.limit
    y = moe_matmul.reference(replace(operands, x=x.float()))
    for token in {0, x.shape[0] // 2, x.shape[0] - 1}:
        expected = torch.zeros(x.shape[1], dtype=torch.float64)
        for expert, share in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            if expert < 0:
                continue
            gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert]).double()
            down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert]).double()
            inner = gate_up @ x[token].double() + experts.gate_up_bias[expert].double()
            gate, up = inner.view(-1, 2).unbind(-1)
            gate, up = gate.minimum(torch.tensor(limit)), up.clamp(-limit, limit)
            mixed = gate / (1 + torch.exp(-1.702 * gate)) * (up + 1)
            expected += share * (down @ mixed + experts.down_bias[expert].double())
        close(y[token], expected)
