"""Trains Kindling's byte-level BPE on its training text.

python -m kindling.tokenizer OUT [--vocab 4096] [--documents 40000] writes tokenizer.json and
tokenizer_config.json, and prints tokens per document of each family.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from firesteel.chat.harmony import Harmony
from firesteel.chat.tokenizer import Tokenizer
from kindling.corpus import Document, training_documents

# Names of o200k_harmony, in its order.
SPECIAL_TOKENS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|reserved_0|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|reserved_1|>",
    "<|reserved_2|>",
    "<|reserved_3|>",
    "<|call|>",
    "<|reserved_4|>",
    "<|reserved_5|>",
    "<|reserved_6|>",
)
# Digits are separate; a word includes one leading character that is not a letter: " Paris" and "-a" are one piece.
PIECES = r"\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
TRAINING_SEED = 10_007  # not a seed that training uses
REPETITIONS = 64  # repetitions of text that every conversation has, among the few documents of the sample


def train(documents: int = 40_000, vocab_size: int = 4096) -> Backend:
    """Trains the tokenizer: ordinary tokens first, then the special ones, as in o200k_harmony."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = islice(training_documents(TRAINING_SEED, long_share=0), documents)
    backend.train_from_iterator(_texts(sample), trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return backend


def save(backend: Backend, directory: Path) -> None:
    """Writes the files that our tokenizer and AutoTokenizer of transformers load."""
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE.read_text(),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode_document(harmony: Harmony, tokenizer: Tokenizer, document: Document) -> list[int]:
    """Encodes a document: plain text ends in <|endoftext|>, a conversation as the model must end it."""
    if document.messages is None:
        return [*tokenizer.encode(document.text or ""), tokenizer.special_ids["<|endoftext|>"]]
    return harmony.encode_for_training(document.messages, keep_reasoning=True)


def count_tokens(directory: Path, documents: int = 5000) -> dict[str, float]:
    """Returns the mean tokens per document of each family."""
    tokenizer = Tokenizer.load(directory)
    harmony = Harmony(tokenizer)
    lengths: dict[str, list[int]] = defaultdict(list)
    for document in islice(training_documents(TRAINING_SEED + 1), documents):
        lengths[document.family].append(len(encode_document(harmony, tokenizer, document)))
    return {family: sum(counts) / len(counts) for family, counts in sorted(lengths.items())}


def _texts(documents: Iterator[Document]) -> Iterator[str]:
    """Yields contents and header words; texts that all documents share come only a few times."""
    for index, document in enumerate(documents):
        if document.text is not None:
            yield document.text
        for message in document.messages or ():
            if message.role != "system" or index % REPETITIONS == 0:
                yield message.content
            if message.recipient is not None:
                yield f" to={message.recipient}"
            yield from filter(None, (message.role, message.channel))
        yield from (" to", "=functions", "json")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train Kindling's tokenizer.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=40_000)
    arguments = parser.parse_args()
    save(train(arguments.documents, arguments.vocab), arguments.directory)
    for family, tokens in count_tokens(arguments.directory).items():
        print(f"{family:16} {tokens:8.1f}")


if __name__ == "__main__":
    main()
