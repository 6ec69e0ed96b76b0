"""The paged drafter gives the drafts of a whole-sequence oracle, however the texts are fed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firesteel.model.drafters.eagle3 import load_eagle3
from firesteel.model.drafters.errors import DrafterError
from tests.model.drafters.eagle3_oracle import Oracle
from tests.model.drafters.heads import CPU, LAYOUTS, TARGET, Layout, new_target, write_head
from tests.model.drafters.texts import PAGE_SIZE, PAGES_EACH, Texts

PARTS = Path(__file__).with_name("eagle3_parts.py")
EACH_STATE = "speculators with norms of each state and of the output"


@pytest.fixture(scope="module")
def target():
    return new_target()


def load(directory, target, num_texts=3):
    drafter = load_eagle3(directory, target, CPU)
    drafter.attach(1 + num_texts * PAGES_EACH, PAGE_SIZE, CPU.torch_device)
    return drafter


def take(drafts, counts):
    return [row[:count].tolist() for row, count in zip(drafts, counts, strict=True)]


@pytest.mark.parametrize("name", LAYOUTS)
@torch.inference_mode()
def test_drafts_are_those_of_the_oracle(name, target, tmp_path):
    """Prompts come in chunks; drafts after the text are written, then the text goes on over them."""
    directory = write_head(tmp_path / "head", LAYOUTS[name])
    drafter, oracle = load(directory, target), Oracle(directory, target)
    assert drafter.boundaries == oracle.boundaries
    texts = Texts(drafter, 3, seed=7)
    for lens, counts in (
        ((7, 1, 12), (0, 0, 0)),
        ((5, 9, 1), (0, 3, 4)),
        ((1, 1, 3), (7, 2, 1)),
        ((8, 2, 1), (1, 0, 6)),
        ((1, 4, 2), (3, 3, 3)),
        ((2, 1, 1), (5, 7, 0)),
    ):
        drafts = drafter.draft(texts.context(lens), counts)
        assert drafts.shape == (3, max(counts)) and drafts.dtype == torch.int64
        assert take(drafts, counts) == texts.expected(oracle, counts)


@torch.inference_mode()
def test_drafts_differ_between_layouts_and_texts(target, tmp_path):
    """The comparison above would be empty if all drafts were the same token."""
    drafted = set()
    for number, layout in enumerate(LAYOUTS.values()):
        drafter = load(write_head(tmp_path / str(number), layout), target)
        drafts = drafter.draft(Texts(drafter, 3, seed=7).context((9, 11, 13)), (7, 7, 7))
        drafted |= set(drafts.flatten().tolist())
    assert len(drafted) > 20


@torch.inference_mode()
def test_padding_rows_change_nothing(target, tmp_path):
    drafter = load(write_head(tmp_path, Layout()), target)
    plain = drafter.draft(Texts(drafter, 3, seed=3).context((5, 1, 8)), (3, 3, 3))
    padded = drafter.draft(Texts(drafter, 3, seed=3).context((5, 1, 8), padding=4), (3, 3, 3))
    assert torch.equal(plain, padded)


@torch.inference_mode()
def test_request_without_rows_is_left_alone(target, tmp_path):
    directory = write_head(tmp_path, Layout())
    drafter, oracle = load(directory, target), Oracle(directory, target)
    texts = Texts(drafter, 3, seed=4)
    drafter.draft(texts.context((3, 3, 3)), (0, 0, 0))
    drafts = drafter.draft(texts.context((2, 0, 1)), (2, 0, 3))
    assert take(drafts, (2, 0, 3)) == texts.expected(oracle, (2, 0, 3))


@torch.inference_mode()
def test_request_that_drafts_less_keeps_within_its_pages(target, tmp_path):
    """A table that ends with the text of a request that drafts nothing is enough for it."""
    directory = write_head(tmp_path, Layout())
    drafter, oracle = load(directory, target), Oracle(directory, target)
    texts = Texts(drafter, 3, seed=5)
    texts.table = texts.table[:, :3].clone()  # the second text needs three pages for its drafts
    texts.table[0, 2:] = 0  # the first text has 8 tokens in two pages; page 0 belongs to nobody
    drafts = drafter.draft(texts.context((8, 5, 6)), (1, 7, 0))
    assert take(drafts, (1, 7, 0)) == texts.expected(oracle, (1, 7, 0))
    assert not drafter.k_pages[0].any() and not drafter.v_pages[0].any()


@torch.inference_mode()
def test_writes_reach_as_far_as_promised(target, tmp_path):
    drafter = load(write_head(tmp_path, Layout()), target)
    texts = Texts(drafter, 1, seed=6)
    drafter.draft(texts.context((5,)), (drafter.most_tokens,))
    written = drafter.k_pages[texts.table[0]].transpose(1, 2).flatten(0, 1).flatten(1).any(-1)
    assert written.nonzero().flatten().tolist() == list(range(5 + drafter.reach))


@torch.inference_mode()
def test_drafts_end_at_the_last_position_of_the_context(target, tmp_path):
    """The rope table reaches beyond the target's context as far as drafts do."""
    drafter = load(write_head(tmp_path, Layout()), target)
    assert drafter.table.shape[0] == TARGET.max_context + drafter.reach


def test_page_bytes_are_those_allocated(target, tmp_path):
    drafter = load(write_head(tmp_path, Layout()), target)
    pages = drafter.k_pages.shape[0]
    assert drafter.page_bytes(PAGE_SIZE) * pages == drafter.k_pages.nbytes + drafter.v_pages.nbytes


def test_more_tokens_than_a_head_drafts_are_refused(target, tmp_path):
    drafter = load(
        write_head(
            tmp_path / "nvidia--gpt-oss-120b-Eagle3-throughput", LAYOUTS["final state without fc, all shared"]
        ),
        target,
    )
    assert drafter.most_tokens == 1 and drafter.reach == 0
    with pytest.raises(ValueError, match="2 tokens"):
        drafter.draft(Texts(drafter, 1, seed=1).context((3,)), (2,))


@torch.inference_mode()
def test_compute_depends_on_the_values_of_its_tensors_alone(target, tmp_path):
    """What a graph replays: the same tensors with other values, without another call of `draft`."""
    directory = write_head(tmp_path, Layout())
    drafter, oracle = load(directory, target), Oracle(directory, target)
    first, second = Texts(drafter, 2, seed=8), Texts(drafter, 2, seed=9)
    wanted = torch.tensor([3, 2])
    context, other = first.context((4, 4)), second.context((4, 4))
    drafter.compute(context, wanted, 3)
    for name in ("token_ids", "positions", "query_starts", "kv_lens"):
        getattr(context.batch, name).copy_(getattr(other.batch, name))
    context.batch.full.page_table.copy_(other.batch.full.page_table)
    context.batch.full.slots.copy_(other.batch.full.slots)
    context.features.copy_(other.features)
    context.followers.copy_(other.followers)
    context.next_ids.copy_(other.next_ids)
    wanted.copy_(torch.tensor([1, 3]))
    assert take(drafter.compute(context, wanted, 3), (1, 3)) == second.expected(oracle, (1, 3))


def test_kernels_of_a_gpu_take_its_operands(run_interpreted, tmp_path):
    layout = replace(LAYOUTS[EACH_STATE], head_dim=32, num_heads=2, num_kv_heads=1)
    run_interpreted(PARTS, str(write_head(tmp_path, layout)))


def test_heads_that_the_kernels_of_a_gpu_refuse_are_named(target, tmp_path):
    gpu = replace(CPU, capability=(9, 0))
    with pytest.raises(DrafterError, match=r"config.json: head_dim = 8 .* use --device cpu"):
        load_eagle3(write_head(tmp_path, Layout()), target, gpu)
