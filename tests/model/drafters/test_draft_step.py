"""Padded drafting steps draft what the network drafts without padding, and padding has no effect."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from firesteel.errors import UserError
from firesteel.model.drafters.draft_sizes import DraftSize, DraftSizes
from firesteel.model.drafters.draft_step import DraftStep
from tests.model.drafters.draft_plans import context_of, draw_plan, fill, host_of, load_network, pages_of, take
from tests.model.drafters.heads import CPU, LAYOUTS, TARGET, new_target

PAGE, PAGES, FEATURES = 4, 90, 50
IDLE = PAGES
MOST = 7
NETWORKS = {
    "eagle3": LAYOUTS["default boundaries, own embedding, draft vocabulary"],
    "eagle3 of the final state": LAYOUTS["final state without fc, all shared"],
    "eagle3 with norms": LAYOUTS["speculators with norms of each state and of the output"],
    "dflash": {},
    "dflash with an odd span": {"block_size": 5, "num_hidden_layers": 1},
}
CASES = {
    "one row": ([(1, 9)], [3]),
    "as many rows as a request may have": ([(8, 30)], [7]),
    "one draft, four requests": ([(1, 5), (2, 17), (8, 8), (1, 40)], [0, 0, 2, 0]),
    "as many requests as the step has": ([(1, 5), (2, 17), (3, 3), (1, 40)], [3, 1, 2, 4]),
    "different numbers of drafts": ([(4, 12), (1, 1), (2, 33)], [1, 4, 0]),
    "nothing but rows": ([(4, 12), (1, 1)], [0, 0]),
    "text that fills the context": ([(2, 96), (3, 20)], [0, 3]),
}


@pytest.fixture(scope="module", params=NETWORKS)
def drafter(request, tmp_path_factory):
    drafter = load_network(tmp_path_factory.mktemp("network"), NETWORKS[request.param], new_target(), CPU)
    drafter.attach(PAGES + 1, PAGE, CPU.torch_device)
    return drafter


@pytest.fixture
def features(drafter):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(FEATURES, len(drafter.boundaries) * TARGET.hidden_size, generator=generator)


def sizes_of(drafter):
    return DraftSizes(min(MOST, drafter.most_tokens), 4, is_one_pass=drafter.is_one_pass)


def new_step(drafter, features, size):
    return DraftStep(drafter, size, num_pages=TARGET.max_context // PAGE, idle_page=IDLE, features=features)


def draw(drafter, case, seed):
    """Returns a plan, its counts, which are no more than the network drafts, and the numbers of its step."""
    lens, counts = CASES[case]
    most = sizes_of(drafter).most
    lens, counts = [(min(rows, most + 1), held) for rows, held in lens], [min(count, most) for count in counts]
    plan = draw_plan(lens, counts, drafter, page_size=PAGE, pages=PAGES, vocabulary=TARGET.vocab_size, seed=seed)
    return plan, counts, host_of(plan, counts, drafter, page_size=PAGE, num_features=FEATURES, seed=seed)


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_padded_step_is_the_network(drafter, features, case):
    """The second plan finds leftovers of the first in its inputs."""
    plan, counts, _ = draw(drafter, case, 0)
    step = new_step(drafter, features, sizes_of(drafter).find(len(plan.spans), max(counts)))
    drafts = set()
    for seed in range(2):
        plan, counts, host = draw(drafter, case, seed)
        fill(drafter, IDLE)
        step.load(host)
        padded = take(step.run(), counts)
        left = [pages.clone() for pages in pages_of(drafter)]
        fill(drafter, IDLE)
        plain = drafter.draft(context_of(plan, host, features, drafter, PAGE), counts)
        assert padded == take(plain, counts)
        drafts.add(str(padded))
        for mine, theirs in zip(left, pages_of(drafter), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert len(drafts) == 2 or not any(counts), "drafts depend on the plan"


@torch.inference_mode()
def test_padding_stores_nothing_and_the_idle_page_stays_empty(drafter, features):
    plan, counts, host = draw(drafter, "different numbers of drafts", 0)
    step = new_step(drafter, features, sizes_of(drafter).find(4, max(counts)))
    for pages in pages_of(drafter):
        pages.zero_()
    step.load(host)
    step.run()
    owned = {page for span in plan.spans for page in span.full_pages}
    others = torch.tensor([page for page in range(PAGES + 1) if page not in owned])
    for pages in pages_of(drafter):
        assert pages.any() and not pages[others].any()


@torch.inference_mode()
def test_step_at_rest_stores_nothing(drafter, features):
    for size in sizes_of(drafter).list_all():
        step = new_step(drafter, features, size)
        _, counts, host = draw(drafter, "one row", 0)
        step.load(replace(host, counts=np.minimum(counts, size.drafted)))
        before = [pages.clone() for pages in pages_of(drafter)]
        step.rest()
        assert step.run().shape == (size.requests, size.drafted)
        assert all(torch.equal(now, old) for now, old in zip(pages_of(drafter), before, strict=True))


def test_numbers_that_do_not_fit_are_refused(drafter, features):
    _, _, host = draw(drafter, "different numbers of drafts", 0)
    for size in (DraftSize(2, 16, 4), DraftSize(4, 5, 4), DraftSize(4, 16, 2)):
        with pytest.raises(UserError, match=r"a step that drafts . tokens for . requests .* 4 for 3 of 7"):
            new_step(drafter, features, size).load(host)


def watch(step):
    """Returns a list of what the step gives to the network from now on."""
    seen = []
    step.drafter = type("Seeing", (), {"compute": lambda _, *inputs: seen.append(inputs)})()
    return seen


def test_padding_requests_meet_only_the_idle_page(drafter, features):
    _, _, host = draw(drafter, "different numbers of drafts", 0)
    step = new_step(drafter, features, sizes_of(drafter).find(4, 4))
    seen = watch(step)
    step.load(host)
    step.run()
    [(context, wanted, _)] = seen
    batch, width = context.batch, host.batch.full_table.shape[1]
    assert (batch.full.page_table[3] == IDLE).all() and (batch.full.page_table[:3, width:] == IDLE).all()
    assert batch.full.page_table[:3, :width].tolist() == host.batch.full_table.tolist()
    assert batch.kv_lens.tolist() == [12, 1, 33, 1] and wanted.tolist() == [1, 4, 0, 0]
    assert batch.query_starts.tolist() == [0, 4, 5, 7, 7] and (batch.full.slots[7:] == -1).all()


def test_every_input_begins_aligned(drafter, features):
    """Triton recompiles a kernel for a pointer of a different alignment."""
    step = DraftStep(drafter, DraftSize(3, 7, 2), num_pages=23, idle_page=IDLE, features=features)
    seen = watch(step)
    step.run()
    [(context, wanted, most)] = seen
    batch, table = context.batch, context.batch.full.page_table
    inputs = [batch.positions, batch.query_starts, batch.kv_lens, batch.full.slots, context.followers]
    inputs += [context.next_ids, wanted, *table]
    assert all((part.data_ptr() - part.untyped_storage().data_ptr()) % 128 == 0 for part in inputs)
    assert all(part.is_contiguous() for part in inputs) and table.shape == (3, 23) and most == 2
