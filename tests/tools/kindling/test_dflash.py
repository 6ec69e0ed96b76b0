"""Training of the DFlash drafter: what it learns from, that it learns, and that firesteel computes the same."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.hub import BUILT_IN
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.model.drafters.dflash import load_dflash
from firesteel.model.drafters.dflash_weights import save_dflash
from firesteel.model.drafters.drafter import DraftContext
from firesteel.model.gpt_oss import GptOss
from firesteel.model.weights import load_weights
from firesteel.types import Batch, KvView, Taps
from kindling.corpus import training_documents
from kindling.dflash import DRAFTER, Course, Trainer, load_kindling
from kindling.dflash_network import DFlashNetwork
from kindling.dflash_texts import Text, compute_texts, draw_texts, find_anchors, run
from kindling.feed import Encoder
from kindling.network import SPEC, Network

CPU = find_device("cpu")
TINY = replace(
    SPEC, num_layers=2, hidden_size=64, intermediate_size=32, num_experts=4, vocab_size=128, windows=(8, None)
)
TINY_DRAFTER = replace(
    DRAFTER,
    num_layers=1,
    hidden_size=64,
    intermediate_size=64,
    vocab_size=128,
    mask_token_id=127,
    target_layer_ids=(0, 1),
)


@pytest.fixture(scope="module")
def kindling():
    return load_kindling(torch.device("cpu"))


@pytest.fixture(scope="module")
def served():
    weights, _ = load_weights(BUILT_IN, SPEC, CPU, workers=2, reserve_gib=0.0)
    return GptOss(SPEC, weights, Kernels(CPU, {}, Ledger()), CPU, max_context=1024)


@pytest.fixture(scope="module")
def encoded():
    encoder = Encoder(BUILT_IN)
    documents = (encoder.encode(document) for document in training_documents(5, long_share=0))
    return next(document for document in documents if document.family == "arithmetic")


def batch_of(token_ids):
    """Returns a batch of a whole text in pages 0, 1, ... of 64 tokens."""
    length = len(token_ids)
    pages = torch.arange(-(-length // 64) + 1)
    view = KvView(page_table=pages[None], slots=torch.arange(length))
    shifted = KvView(page_table=pages[None] + len(pages), slots=torch.arange(length) + 64 * len(pages))
    return Batch(
        token_ids=token_ids,
        positions=torch.arange(length),
        query_starts=torch.tensor([0, length]),
        kv_lens=torch.tensor([length]),
        full=view,
        window=shifted,
        logit_rows=torch.tensor([length - 1]),
    )


@torch.inference_mode()
def test_features_are_those_that_firesteel_keeps(kindling, served, encoded):
    token_ids = torch.from_numpy(encoded.token_ids).long()
    _, outputs = run(kindling, token_ids[None], DRAFTER.target_layer_ids)
    taps = Taps(boundaries=DRAFTER.boundaries, rows=torch.empty(len(token_ids), DRAFTER.num_features))
    served.forward(batch_of(token_ids), new_cache(SPEC, 64, 64, CPU, torch.float32), taps=taps)
    assert (outputs[0] - taps.rows).norm() < 1e-3 * taps.rows.norm()


def test_firesteel_drafts_what_the_trained_network_predicts(kindling, served, tmp_path):
    torch.manual_seed(1)
    network = DFlashNetwork(DRAFTER, kindling, torch.ones(DRAFTER.num_features))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + 0.3 * torch.randn(parameter.shape))
            parameter.copy_(parameter.bfloat16())
    save_dflash(tmp_path, DRAFTER, SPEC, network.pack())
    drafter = load_dflash(tmp_path, served, CPU)
    drafter.attach(8, 64, CPU.torch_device)
    features, token_ids = torch.randn(70, DRAFTER.num_features), torch.randint(SPEC.vocab_size, (71,))
    places = torch.tensor([1, 20, 70])
    with torch.inference_mode():
        rows = network(features[None], places[None], token_ids[places][None])
        predicted = functional.linear(rows[0], network.lm_head).argmax(-1)
        for place, expected in zip(places.tolist(), predicted.tolist(), strict=True):
            context = DraftContext(
                batch=batch_of(token_ids[:place]),
                features=features[:place],
                followers=token_ids[1 : place + 1],
                next_ids=token_ids[place : place + 1],
            )
            assert drafter.draft(context, [7])[0].tolist() == expected


def test_training_can_continue_from_a_drafter(kindling):
    torch.manual_seed(3)
    first, second = (DFlashNetwork(DRAFTER, kindling, torch.ones(DRAFTER.num_features)) for _ in range(2))
    packed = first.pack()
    second.unpack(packed)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(ours.bfloat16(), theirs.bfloat16()) for ours, theirs in pairs)


def test_labels_end_with_the_first_token_that_the_target_would_not_write():
    text = Text(
        token_ids=torch.tensor([1, 2, 3, 4, 9, 6, 7]),
        features=torch.zeros(7, 1),
        labels=torch.tensor([2, 3, 4, 5, 6, 7, 8]),  # after 4 the target would write 5, the text has 9
        anchors=torch.tensor([1]),
    )
    labels, is_compared = text.find_labels(torch.tensor([0, 2, 3, 4, 5]), 4)
    assert [row[kept].tolist() for row, kept in zip(labels, is_compared, strict=True)] == [
        [2, 3, 4, 5],
        [4, 5],
        [5],
        [6, 7],
        [7],
    ]


def test_anchors_are_the_tokens_that_the_target_writes(encoded):
    words = Encoder(BUILT_IN).tokenizer
    anchors = find_anchors(encoded).tolist()
    texts = words.decode([int(encoded.token_ids[place]) for place in anchors])
    assert texts.startswith("<|channel|>") and len(encoded.token_ids) - 1 not in anchors
    assert "<|start|>assistant<|channel|>final<|message|>" in texts and "<|start|>user" not in texts


def test_labels_are_the_targets_most_likely_tokens(kindling, encoded):
    (text,) = compute_texts(kindling, (1,), [encoded])
    agreed = text.token_ids[text.anchors + 1] == text.labels[text.anchors]
    assert agreed.float().mean() > 0.9
    with torch.inference_mode():
        hidden, _ = run(kindling, text.token_ids[None], (1,))
    exact = functional.linear(hidden[0], kindling.lm_head).argmax(-1)
    assert (exact == text.labels)[text.anchors].float().mean() > 0.95  # labels may be computed in bf16


def test_texts_are_as_many_as_asked_for_and_in_order_of_length(kindling):
    texts = draw_texts(BUILT_IN, kindling, (1, 4), seed=3, count=5)
    lengths = [len(text.token_ids) for text in texts]
    assert len(texts) == 5 and lengths == sorted(lengths)
    assert all(text.features.shape == (len(text.token_ids), 2 * SPEC.hidden_size) for text in texts)


def test_training_learns_to_draft():
    """Texts repeat a word of eight tokens: everything after the first word can be drafted."""
    torch.manual_seed(2)
    target = Network(TINY).requires_grad_(False)
    texts = []
    for _ in range(8):
        token_ids = torch.randint(127, (8,)).repeat(5)
        _, outputs = run(target, token_ids[None], TINY_DRAFTER.target_layer_ids)
        labels = functional.pad(token_ids[1:], (0, 1))
        texts.append(
            Text(token_ids=token_ids, features=outputs[0].bfloat16(), labels=labels, anchors=torch.arange(8, 39))
        )
    course = Course(epochs=50, batch_texts=8, warmup=5, peak_lr=1e-2)
    trainer = Trainer(TINY_DRAFTER, course, target, texts)
    figures = list(trainer.run())
    assert figures[0]["acceptance_length"] < 1.5 and figures[-1]["acceptance_length"] > 4
    assert figures[-1]["loss"] < 0.8 * figures[0]["loss"]
