"""What `make run` does until a real model ships: writes a tiny random gpt-oss, continues a text, shows what ran."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tokenizers
from rich.console import Console

from firesteel import LLM, SamplingParams
from firesteel.cli import ledger_table
from firesteel.device import find_device
from firesteel.kernels.rope import RopeSpec
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights

SPEC = ModelSpec(
    num_layers=4, hidden_size=256, intermediate_size=256, num_heads=8, num_kv_heads=2, head_dim=64, num_experts=8,
    num_active=4, vocab_size=256, windows=(128, None, 128, None), rope=RopeSpec(theta=150000.0, factor=32.0),
    max_context=8192,
)  # fmt: skip


def write_tiny_model(folder: Path) -> None:
    save_checkpoint(folder, SPEC, synthetic_weights(SPEC, find_device("cpu"), seed=0))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder))
        llm = LLM(folder)
        llm.ledger.timed = True
        completion = llm.generate(["The capital of France is"], SamplingParams(max_tokens=64))[0]
        console.print(
            f"{len(completion.token_ids)} tokens of a random model (they mean nothing):", repr(completion.text)
        )
        console.print(ledger_table(llm))


if __name__ == "__main__":
    main()
