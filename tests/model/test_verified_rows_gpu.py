"""Rows of one request in a step on a GPU: kernels compared with references, and all launch modes bit for bit."""

from dataclasses import replace

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.proof.verify import POISON
from firesteel.measure.decode.steps import fill_pages, lay_out
from firesteel.measure.decode.variants import StepVariant, compare_variants, list_variants
from firesteel.measure.ops.memory import free_memory
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import NAMES, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph
from firesteel.model.network_step import NetworkStep
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Taps
from tests.model.test_decode_gpu import LARGEST_ERROR, SMALL, SPEC, compare
from tests.model.verified_rows import prompts_of, rows_of

pytestmark = pytest.mark.gpu

# (tokens held, rows) of each request; a page has 64 tokens, and attention is divided differently beyond 12288
ROWS = {
    "one request": [(1000, 4)],
    "eight rows across a page": [(2044, 8)],
    "from the first token on": [(0, 5)],
    "three requests": [(126, 4), (300, 1), (62, 3)],
    "joined in memory": [(12_300, 3), (63, 2)],
}
BOUNDARIES = (2, 4)


@pytest.fixture(scope="module")
def device():
    return find_device("cuda")


@pytest.fixture(scope="module", params=[SMALL, SPEC], ids=["kindling's widths", "120b widths"])
def model(request, device):
    free_memory(device)
    spec = replace(request.param, max_context=16_384)
    weights = synthetic_weights(spec, device, seed=11)
    return GptOss(spec, weights, Kernels(device, {}, Ledger()), device, max_context=spec.max_context)


class Case:
    """Pages of random keys and values, and the tokens to verify."""

    def __init__(self, model, device, requests, *, dtype=torch.bfloat16, room=16):
        self.model, self.device, self.dtype = model, device, dtype
        self.contexts = [held for held, _ in requests]
        self.pages = lay_out(self.contexts, room=8 + room, page_size=64, window=128, seed=0)
        self.drafts = [[17 * number + row for row in range(rows)] for number, (_, rows) in enumerate(requests)]
        self.num_rows = sum(rows for _, rows in requests)

    def new_cache(self):
        cache = new_cache(self.model.spec, self.pages.count + 1, 64, self.device, self.dtype)
        fill_pages(cache, seed=0)
        return cache

    def new_taps(self):
        width = len(BOUNDARIES) * self.model.spec.hidden_size
        return Taps(
            boundaries=BOUNDARIES, rows=torch.zeros(self.num_rows, width, dtype=torch.bfloat16, device="cuda")
        )

    def fused(self, implementation="cuda", taps=None):
        """Opens a loaded step over fresh pages; "reference" runs the references of all ops."""
        asked = dict.fromkeys(NAMES, implementation) if implementation == "reference" else {}
        ops = DecodeOps.choose(self.device, self.model.kernels.ledger, asked=asked)
        step = DecodeStep(
            self.model, self.new_cache(), ops, num_requests=self.num_rows, num_pages=self.pages.width, taps=taps
        )
        step.load(rows_of(self.drafts, self.contexts, self.pages, step.cache))
        return step

    def network(self, taps=None):
        logits = torch.empty(self.num_rows, self.model.spec.vocab_size, device="cuda")
        return NetworkStep(
            self.model,
            self.new_cache(),
            num_requests=self.num_rows,
            num_pages=self.pages.width,
            idle_page=self.pages.count,
            logits=logits,
            taps=taps,
        )


@pytest.mark.parametrize("name", ROWS)
def test_each_layer_equals_the_reference(model, device, name, record_property):
    """The second step runs without a new load: every row writes its next position."""
    case = Case(model, device, ROWS[name])
    comparison = compare(case.fused(), case.fused("reference"), 2)
    record_property("comparison", str(comparison))
    print(comparison)
    assert max(*comparison.layers, comparison.written, comparison.logits) <= LARGEST_ERROR, str(comparison)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
@pytest.mark.parametrize("has_taps", [False, True], ids=["plain", "taps"])
@pytest.mark.parametrize("name", ROWS)
def test_every_launch_mode_gives_the_same_bits(model, device, name, has_taps, dtype):
    """Covers eager and graph, with dependent launch and without, each with delays as well."""
    steps = 200
    case = Case(model, device, ROWS[name], dtype=dtype, room=steps)
    step = case.fused(taps=case.new_taps() if has_taps else None)
    ways = [*list_variants(device, KernelConfig()), StepVariant(graph=False, dependent=True)]
    compare_variants(step, ways, device, steps, delays=True)


@pytest.mark.parametrize("kind", ["fused", "network"])
@pytest.mark.parametrize("name", ROWS)
def test_graph_is_eager_with_taps(model, device, name, kind):
    case, seen = Case(model, device, ROWS[name]), []
    for is_captured in (False, True):
        taps = case.new_taps()
        step = case.fused(taps=taps) if kind == "fused" else case.network(taps)
        warm_up = None if kind == "fused" else step.warm_up
        run = step.run
        if is_captured:
            run = StepGraph(step.run, model.kernels.ledger, device, undo=lambda: None, warm_up=warm_up).replay
            fill_pages(step.cache, seed=0)
        step.load(rows_of(case.drafts, case.contexts, case.pages, step.cache))
        taps.rows.view(torch.uint8).fill_(POISON)
        logits = run().clone()
        pages = (*step.cache.keys, *step.cache.values)
        seen.append([logits, taps.rows.clone(), *(tensor[: case.pages.count].clone() for tensor in pages)])
    assert all(torch.equal(eager, graph) for eager, graph in zip(*seen, strict=True))
    assert seen[0][1].isfinite().all()


@pytest.mark.parametrize("kind", ["fused", "network"])
def test_taps_and_logits_are_close_to_those_of_a_prompt(model, device, kind):
    """Near ties may choose other experts: the median row is compared."""
    case = Case(model, device, ROWS["three requests"])
    taps, expected = case.new_taps(), case.new_taps()
    step = case.fused(taps=taps) if kind == "fused" else case.network(taps)
    step.load(rows_of(case.drafts, case.contexts, case.pages, step.cache))
    logits, cache = step.run(), case.new_cache()
    with torch.inference_mode():
        prompts = prompts_of(case.drafts, case.contexts, case.pages, cache)
        plain = model.logits(model.forward(prompts, cache, taps=expected))
    for ours, theirs in ((logits, plain), (taps.rows, expected.rows)):
        error = (ours.float() - theirs.float()).norm(dim=-1) / theirs.float().norm(dim=-1)
        assert error.median() < 0.05, error
