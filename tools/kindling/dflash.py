"""Trains Kindling's DFlash drafter on Kindling's own tokens, and writes it in the public format.

python -m kindling.dflash OUT [--texts 3000] [--epochs 8] [--batch-texts 8] [--spans 12] [--seed 1]
                              [--start DRAFTER] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import find_device
from firesteel.hub import BUILT_IN
from firesteel.model.drafters.dflash_spec import DFlashSpec
from firesteel.model.drafters.dflash_weights import load_dflash_weights, save_dflash
from kindling.dflash_network import DFlashNetwork
from kindling.dflash_texts import Text, draw_texts, fast_products
from kindling.export import import_checkpoint
from kindling.network import SPEC, Network

DRAFTER = DFlashSpec(
    num_layers=3,
    hidden_size=SPEC.hidden_size,
    intermediate_size=168,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=SPEC.vocab_size,
    rope=SPEC.rope,
    rms_eps=SPEC.rms_eps,
    has_bias=False,
    span=8,
    mask_token_id=4084,  # <|reserved_0|>
    target_layer_ids=(1, 4, 7),
)
TEXT_SEED = 20_011  # of the corpus; Kindling's own training has others
LATER_WEIGHT = 1 / 4  # decay of the loss per drafted token, since a token counts only if those before it are right


@dataclass(frozen=True, kw_only=True)
class Course:
    """All parameters of a training run."""

    texts: int = 3000
    epochs: int = 8
    seed: int = 1
    batch_texts: int = 8
    spans: int = 12  # per text and epoch
    candidates: int = 768  # random tokens beside the labels among which the drafter chooses in a step
    peak_lr: float = 3e-3
    warmup: int = 60
    weight_decay: float = 0.05

    def lr(self, step: int, steps: int) -> float:
        """Returns the learning rate: warm-up, then a cosine to zero."""
        return self.peak_lr * min((step + 1) / self.warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanBatch:
    """Spans of several texts; B texts padded to n tokens, A spans of each."""

    features: Tensor  # [B, n, F]
    anchors: Tensor  # [B, A]
    anchor_ids: Tensor  # [B, A]
    labels: Tensor  # [B, A, N - 1]
    is_compared: Tensor  # [B, A, N - 1]


class Trainer:
    def __init__(self, spec: DFlashSpec, course: Course, target: Network, texts: Sequence[Text]) -> None:
        torch.manual_seed(course.seed)
        self.spec, self.course, self.texts = spec, course, texts
        sizes = torch.stack([text.features.float().square().mean(0) for text in texts]).mean(0).sqrt()
        by_layer = sizes.unflatten(0, (len(spec.target_layer_ids), -1)).square().mean(-1, keepdim=True).sqrt()
        self.device = target.lm_head.device
        network = DFlashNetwork(spec, target, by_layer.expand(-1, spec.hidden_size).flatten().cpu())
        self.network = network.to(self.device)
        named = dict(self.network.named_parameters())
        groups = [
            {"params": [p for p in named.values() if p.dim() > 1], "weight_decay": course.weight_decay},
            {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        self.random = Random(course.seed)
        self.weights = torch.exp(-LATER_WEIGHT * torch.arange(spec.span - 1, device=self.device))

    def run(self) -> Iterator[dict[str, float]]:
        """Trains, and yields figures of each epoch."""
        batches = self.cut(self.texts)
        steps = self.course.epochs * len(batches)
        step = 0
        for epoch in range(self.course.epochs):
            self.random.shuffle(batches)
            started, total, lengths = time.monotonic(), 0.0, 0.0
            for batch in batches:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.course.lr(step, steps)
                loss, length = self.train_step(self.draw_spans(batch))
                total, lengths, step = total + loss, lengths + length, step + 1
            yield {
                "epoch": epoch + 1,
                "loss": total / len(batches),
                "acceptance_length": lengths / len(batches),
                "seconds": time.monotonic() - started,
            }

    def cut(self, texts: Sequence[Text]) -> list[Sequence[Text]]:
        """Returns batches of texts of about equal length."""
        size = self.course.batch_texts
        return [texts[at : at + size] for at in range(0, len(texts), size)]

    def draw_spans(self, texts: Sequence[Text]) -> SpanBatch:
        """Draws anchors of each text, or takes all if it has fewer; missing ones are not compared."""
        count, num_drafted = self.course.spans, self.spec.span - 1
        shape = (len(texts), count)
        anchors, anchor_ids = torch.ones(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        labels = torch.zeros(*shape, num_drafted, dtype=torch.int64)
        is_compared = torch.zeros(*shape, num_drafted, dtype=torch.bool)
        for row, text in enumerate(texts):
            places = text.anchors.tolist()
            drawn = torch.tensor(self.random.sample(places, min(count, len(places))), dtype=torch.int64)
            taken = slice(0, len(drawn))
            anchors[row, taken], anchor_ids[row, taken] = drawn, text.token_ids[drawn]
            labels[row, taken], is_compared[row, taken] = text.find_labels(drawn, num_drafted)
        features = torch.nn.utils.rnn.pad_sequence([text.features for text in texts], batch_first=True).float()
        anchors, anchor_ids, labels, is_compared = (
            drawn.to(self.device) for drawn in (anchors, anchor_ids, labels, is_compared)
        )
        return SpanBatch(
            features=features, anchors=anchors, anchor_ids=anchor_ids, labels=labels, is_compared=is_compared
        )

    def draw_candidates(self, labels: Tensor) -> Tensor:
        """Returns the tokens among which the drafter chooses in a step, in order: all labels and random others."""
        others = torch.randint(self.spec.vocab_size, (self.course.candidates,), device=labels.device)
        return torch.cat((labels, others)).unique()

    def train_step(self, spans: SpanBatch) -> tuple[float, float]:
        """Returns the loss, and the mean acceptance length: drafted tokens that are right, and the target's own.

        Both are those of a choice among some tokens of the vocabulary, which takes a third of the time.
        """
        kept = spans.is_compared
        labels = spans.labels[kept]
        candidates = self.draw_candidates(labels)
        labels = torch.searchsorted(candidates, labels)
        with fast_products(self.device):
            hidden = self.network(spans.features, spans.anchors, spans.anchor_ids)
            logits = functional.linear(hidden[kept], self.network.lm_head[candidates]).float()
        losses = functional.cross_entropy(logits, labels, reduction="none")
        weights = self.weights.expand(kept.shape)[kept]
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        right = torch.zeros(kept.shape, device=self.device).masked_scatter(
            kept, (logits.argmax(-1) == labels).float()
        )
        accepted = right.cumprod(-1).sum(-1)[kept[..., 0]].mean()
        return float(loss.detach()), 1 + float(accepted)


def load_kindling(device: torch.device) -> Network:
    """Returns the shipped Kindling, with the rounding of its experts in the weights."""
    network = Network(SPEC)
    import_checkpoint(network, BUILT_IN)
    return network.requires_grad_(False).to(device)


def train(out: Path, course: Course, start: Path | None, device: torch.device) -> None:
    """Trains a drafter, from random weights or from those in `start`, and writes it; prints figures per epoch."""
    target, started = load_kindling(device), time.monotonic()
    texts = draw_texts(BUILT_IN, target, DRAFTER.target_layer_ids, seed=TEXT_SEED, count=course.texts)
    tokens = sum(len(text.token_ids) for text in texts)
    print(json.dumps({"texts": len(texts), "tokens": tokens, "seconds": time.monotonic() - started}), flush=True)
    trainer = Trainer(DRAFTER, course, target, texts)
    if start is not None:
        trainer.network.unpack(load_dflash_weights(start, DRAFTER, find_device("cpu")))
    for figures in trainer.run():
        print(json.dumps(figures), flush=True)
        save_dflash(out, DRAFTER, SPEC, trainer.network.pack())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train Kindling's DFlash drafter.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=int, default=Course.texts)
    parser.add_argument("--epochs", type=int, default=Course.epochs)
    parser.add_argument("--batch-texts", type=int, default=Course.batch_texts)
    parser.add_argument("--spans", type=int, default=Course.spans)
    parser.add_argument("--seed", type=int, default=Course.seed)
    parser.add_argument("--start", type=Path, help="folder of a drafter to start from")
    parser.add_argument("--device", type=torch.device, default="cpu", help="cpu or cuda (default: cpu)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    course = Course(
        texts=given.texts,
        epochs=given.epochs,
        seed=given.seed,
        batch_texts=given.batch_texts,
        spans=given.spans,
    )
    train(given.out, course, given.start, torch.device(given.device))


if __name__ == "__main__":
    main()
