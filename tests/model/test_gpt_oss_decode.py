"""Consecutive steps of decode ops: equal to the network on a CPU, and on a GPU equal bits for every launch mode."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.decode.attention_operands import DecodeAttentionOperands
from firesteel.kernels.decode.fc1 import DecodeFc1Operands
from firesteel.kernels.decode.fc2 import DecodeFc2Operands
from firesteel.kernels.decode.lm_head import DecodeLmHeadOperands, cuda_decode_lm_head, find_best
from firesteel.kernels.decode.o import DecodeOOperands
from firesteel.kernels.decode.qkv_operands import DecodeQkvOperands
from firesteel.kernels.decode.router import DecodeRouterOperands
from firesteel.kernels.decode.sample import DecodeSampleOperands
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec, rope_table
from firesteel.kernels.stream.build import with_delays
from firesteel.model.decode_ops import NAMES, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS, ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Batch, KvView

PAGE_SIZE, WIDTH = 16, 24  # tokens per page; pages per request
DENSE = ("qkv", "o", "lm_head")
SMALL = ModelSpec(
    num_layers=4,
    hidden_size=256,
    intermediate_size=192,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    num_experts=8,
    num_active=4,
    vocab_size=4096,
    windows=(128, None, 128, None),
    rope=RopeSpec(theta=150000.0),
    max_context=384,
)
BIG = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=PRESETS["gpt-oss-120b"].windows[:4])


class Steps:
    """Requests of different lengths; each step advances them by one token."""

    def __init__(self, spec, weights, device, tokens):
        self.spec, self.weights, self.device = spec, weights, device
        where = device.torch_device
        generator = torch.Generator(where).manual_seed(1)
        self.cache = new_cache(spec, 2 * tokens * WIDTH, PAGE_SIZE, device, device.dtype)
        for pages in (*self.cache.keys, *self.cache.values):
            pages.normal_(generator=generator)
        self.table = rope_table(spec.rope, spec.head_dim, PAGE_SIZE * WIDTH, where)
        order = torch.randperm(2 * tokens * WIDTH, device=where, generator=generator).view(2, tokens, WIDTH)
        self.full_table, self.window_table = (table.clone() for table in order)
        self.positions = torch.tensor([130, 15, 0, 47, 200, 1, 127, 128][:tokens], device=where)
        self.token_ids = torch.arange(5, 5 + tokens, device=where)
        self.kv_lens, self.num_stored = self.positions + 1, self.positions.clone()
        self.full_slots, self.window_slots = map(self.find_slots, (self.full_table, self.window_table))
        self.r = weights.embedding[self.token_ids].to(device.dtype)

    def find_slots(self, table):
        pages = table.gather(1, self.positions[:, None] // PAGE_SIZE)[:, 0]
        return pages * PAGE_SIZE + self.positions % PAGE_SIZE

    def view(self, window):
        """Returns slots and page table of layers with this window."""
        return (self.full_slots, self.full_table) if window is None else (self.window_slots, self.window_table)

    def batch(self):
        starts = torch.arange(len(self.positions) + 1, device=self.positions.device)
        full, window = (
            KvView(page_table=table.clone(), slots=slots.clone()) for slots, table in map(self.view, (None, 128))
        )
        return Batch(
            token_ids=self.token_ids.clone(),
            positions=self.positions.clone(),
            query_starts=starts,
            kv_lens=self.kv_lens.clone(),
            full=full,
            window=window,
            logit_rows=starts[:-1],
        )

    def run(self, name="reference", dependent=False):
        """Runs a step and returns its logits."""
        asked = dict.fromkeys(NAMES, name) if name == "reference" else {}
        ops = DecodeOps.choose(self.device, Ledger(), asked=asked)
        spec, eps = self.spec, self.spec.rms_eps
        after = {"r": self.r, "dependent": dependent}
        for number, layer in enumerate(self.weights.layers):
            window = spec.windows[number]
            slots, table = self.view(window)
            pages = {"k_pages": self.cache.keys[number], "v_pages": self.cache.values[number]}
            qkv = DecodeQkvOperands(
                norm=layer.input_norm,
                eps=eps,
                weight=layer.qkv,
                bias=layer.qkv_bias,
                table=self.table,
                positions=self.positions,
                slots=slots,
                **pages,
                **after,
            )
            q, *_ = ops.qkv(qkv)
            attention = DecodeAttentionOperands(
                q=q,
                **pages,
                page_table=table,
                kv_lens=self.kv_lens,
                num_stored=self.num_stored,
                sinks=layer.sinks,
                window=window,
                scale=spec.head_dim**-0.5,
                dependent=dependent,
            )
            mixed = ops.attention(attention)
            ops.o(DecodeOOperands(mixed=mixed, weight=layer.o, bias=layer.o_bias, **after))
            norm = {"norm": layer.post_norm, "eps": eps}
            router = DecodeRouterOperands(weight=layer.router, bias=layer.router_bias, **norm, **after)
            routed = {"logits": ops.router(router), "experts": layer.experts}
            limits = {"limit": spec.swiglu_limit, "active": spec.num_active}
            inner = ops.fc1(DecodeFc1Operands(**norm, **routed, **limits, **after))
            ops.fc2(DecodeFc2Operands(inner=inner, **routed, **after))
        lm_head = DecodeLmHeadOperands(norm=self.weights.norm, eps=eps, weight=self.weights.lm_head, **after)
        logits, best = ops.lm_head(lm_head)
        sample = DecodeSampleOperands(
            best=best,
            embedding=self.weights.embedding,
            token_ids=self.token_ids,
            positions=self.positions,
            kv_lens=self.kv_lens,
            num_stored=self.num_stored,
            full_slots=self.full_slots,
            window_slots=self.window_slots,
            full_table=self.full_table,
            window_table=self.window_table,
            page_size=PAGE_SIZE,
            largest=torch.empty(len(self.positions), device=self.r.device),
            **after,
        )
        ops.sample(sample)
        return logits

    def state(self):
        """Returns clones of everything that a step writes."""
        pages = (*self.cache.keys, *self.cache.values)
        return [tensor.clone() for tensor in (self.token_ids, self.positions, self.full_slots, self.r, *pages)]


@pytest.mark.parametrize("dense", [(), DENSE])
def test_reference_steps_equal_greedy_steps_of_the_network(dense):
    device = find_device("cpu")
    spec = replace(SMALL, mxfp4_layers=dense)
    weights = synthetic_weights(spec, device, seed=1)
    mine, theirs = Steps(spec, weights, device, 3), Steps(spec, weights, device, 3)
    model = GptOss(spec, weights, Kernels(device, {}, Ledger()), device, max_context=PAGE_SIZE * WIDTH)
    with torch.inference_mode():
        for _ in range(3):
            batch = mine.batch()
            expected = model.logits(model.forward(batch, theirs.cache))
            logits = mine.run()
            torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
            assert torch.equal(mine.token_ids, expected.argmax(-1))
            assert torch.equal(mine.positions, batch.positions + 1)


gpu = pytest.mark.gpu


@pytest.fixture(scope="module", params=["small", "small packed", "big", "big packed"])
def model(request):
    """(spec, weights, device) on a GPU that has dependent launch."""
    device = find_device("cuda")
    if device.capability < (9, 0):
        pytest.skip(f"{device.name} has no dependent launch")
    spec = SMALL if "small" in request.param else BIG
    spec = replace(spec, mxfp4_layers=DENSE if "packed" in request.param else ())
    return spec, synthetic_weights(spec, device, seed=1), device


def run_steps(model, tokens, count, *, dependent=False, delays=False):
    steps = Steps(*model, tokens)
    with torch.inference_mode(), with_delays() if delays else nullcontext():
        logits = [steps.run("cuda", dependent) for _ in range(count)]
    return [torch.stack(logits), *steps.state()]


def assert_same_bits(actual, expected):
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(actual, expected, strict=True))


@gpu
@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_dependent_launch_changes_no_bit(model, tokens):
    plain = run_steps(model, tokens, 40)
    assert_same_bits(plain, run_steps(model, tokens, 40))
    assert_same_bits(plain, run_steps(model, tokens, 40, dependent=True))


@gpu
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_delays_change_no_bit(model, tokens):
    plain = run_steps(model, tokens, 10)
    for dependent in (False, True):
        assert_same_bits(plain, run_steps(model, tokens, 10, dependent=dependent, delays=True))


@gpu
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_replayed_graph_gives_the_bits_of_eager_steps(model, tokens, dependent):
    eager = run_steps(model, tokens, 20)
    steps, graph = Steps(*model, tokens), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.inference_mode():
        with torch.cuda.graph(graph):
            static = steps.run("cuda", dependent)
        logits = []
        for _ in range(20):
            graph.replay()
            logits.append(static.clone())
    assert_same_bits(eager, [torch.stack(logits), *steps.state()])


@gpu
def test_best_of_each_cta_is_that_of_its_logits(model):
    spec, weights, device = model
    r = torch.randn(3, spec.hidden_size, device=device.torch_device).bfloat16()
    operands = DecodeLmHeadOperands(r=r, norm=weights.norm, eps=spec.rms_eps, weight=weights.lm_head)
    logits, best = cuda_decode_lm_head(operands)
    assert torch.equal(best, find_best(logits, best.shape[0]))
