"""Plain stand-ins of the decode ops."""
import torch
from firesteel.kernels.attention import attention
from firesteel.kernels.linear import linear
from firesteel.kernels.moe_matmul import swiglu
from firesteel.kernels.rms_norm import rms_norm
from firesteel.kernels.rope_kv_write import rope_kv_write
from firesteel.formats import mxfp4
from firesteel.model.decode import DecodeOps


def norm(r, weight, eps):
    return rms_norm.reference(r, None, weight, eps)[0]


def qkv(r, weight_norm, eps, weight, bias, table, positions, slots, k_pages, v_pages, dependent=False):
    d, k = k_pages.shape[3], k_pages.shape[1]
    y = linear.reference(norm(r, weight_norm, eps), weight, bias).unflatten(-1, (-1, d))
    q, key, value = y.split([y.shape[1] - 2 * k, k, k], dim=1)
    return rope_kv_write.reference(q, key, value, positions, table, k_pages, v_pages, slots)[:3]


def attend(q, k_pages, v_pages, page_table, kv_lens, sinks, window, scale, dependent=False):
    starts = torch.arange(q.shape[0] + 1)
    return attention.reference(q, k_pages, v_pages, page_table, starts, kv_lens, sinks, window, scale)


def o(mixed, weight, bias, r, dependent=False):
    r += linear.reference(mixed.flatten(1), weight, bias)
    return r


def router(r, weight_norm, eps, weight, bias, dependent=False):
    return norm(r, weight_norm, eps).float() @ weight.float().T + bias.float()


def fc1(r, weight_norm, eps, logits, experts, limit, active, dependent=False):
    x, ids = norm(r, weight_norm, eps).float(), logits.topk(active).indices
    rows = []
    for t in range(len(x)):
        for e in ids[t].tolist():
            w = mxfp4.dequantize(experts.gate_up_codes[e], experts.gate_up_scales[e])
            rows.append(swiglu(w @ x[t] + experts.gate_up_bias[e].float(), limit))
    return torch.stack(rows).unflatten(0, (len(x), active)).to(r.dtype)


def fc2(inner, logits, experts, r, dependent=False):
    chosen, ids = logits.topk(inner.shape[1])
    weights = chosen.softmax(-1)
    for t in range(len(r)):
        total = torch.zeros(r.shape[1])
        for a, e in enumerate(ids[t].tolist()):
            w = mxfp4.dequantize(experts.down_codes[e], experts.down_scales[e])
            total += weights[t, a] * (w @ inner[t, a].float() + experts.down_bias[e].float())
        r[t] += total
    return r


def lm_head(r, weight_norm, eps, weight, dependent=False):
    logits = linear.reference(norm(r, weight_norm, eps), weight, None).float()
    return logits, logits.argmax(-1)


def sample(best, embedding, token_ids, positions, kv_lens, full_slots, window_slots, full_table, window_table, page_size, r, dependent=False):
    token_ids.copy_(best)
    positions += 1
    kv_lens += 1
    for slots, table in ((full_slots, full_table), (window_slots, window_table)):
        page = table.gather(1, positions[:, None] // page_size)[:, 0]
        slots.copy_(page * page_size + positions % page_size)
    r.copy_(embedding[token_ids])


OPS = DecodeOps(qkv, attend, o, router, fc1, fc2, lm_head, sample)
