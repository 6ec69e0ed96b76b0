"""Counting accepted drafts; the shipped Eagle3 head's acceptance, and what remains of it with wrong wiring."""

from dataclasses import replace

import pytest
import torch

from firesteel.hub import BUILT_IN
from firesteel.llm import LLM
from firesteel.model.drafters.eagle3 import Eagle3, load_eagle3
from firesteel.model.drafters.eagle3_states import TargetStates
from firesteel.model.drafters.wiring import suspect_wiring
from kindling.acceptance import Text, compute_states, continue_greedily, held_out_prompts, measure_acceptance

HEAD = BUILT_IN.with_name("kindling_eagle3")
BOUNDARIES = tuple(range(9))  # all of Kindling's


class Planned:
    """A drafter that drafts the numbers after the next token, and from each multiple of `every` on a wrong one."""

    boundaries, reach = (0,), 3

    def __init__(self, every):
        self.every, self.contexts = every, []

    def attach(self, num_pages, page_size, device):
        self.num_slots = num_pages * page_size

    def draft(self, context, counts):
        batch = context.batch
        assert batch.full.slots.max() < self.num_slots and len(batch.full.slots.unique()) == len(batch.full.slots)
        self.contexts.append((batch.positions.tolist(), context.next_ids.tolist(), list(counts)))
        rows = context.next_ids[:, None] + 1 + torch.arange(max(counts, default=0))
        return torch.where(rows % self.every == 0, -1, rows)


def text_of(num_prompt, length):
    return Text(token_ids=list(range(length)), num_prompt=num_prompt, features=torch.zeros(length, 4))


def test_steps_accept_up_to_the_first_wrong_draft():
    drafter = Planned(every=10)
    measured = measure_acceptance(drafter, [text_of(4, 17)], 3)
    # 4 comes with the prompt; then 5 to 8, 9 and 10 (10 was drafted wrong), 11 to 14, 15 and 16.
    assert drafter.contexts == [
        ([0, 1, 2, 3], [4], [3]),
        ([4, 5, 6, 7], [8], [3]),
        ([8, 9], [10], [3]),
        ([10, 11, 12, 13], [14], [1]),
    ]
    assert (measured.steps, measured.tokens) == (4, 12) and measured.length == 3
    assert measured.drafted == (4, 3, 3) and measured.accepted == (4, 2, 2)
    assert measured.rate(1) == 1 and measured.rate(2) == pytest.approx(2 / 3)


def test_texts_that_end_leave_the_batch():
    drafter = Planned(every=1)  # every draft is wrong
    measured = measure_acceptance(drafter, [text_of(2, 4), text_of(3, 9)], 2)
    assert [len(counts) for _, _, counts in drafter.contexts] == [2, 1, 1, 1, 1]
    assert (measured.steps, measured.tokens, measured.accepted) == (6, 6, (0, 0))


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


@pytest.fixture(scope="module")
def texts(kindling):
    """A held-out prompt of every family with Kindling's answer, and its states at every boundary."""
    return continue_greedily(kindling, held_out_prompts(kindling, 1), BOUNDARIES)


def measure(drafter, texts, hidden):
    """Measures a drafter with the states at its boundaries."""
    taken = [
        replace(text, features=text.features.unflatten(1, (-1, hidden))[:, list(drafter.boundaries)].flatten(1))
        for text in texts
    ]
    return measure_acceptance(drafter, taken, 3)


def test_states_are_those_of_a_step_with_logits(kindling):
    """The final norm of the last boundary gives the logits."""
    token_ids = list(range(5, 45))
    states = compute_states(kindling.model, token_ids, (0, 8))
    assert torch.equal(states[:, :256], kindling.model.weights.embedding[torch.tensor(token_ids)].float())
    hidden, _ = kindling.model.norm(states[:, 256:], None, kindling.model.weights.norm)
    torch.testing.assert_close(
        kindling.model.logits(hidden.plain), kindling.logits(token_ids), atol=1e-3, rtol=1e-3
    )


def test_shipped_head_gives_two_tokens_per_step(kindling, texts):
    head = load_eagle3(HEAD, kindling.model, kindling.device)
    measured = measure(head, texts, kindling.spec.hidden_size)
    assert measured.length >= 2.0, measured
    assert measured.drafted[0] >= 100
    assert suspect_wiring(measured.rate(1), measured.drafted[0], head.usual_acceptance) is None


@pytest.mark.slow
def test_shipped_head_gives_two_tokens_per_step_on_many_prompts(kindling):
    head = load_eagle3(HEAD, kindling.model, kindling.device)
    texts = continue_greedily(kindling, held_out_prompts(kindling, 4), head.boundaries)
    measured = measure_acceptance(head, texts, 3)
    assert measured.drafted[0] >= 500 and measured.length >= 2.0, measured


def rewire(head, boundaries, norms):
    weights = replace(head.weights, states=TargetStates(boundaries, False), state_norms=norms)
    return Eagle3(head.spec, weights, head.model)


def test_wrong_states_are_found_out(kindling, texts):
    head = load_eagle3(HEAD, kindling.model, kindling.device)
    wrong = rewire(head, (0, 1, 2), head.weights.state_norms)
    measured = measure(wrong, texts, kindling.spec.hidden_size)
    assert suspect_wiring(measured.rate(1), measured.drafted[0], wrong.usual_acceptance) is not None, measured


def test_states_without_their_norms_spoil_later_drafts(kindling, texts):
    head = load_eagle3(HEAD, kindling.model, kindling.device)
    measured = measure(rewire(head, head.boundaries, None), texts, kindling.spec.hidden_size)
    assert measured.length < 1.8 and measured.rate(2) < 0.2, measured
