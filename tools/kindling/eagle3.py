"""Trains an Eagle3 head for Kindling on one CPU thread, and writes it in the public format.

python -m kindling.eagle3 SCRATCH [DIRECTORY] [--steps 1200] [--tokens 300000] [--boundaries 4,6,8]
SCRATCH keeps the target's states between runs, and log.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from firesteel.hub import BUILT_IN
from firesteel.model.checkpoint import save_tensors, write_json
from firesteel.model.shards import SINGLE
from firesteel.model.spec import ModelSpec
from kindling.eagle3_network import ROWS, Head, HeadShape, Lesson, make_lesson
from kindling.states import States, Target, collect_states

SHIPPED = BUILT_IN.with_name("kindling_eagle3")
USUAL_ACCEPTANCE = 0.7  # of the shipped head, measured by acceptance.py; for the warning about wrong wiring
STATES_SEED = 4242  # of the documents: training draws none that is held out


@dataclass(frozen=True, kw_only=True)
class HeadCourse:
    """All parameters of a training run."""

    steps: int
    lesson_tokens: int = 1024
    draft_steps: int = 3
    later_weight: float = 0.8  # weight of a draft's loss relative to the draft before it
    peak_lr: float = 2e-3
    warmup: int = 30
    seed: int = 1

    def lr(self, step: int) -> float:
        """Returns the learning rate: warm-up, then linear decay to zero."""
        return self.peak_lr * min((step + 1) / self.warmup, (self.steps - step) / (self.steps - self.warmup))


class HeadTrainer:
    def __init__(self, course: HeadCourse, states: States, target: Target, shape: HeadShape) -> None:
        torch.manual_seed(course.seed)
        self.course, self.states, self.spec = course, states, target.spec
        weights = target.weights
        assert isinstance(weights.lm_head, Tensor)
        self.target_norm = weights.norm.float()
        self.head = Head(shape, weights.embedding, weights.lm_head, weights.norm)
        matrices = [weight for weight in self.head.parameters() if weight.dim() > 1 and len(weight) > 8]
        others = [weight for weight in self.head.parameters() if weight.dim() == 1 or len(weight) <= 8]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        self.rng = Random(course.seed)
        self.order: list[int] = []

    def run(self, log: Path, directory: Path) -> None:
        """Trains; every 50 steps a line goes to `log` and the head so far to `directory`."""
        started = time.monotonic()
        sums = torch.zeros(2, self.course.draft_steps)
        for step in range(self.course.steps):
            sums += self.train_step(step)
            if (step + 1) % 50 == 0 or step + 1 == self.course.steps:
                loss, right = (sums / ((step % 50) + 1)).tolist()
                line = {"step": step + 1, "loss": loss, "right": right, "s": time.monotonic() - started}
                with log.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
                sums.zero_()
                export_head(self.head, self.spec, directory)

    def train_step(self, step: int) -> Tensor:
        """Returns loss and share of right drafts [2, draft steps] of one lesson, and learns from it."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.course.lr(step)
        lesson = make_lesson(self.states, self._draw_documents(), self.head.shape.boundaries)
        losses, rights = self.losses(lesson)
        weights = self.course.later_weight ** torch.arange(len(losses))
        (losses * weights).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack((losses.detach(), rights))

    def losses(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Returns cross-entropy with the target's distribution, and agreement with its choice, of each draft."""
        num_steps = self.course.draft_steps
        with torch.autocast("cpu", torch.bfloat16):
            drafted = self.head.draft(lesson, num_steps)
            wanted = lesson.anchors[:, None] + 1 + torch.arange(num_steps)
            rows, places = wanted.clamp(max=len(lesson.left) - 1).unique(return_inverse=True)
            rows = functional.pad(rows, (0, -len(rows) % ROWS))
            with torch.no_grad():
                final = functional.rms_norm(
                    lesson.final[rows].float(), self.target_norm.shape, self.target_norm, self.spec.rms_eps
                )
                chosen = functional.linear(final, self.head.lm_head).float()
                likely = chosen.softmax(-1)
        losses, rights = [], []
        for step, logits in enumerate(drafted):
            is_inside = lesson.left[lesson.anchors] >= 2 + step
            place = places[is_inside, step]
            ours = logits[is_inside].float()
            losses.append(functional.cross_entropy(ours, likely[place]))
            rights.append((ours.argmax(-1) == chosen[place].argmax(-1)).float().mean())
        return torch.stack(losses), torch.stack(rights)

    def _draw_documents(self) -> list[int]:
        """Draws documents of about `lesson_tokens` tokens; each comes once before any comes again."""
        drawn: list[int] = []
        size = 0
        while size < self.course.lesson_tokens:
            if not self.order:
                self.order = self.rng.sample(range(self.states.num_documents), self.states.num_documents)
            number = self.order.pop()
            drawn.append(number)
            size += int(self.states.starts[number + 1] - self.states.starts[number])
        return drawn


def export_head(head: Head, spec: ModelSpec, directory: Path) -> None:
    """Writes config.json and weights in bf16, with the names of the public format."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().bfloat16().contiguous() for name, tensor in named_parts(head).items()}
    save_tensors(directory / SINGLE, tensors)
    write_json(directory / "config.json", write_config(head.shape, spec))


@torch.no_grad()
def import_head(head: Head, directory: Path) -> None:
    """Loads an exported head of the same shape, so that training can continue from it."""
    stored = load_file(directory / SINGLE)
    for name, tensor in named_parts(head).items():
        tensor.copy_(stored[name])


def named_parts(head: Head) -> dict[str, Tensor]:
    """Returns views of the weights by the names of the public format."""
    keys, values = head.kv.split(head.shape.kv_size)
    gate, up = head.gate_up.chunk(2)
    return {
        "fc.weight": head.fc,
        **{f"fc_norm.{number}.weight": weight for number, weight in enumerate(head.fc_norm)},
        "midlayer.input_layernorm.weight": head.embed_norm,
        "midlayer.hidden_norm.weight": head.hidden_norm,
        "midlayer.self_attn.q_proj.weight": head.q,
        "midlayer.self_attn.k_proj.weight": keys,
        "midlayer.self_attn.v_proj.weight": values,
        "midlayer.self_attn.o_proj.weight": head.o,
        "midlayer.post_attention_layernorm.weight": head.post_norm,
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": up,
        "midlayer.mlp.down_proj.weight": head.down,
        "norm.weight": head.norm,
    }


def write_config(shape: HeadShape, spec: ModelSpec) -> dict[str, Any]:
    """Returns the content of config.json; embedding and lm_head are the target's, so the vocabularies are equal."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": spec.max_context,
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": spec.vocab_size,
        "target_hidden_size": spec.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(shape.boundaries),
        "fc_norm": True,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "tie_word_embeddings": False,
        "usual_acceptance": USUAL_ACCEPTANCE,
        "torch_dtype": "bfloat16",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an Eagle3 head for Kindling.")
    parser.add_argument("scratch", type=Path, help="folder for the target's states and the log")
    parser.add_argument("directory", type=Path, nargs="?", default=SHIPPED)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--tokens", type=int, default=300_000, help="tokens of training text")
    parser.add_argument("--boundaries", default="4,6,8", help="states of the target to read")
    parser.add_argument("--draft-steps", type=int, default=HeadCourse.draft_steps)
    parser.add_argument("--lesson-tokens", type=int, default=HeadCourse.lesson_tokens)
    parser.add_argument("--peak-lr", type=float, default=HeadCourse.peak_lr)
    parser.add_argument("--seed", type=int, default=HeadCourse.seed, help="of the order of documents")
    parser.add_argument("--start", type=Path, help="folder of a head to start from")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.scratch.mkdir(parents=True, exist_ok=True)
    states = collect_states(given.scratch / "states.pt", num_tokens=given.tokens, seed=STATES_SEED)
    boundaries = tuple(map(int, given.boundaries.split(",")))
    course = HeadCourse(
        steps=given.steps,
        draft_steps=given.draft_steps,
        lesson_tokens=given.lesson_tokens,
        peak_lr=given.peak_lr,
        seed=given.seed,
    )
    trainer = HeadTrainer(course, states, Target(), HeadShape(boundaries=boundaries))
    if given.start is not None:
        import_head(trainer.head, given.start)
    trainer.run(given.scratch / "log.jsonl", given.directory)


if __name__ == "__main__":
    main()
