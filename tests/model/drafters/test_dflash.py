"""The paged DFlash drafter against an oracle without pages, and end to end on features that the target writes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.model.drafters.dflash import load_dflash
from firesteel.model.drafters.drafter import DraftContext
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Batch, KvView, Taps
from tests.model.drafters.dflash_oracle import Oracle, draw_config, draw_tensors, write_drafter

CPU = find_device("cpu")
TARGET = ModelSpec(
    num_layers=4,
    hidden_size=64,
    intermediate_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=997,
    windows=(8, None, 8, None),
    rope=RopeSpec(theta=150000.0),
    max_context=256,
)
NUM_PAGES = 64
PARTS = Path(__file__).with_name("dflash_parts.py")
CASES = {
    "like the published ones": {},
    "no bias, plain rope": {"attention_bias": False, "rope_scaling": None},
    "odd span, one layer": {"block_size": 5, "num_hidden_layers": 1},
    "a single drafted token": {"block_size": 2},
    "many heads of one kv head": {"num_attention_heads": 16, "num_key_value_heads": 1, "block_size": 10},
    "a head per kv head, odd sizes": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 6,
        "intermediate_size": 51,
        "num_hidden_layers": 3,
        "dflash_config": {"mask_token_id": 996, "target_layer_ids": [3, 0, 1]},
    },
}


class WatchedModel(GptOss):
    """Keeps the latest logits."""

    def project(self, x, weight, bias):
        y = super().project(x, weight, bias)
        if weight is self.weights.lm_head:
            self.latest = y
        return y


@pytest.fixture(scope="module")
def model():
    weights = synthetic_weights(TARGET, CPU, seed=1)
    return WatchedModel(TARGET, weights, Kernels(CPU, {}, Ledger()), CPU, max_context=256)


class World:
    """Requests whose texts grow while tokens are drafted and rejected, as the engine would have them."""

    def __init__(self, model, folder, changes, seed, page_size=16):
        config = draw_config(TARGET, **changes)
        tensors = draw_tensors(config, seed)
        write_drafter(folder, config, tensors)
        self.drafter = load_dflash(folder, model, CPU)
        self.drafter.attach(NUM_PAGES, page_size, CPU.torch_device)
        for pages in (*self.drafter.keys, *self.drafter.values):
            pages.fill_(torch.nan)  # what was never written must not matter
        self.oracle = Oracle(config, tensors, model.weights.embedding, model.weights.lm_head)
        self.random = torch.Generator().manual_seed(seed)
        self.page_size = page_size
        self.features = [torch.zeros(0, self.drafter.spec.num_features) for _ in range(3)]
        self.tables = torch.randperm(NUM_PAGES, generator=self.random)[:60].view(3, 20)

    def draw(self, low, high):
        return int(torch.randint(low, high, (), generator=self.random))

    def step(self, grown, counts):
        """Adds grown[r] tokens to request r, and compares the tokens drafted after them with the oracle's."""
        rows, positions, slots = [], [], []
        for request, count in enumerate(grown):
            fresh = torch.randn(count, self.drafter.spec.num_features, generator=self.random)
            places = torch.arange(count) + len(self.features[request])
            pages = self.tables[request, places // self.page_size]
            self.features[request] = torch.cat((self.features[request], fresh))
            rows.append(fresh)
            positions.append(places)
            slots.append(pages * self.page_size + places % self.page_size)
        anchors = [self.draw(0, TARGET.vocab_size) for _ in grown]
        view = KvView(page_table=self.find_tables(counts), slots=torch.cat(slots))
        batch = Batch(
            token_ids=torch.zeros(sum(grown), dtype=torch.int64),
            positions=torch.cat(positions),
            query_starts=torch.tensor([0, *grown]).cumsum(0),
            kv_lens=torch.tensor([len(rows) for rows in self.features]),
            full=view,
            window=view,
            logit_rows=torch.zeros(0, dtype=torch.int64),
        )
        context = DraftContext(
            batch=batch,
            features=torch.cat(rows),
            followers=batch.token_ids,
            next_ids=torch.tensor(anchors),
        )
        with torch.inference_mode():
            drafted = self.drafter.draft(context, counts)
        assert drafted.shape == (len(counts), max(counts)) and drafted.dtype == torch.int64
        for request, count in enumerate(counts):
            if not count:
                continue
            actual = self.drafter.model.latest.unflatten(0, (-1, max(counts)))[request]
            expected = self.oracle.draft(self.features[request], anchors[request])[: max(counts)]
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)
            assert drafted[request, :count].tolist() == actual.argmax(-1)[:count].tolist()
        return drafted

    def find_tables(self, counts):
        """Returns page tables that end with the text of a request that does not draft: more belongs to others."""
        tables = self.tables.clone()
        for request, count in enumerate(counts):
            if not count:
                tables[request, -(-len(self.features[request]) // self.page_size) :] = self.tables[request - 1, 0]
        return tables


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_drafts_are_the_oracles_while_texts_grow_and_drafts_are_rejected(model, tmp_path, case, seed):
    world = World(model, tmp_path, CASES[case], seed)
    most = world.drafter.most_tokens
    world.step([37, 1, 20], [most, most, most])
    for _ in range(6):
        world.step([world.draw(1, most + 2) for _ in range(3)], [world.draw(1, most + 1) for _ in range(3)])


def test_a_prompt_in_chunks_drafts_only_at_its_end(model, tmp_path):
    world = World(model, tmp_path, {}, 3)
    for chunk, count in ((17, 0), (31, 0), (1, 0), (14, 7)):
        world.step([chunk, 2, 3], [count, 4, 0])


def test_requests_without_drafts_keep_pages_of_others(model, tmp_path):
    world = World(model, tmp_path, {}, 4)
    for counts in ([0, 3, 0], [2, 0, 0], [0, 0, 7], [1, 0, 2], [0, 7, 1], [7, 7, 7]):
        world.step([world.draw(1, 20) for _ in range(3)], counts)


def test_nothing_is_drafted_for_counts_of_zero_but_the_context_is_stored(model, tmp_path):
    world = World(model, tmp_path, {}, 5)
    assert world.step([9, 8, 7], [0, 0, 0]).shape == (3, 0)
    world.step([0, 0, 0], [7, 7, 7])


@pytest.mark.parametrize("num_requests", [1, 3])
def test_queries_have_lengths_of_their_own(model, tmp_path, num_requests):
    """Attention on a GPU refuses one length that is seen by all queries of a request, with a stride of 0."""
    drafter = World(model, tmp_path, {"num_attention_heads": 16, "num_key_value_heads": 1}, 5).drafter
    tables, ones = torch.zeros(num_requests, 20, dtype=torch.int64), torch.ones(num_requests, dtype=torch.int64)
    lens = drafter.lay_out(40 * ones, tables, ones).kv_lens
    assert lens.is_contiguous() and lens.tolist() == [40 + drafter.spec.span] * len(lens)
    assert len(lens) > num_requests, "one query per request has no view to copy"


@pytest.mark.parametrize("page_size", [8, 64])
def test_spans_across_the_ends_of_pages(model, tmp_path, page_size):
    world = World(model, tmp_path, {}, 6, page_size)
    for _ in range(8):
        world.step([5, 3, 7], [7, 7, 7])


def test_drafts_depend_on_the_context(model, tmp_path):
    """Guards the comparisons above: an oracle that ignored its context would agree with a broken drafter."""
    world = World(model, tmp_path, {}, 7)
    features = torch.randn(2, 30, world.drafter.spec.num_features, generator=world.random)
    changed = features[0].clone()
    changed[11] = features[1, 11]
    plain, other = world.oracle.draft(features[0], 3), world.oracle.draft(changed, 3)
    assert (plain - other).abs().amax(-1).min() > 0.05


def test_text_that_fills_the_context_can_draft(model, tmp_path):
    world = World(model, tmp_path, {}, 8)
    world.step([256, 1, 1], [7, 7, 7])


@pytest.mark.parametrize(
    "changes", [{"head_dim": 16}, {"num_attention_heads": 34, "num_key_value_heads": 2}], ids=str
)
def test_heads_that_the_kernels_of_a_gpu_refuse_are_named(model, tmp_path, changes):
    """They were loaded, and the first draft failed in the attention op."""
    config = draw_config(TARGET) | changes
    write_drafter(tmp_path, config, draw_tensors(config, 1))
    load_dflash(tmp_path, model, CPU)
    with pytest.raises(DrafterError, match=r"config.json: head_dim = \d+ .* use --device cpu"):
        load_dflash(tmp_path, model, replace(CPU, capability=(9, 0)))


def test_facts_for_the_engine(model, tmp_path):
    drafter = World(model, tmp_path, {}, 9).drafter
    assert (drafter.name, drafter.boundaries, drafter.most_tokens, drafter.reach) == ("dflash", (1, 3), 7, 8)
    held = sum(pages.nbytes for pages in (*drafter.keys, *drafter.values))
    assert drafter.page_bytes(16) * NUM_PAGES == held


def test_features_are_the_targets_residuals_after_the_named_layers(model, tmp_path):
    """The whole way: taps of a target step are the oracle's outputs of layers 0 and 2."""
    world = World(model, tmp_path, {}, 10)
    token_ids = torch.randint(TARGET.vocab_size, (21,), generator=world.random)
    places = torch.arange(21)
    full, window = (
        KvView(
            page_table=torch.tensor([pages]),
            slots=torch.tensor(pages).repeat_interleave(16)[:21] * 16 + places % 16,
        )
        for pages in ([0, 1, 2], [3, 4, 5])
    )
    batch = Batch(
        token_ids=token_ids,
        positions=places,
        query_starts=torch.tensor([0, 21]),
        kv_lens=torch.tensor([21]),
        full=full,
        window=window,
        logit_rows=torch.tensor([20]),
    )
    taps = Taps(boundaries=world.drafter.boundaries, rows=torch.full((21, 128), torch.nan))
    with torch.inference_mode():
        model.forward(batch, new_cache(TARGET, 6, 16, CPU, torch.float32), taps=taps)
        context = DraftContext(batch=batch, features=taps.rows, followers=token_ids, next_ids=torch.tensor([42]))
        drafted = world.drafter.draft(context, [7])
        outputs = [
            model.forward_residual(
                Batch(**{name: getattr(batch, name) for name in Batch.__slots__} | {"logit_rows": places}),
                new_cache(TARGET, 6, 16, CPU, torch.float32),
                layers,
            )
            for layers in (1, 3)  # layers 0 and 2 are the last of 1 and 3 layers
        ]
    expected = world.oracle.draft(torch.cat(outputs, 1), 42).argmax(-1)
    assert drafted[0].tolist() == expected.tolist()


def test_triton_drafts_what_the_references_draft(run_interpreted):
    run_interpreted(PARTS)
