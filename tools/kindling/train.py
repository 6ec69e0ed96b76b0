"""Trains Kindling. Resumable: every run ends in a checkpoint, and the next one continues from it.

python -m kindling.train TOKENIZER_DIR OUT --steps 9000 [--until 4500] [--seed 1] [--workers 14]
OUT then has state.pt (to continue from), log.jsonl and the exported checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.model.spec import ModelSpec
from kindling.corpus import LONG_SHARE, Document, perplexity_text
from kindling.export import export_checkpoint, import_checkpoint
from kindling.feed import ANSWER, PROMPT, SHORT, UNTRAINED, Encoded, Encoder, Rows, batches, lay_out
from kindling.network import SPEC, Network, make_masks

PROMPT_WEIGHT = 0.1  # weight of the loss of a prompt token; that of an answer token is 1
BALANCE_WEIGHT = 0.01
QUANTIZE_EVERY = 4  # steps; between them the last rounding errors are reused
CHECK_SEED = 77  # seed of the held-out documents for monitoring; the exam has others


@dataclass(frozen=True, kw_only=True)
class Course:
    """All parameters of a training run."""

    steps: int
    seed: int = 1
    batch_tokens: int = 65536
    peak_lr: float = 2e-3
    warmup: int = 200
    quantize_from: float = 0.8  # share of the steps after which experts are rounded to MXFP4
    weight_decay: float = 0.1
    long_share: float = LONG_SHARE  # share of long documents
    workers: int = 14
    check_every: int = 500
    check_documents: int = 600
    spec: ModelSpec = field(default=SPEC)

    def lr(self, step: int) -> float:
        """Returns the learning rate: warm-up, then linear decay to zero."""
        return self.peak_lr * min((step + 1) / self.warmup, (self.steps - step) / (self.steps - self.warmup))


class Trainer:
    def __init__(
        self, course: Course, tokenizer: Path, out: Path, device: torch.device, start: Path | None = None
    ) -> None:
        """Continues from the state in `out`, else from the checkpoint `start`, else starts with random weights."""
        self.course, self.tokenizer, self.out, self.device = course, tokenizer, out, device
        torch.manual_seed(course.seed)
        self.network = Network(course.spec)
        if start is not None:
            import_checkpoint(self.network, start)
        self.network.to(device)
        self.optimizer = torch.optim.AdamW(self._groups(), betas=(0.9, 0.95), fused=device.type == "cuda")
        self.step = 0
        self.encoder = Encoder(tokenizer)
        self.check_batches = self._make_check_batches()
        if (out / "state.pt").exists():
            self._resume()
        if device.type == "cuda":
            torch._dynamo.config.recompile_limit = (
                64  # two row lengths, two kinds of layer, with and without gradient
            )
            torch.set_float32_matmul_precision("high")
            for layer in self.network.layers:
                layer.compile(dynamic=False)
        self.loss = torch.compile(weighted_loss, dynamic=False) if device.type == "cuda" else weighted_loss

    def run(self, until: int) -> None:
        feed = batches(
            self.tokenizer,
            seed=self.course.seed * 1000 + self.step,
            workers=self.course.workers,
            batch_tokens=self.course.batch_tokens,
            long_share=self.course.long_share,
        )
        started, reported, waited = time.monotonic(), self.step, 0.0
        while self.step < until:
            if self.step >= self.course.quantize_from * self.course.steps and self.step % QUANTIZE_EVERY == 0:
                self.network.quantize()
            asked = time.monotonic()
            rows = next(feed)
            waited += time.monotonic() - asked
            loss, usage = self.train_step(rows)
            self.step += 1
            if self.step % 50 == 0 or self.step == until:
                figures = {
                    "loss": float(loss),
                    "row_tokens": rows.token_ids.shape[1],
                    "least_used": float(usage[:, :-1].min()),
                }
                count = self.step - reported
                self._log(**figures, ms=1e3 * (time.monotonic() - started) / count, wait_ms=1e3 * waited / count)
                started, reported, waited = time.monotonic(), self.step, 0.0
            if self.step % self.course.check_every == 0:
                self._log(check=self.check())
                started, reported, waited = time.monotonic(), self.step, 0.0
        self.save()
        if self.step == self.course.steps:
            self._log(perplexity=self.compare_formats())

    def train_step(self, rows: Rows) -> tuple[Tensor, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.course.lr(self.step)
        token_ids, targets, positions, roles = self._tensors(rows)
        with self._autocast():
            hidden, usage = self.network(token_ids, positions, self._masks(positions))
            loss = self.loss(hidden, self.network.lm_head, targets, role_weights(roles))
        (loss + BALANCE_WEIGHT * usage[:, -1].mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), usage.detach()

    @torch.no_grad()
    def check(self) -> dict[str, float]:
        """Returns, by family, the share of held-out documents whose every answer token is the most likely one."""
        right: dict[str, list[bool]] = defaultdict(list)
        for rows in self.check_batches:
            token_ids, targets, positions, roles = self._tensors(lay_out(rows))
            with self._autocast():
                hidden, _ = self.network(token_ids, positions, self._masks(positions))
                likeliest = torch.stack([functional.linear(row, self.network.lm_head).argmax(-1) for row in hidden])
            hit = (likeliest[:, :-1] == targets[:, 1:]) | (roles[:, 1:] != ANSWER)
            for row, is_right in zip(rows, hit.all(-1).tolist(), strict=True):
                right[row[0].family].append(is_right)
        return {family: sum(hits) / len(hits) for family, hits in sorted(right.items())}

    @torch.no_grad()
    def compare_formats(self) -> dict[str, float]:
        """Returns the perplexity of held-out documents with experts in bf16, as trained, and rounded to MXFP4."""
        perplexities = {}
        for name, is_quantized in (("bf16", False), ("mxfp4", True)):
            self.network.quantize(is_quantized)
            losses, count = 0.0, 0.0
            for rows in self.check_batches:
                token_ids, targets, positions, roles = self._tensors(lay_out(rows))
                weights = (roles > UNTRAINED).float()
                with self._autocast():
                    hidden, _ = self.network(token_ids, positions, self._masks(positions))
                    loss = self.loss(hidden, self.network.lm_head, targets, weights)
                losses += float(loss) * float(weights[:, 1:].sum())
                count += float(weights[:, 1:].sum())
            perplexities[name] = math.exp(losses / count)
        return perplexities

    def save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.out / "state.partial")
        (self.out / "state.partial").replace(self.out / "state.pt")
        export_checkpoint(self.network, self.tokenizer, self.out / "model")

    def _resume(self) -> None:
        state = torch.load(self.out / "state.pt", map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _groups(self) -> list[dict[str, Any]]:
        """Returns parameter groups: matrices decay; sinks, norms, biases and embeddings do not."""
        named = dict(self.network.named_parameters())
        kept = [p for name, p in named.items() if p.dim() < 2 or name.endswith("bias") or name == "embedding"]
        decayed = [p for p in named.values() if all(p is not other for other in kept)]
        return [
            {"params": decayed, "weight_decay": self.course.weight_decay},
            {"params": kept, "weight_decay": 0.0},
        ]

    def _make_check_batches(self) -> list[list[list[Encoded]]]:
        """Returns held-out documents, one per row, with as many rows as a training batch."""
        documents: list[Document] = []
        while len(documents) < self.course.check_documents:
            documents += perplexity_text(CHECK_SEED + len(documents))
        encoded = [self.encoder.encode(document) for document in documents[: self.course.check_documents]]
        rows = [[document] for document in encoded if len(document.token_ids) <= SHORT]
        count = self.course.batch_tokens // SHORT
        return [rows[at : at + count] for at in range(0, len(rows) - count + 1, count)]

    def _tensors(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(array).to(self.device, torch.int64, non_blocking=True)

        return tensor(rows.token_ids), tensor(rows.targets), tensor(rows.positions), tensor(rows.roles)

    def _masks(self, positions: Tensor) -> Any:
        window = next(window for window in self.course.spec.windows if window is not None)
        return make_masks(positions, window)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _log(self, **figures: Any) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"step": self.step, "tokens": self.step * self.course.batch_tokens, **figures})
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(line + "\n")
        print(line, flush=True)


def role_weights(roles: Tensor) -> Tensor:
    """Returns the weight of each target token's loss, from roles [B, L]."""
    return (roles == ANSWER).float() + PROMPT_WEIGHT * (roles == PROMPT).float()


def weighted_loss(hidden: Tensor, lm_head: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted mean loss of the next tokens."""
    logits = functional.linear(hidden[:, :-1], lm_head).float()
    losses = functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), reduction="none")
    counted = weights[:, 1:].flatten()
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train Kindling, or go on training it.")
    parser.add_argument("tokenizer", type=Path, help="folder with tokenizer.json")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True, help="steps of the whole training")
    parser.add_argument("--until", type=int, help="step to stop at; a later run continues (default: --steps)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--start", type=Path, help="checkpoint folder to start from")
    for name in ("peak_lr", "long_share", "quantize_from"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(Course, name))
    parser.add_argument("--check-every", type=int, default=Course.check_every)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    course = Course(
        steps=given.steps,
        seed=given.seed,
        workers=given.workers,
        peak_lr=given.peak_lr,
        check_every=given.check_every,
        long_share=given.long_share,
        quantize_from=given.quantize_from,
    )
    Trainer(course, given.tokenizer, given.out, device, given.start).run(given.until or given.steps)


if __name__ == "__main__":
    main()
