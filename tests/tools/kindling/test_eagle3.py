"""The head's training in miniature: the network computes what the drafter computes, and it learns."""

import pytest
import torch

from firesteel.model.drafters.eagle3 import load_eagle3
from kindling.eagle3 import HeadCourse, HeadTrainer, export_head, import_head
from kindling.eagle3_network import Head, HeadShape, Lesson, make_lesson
from kindling.feed import ANSWER, PROMPT
from kindling.states import States
from tests.model.drafters.heads import CPU, TARGET, new_target
from tests.model.drafters.texts import PAGE_SIZE, Texts

SHAPE = HeadShape(
    boundaries=(2, 4, 7), hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8
)
OF_LESSONS = HeadShape(boundaries=(2, 4, 8), hidden_size=32)


@pytest.fixture(scope="module")
def target():
    return new_target()


def new_head(target):
    """Returns a random head, rounded to what is written."""
    torch.manual_seed(3)
    head = Head(SHAPE, target.weights.embedding, target.weights.lm_head, target.weights.norm).float()
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_((weight + 0.2 * torch.randn(weight.shape) * weight.abs().mean()).mul(3).bfloat16())
    return head


@torch.inference_mode()
def test_network_drafts_as_the_exported_head_does(target, tmp_path):
    """The document goes on with the drafts, whose rows have other states of the target: they must not count."""
    head = new_head(target)
    export_head(head, TARGET, tmp_path)
    drafter = load_eagle3(tmp_path, target, CPU)
    drafter.attach(50, PAGE_SIZE, CPU.torch_device)
    texts = Texts(drafter, 4, seed=11)
    lens, lessons = (9, 14, 2, 20), []
    drafts = drafter.draft(texts.context(lens), (3, 3, 3, 3))
    for number, (length, draft) in enumerate(zip(lens, drafts.tolist(), strict=True)):
        token_ids = torch.tensor([*texts.tokens[number, : length + 1].tolist(), *draft])
        lessons.append((token_ids, texts.features[number, : len(token_ids)]))
    token_ids, features = (torch.cat(part) for part in zip(*lessons, strict=True))
    sizes = [length + 4 for length in lens]
    lesson = Lesson(
        followers=token_ids.roll(-1),
        features=features,
        final=features[:, :32],
        lens=sizes,
        anchor_lens=[1] * len(lens),
        places=torch.cat([torch.arange(size) for size in sizes]),
        left=torch.cat([torch.arange(size - 1, -1, -1) for size in sizes]),
        anchors=torch.tensor([sum(sizes[: number + 1]) - 5 for number in range(len(lens))]),
    )
    logits = head.draft(lesson, 3)
    assert torch.stack([step.argmax(-1) for step in logits], dim=1).tolist() == drafts.tolist()
    assert len(set(drafts.flatten().tolist())) > 3


@torch.no_grad()
def test_exported_head_reads_back(target, tmp_path):
    head, other = (
        new_head(target),
        Head(SHAPE, target.weights.embedding, target.weights.lm_head, target.weights.norm),
    )
    export_head(head, TARGET, tmp_path)
    import_head(other, tmp_path)
    pairs = zip(head.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def new_states(num_documents, length):
    generator = torch.Generator().manual_seed(1)
    step = torch.randint(1, 5, (num_documents, 1), generator=generator)
    tokens = (torch.arange(length) * step + step) % TARGET.vocab_size
    roles = torch.where(torch.arange(length) < 4, PROMPT, ANSWER).expand(num_documents, -1)
    residuals = torch.randn(num_documents * length, TARGET.num_layers + 1, 32, generator=generator).bfloat16()
    residuals[:, -1] = torch.randn(TARGET.vocab_size, 32, generator=generator).bfloat16()[tokens.flatten()]
    starts = torch.arange(num_documents + 1) * length
    return States(token_ids=tokens.flatten(), starts=starts, roles=roles.flatten(), residuals=residuals)


def test_lesson_has_anchors_before_answers_only():
    lesson = make_lesson(new_states(3, 10), [2, 0], (2, 4, 7))
    assert lesson.lens == [10, 10, 108] and lesson.anchor_lens == [6, 6, 0]
    assert lesson.anchors.tolist() == [2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17]
    assert lesson.features.shape == (128, 96) and lesson.places[12] == 2 and lesson.left[17] == 2


def test_anchors_beyond_a_multiple_are_dropped():
    lesson = make_lesson(new_states(7, 10), list(range(7)), (2, 4, 7))
    assert len(lesson.anchors) == 32 and lesson.anchor_lens == [6, 6, 6, 6, 6, 2, 0, 0]


def test_training_lowers_the_loss_of_every_draft(target, tmp_path):
    """The target's choice follows from its token alone, which the head reads as its follower."""
    states = new_states(8, 10)
    shape_of_target = type("Target", (), {"spec": TARGET, "weights": target.weights})()
    course = HeadCourse(steps=14, lesson_tokens=40, warmup=2, peak_lr=2e-2)
    trainer = HeadTrainer(course, states, shape_of_target, OF_LESSONS)
    figures = torch.stack([trainer.train_step(step) for step in range(course.steps)])
    losses = figures[:, 0]
    assert losses.shape == (14, 3) and (losses[-3:].mean(0) < 0.95 * losses[:2].mean(0)).all(), losses


def test_documents_come_once_before_any_comes_again(target):
    shape_of_target = type("Target", (), {"spec": TARGET, "weights": target.weights})()
    course = HeadCourse(steps=2, lesson_tokens=30, warmup=1)
    trainer = HeadTrainer(course, new_states(6, 10), shape_of_target, OF_LESSONS)
    drawn = [number for _ in range(4) for number in trainer._draw_documents()]
    assert sorted(drawn[:6]) == sorted(drawn[6:]) == list(range(6)) and len(drawn) == 12
