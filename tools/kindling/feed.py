"""Packs training documents into rows of tokens, in worker processes.

Each worker draws its own endless stream of documents by seed; batches are taken from the workers in turn, so the
same seed gives the same batches in the same order.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
import numpy.typing as npt

from firesteel.chat.harmony import Harmony
from firesteel.chat.tokenizer import Tokenizer
from kindling.corpus import LONG_SHARE, Document, training_documents
from kindling.tokenizer import encode_document

SHORT, LONG = 1024, 8192  # row lengths
UNTRAINED, PROMPT, ANSWER = 0, 1, 2  # what a target token counts as
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Arrays [B, L]; documents are end to end, and positions restart at zero with each."""

    token_ids: Tokens
    targets: Tokens  # token to predict at each place: the token itself, except for <|return|>
    positions: Tokens
    roles: Tokens  # roles of the targets


@dataclass(frozen=True, slots=True)
class Encoded:
    family: str
    token_ids: Tokens
    targets: Tokens
    roles: Tokens


class Encoder:
    """Encodes documents as tokens, each marked as not trained, prompt or answer.

    An earlier answer of a conversation ends with <|end|> in its history, but the model must end every answer with
    <|return|>: that is its target.
    """

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.load(directory)
        self.harmony = Harmony(self.tokenizer)
        special = self.tokenizer.special_ids
        self.start, self.end, self.return_ = special["<|start|>"], special["<|end|>"], special["<|return|>"]
        self.assistant = self.tokenizer.encode("assistant")[0]
        self.final = [special["<|channel|>"], *self.tokenizer.encode("final")]

    def encode(self, document: Document) -> Encoded:
        token_ids = np.array(encode_document(self.harmony, self.tokenizer, document), dtype=np.int32)
        if document.messages is None:
            return Encoded(document.family, token_ids, token_ids, np.full_like(token_ids, ANSWER))
        starts = np.flatnonzero(token_ids == self.start)
        roles, targets = np.full_like(token_ids, PROMPT), token_ids.copy()
        for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(token_ids)], strict=True)):
            if token_ids[begin + 1] == self.assistant:
                roles[begin:end] = ANSWER if number >= document.trained_from else UNTRAINED
                roles[begin : begin + 2] = UNTRAINED if number < document.trained_from else PROMPT
                if token_ids[begin + 2 : begin + 4].tolist() == self.final and token_ids[end - 1] == self.end:
                    targets[end - 1] = self.return_
        return Encoded(document.family, token_ids, targets, roles)


def pack(documents: Iterable[Encoded], batch_tokens: int) -> Iterator[list[list[Encoded]]]:
    """Yields batches of `batch_tokens` tokens as rows of documents: short rows, or long ones if enough came."""
    open_rows: dict[int, list[list[Encoded]]] = {SHORT: [], LONG: []}
    for document in documents:
        size = len(document.token_ids)
        if size > LONG:
            continue
        length = SHORT if size <= SHORT else LONG
        rows = open_rows[length]
        fitting = next((row for row in rows if sum(len(part.token_ids) for part in row) + size <= length), None)
        if fitting is None:
            rows.append([document])
        else:
            fitting.append(document)
        if len(rows) > batch_tokens // length:
            yield rows[: batch_tokens // length]
            open_rows[length] = rows[batch_tokens // length :]


def lay_out(rows: list[list[Encoded]]) -> Rows:
    """Returns rows of documents as arrays, padded to the short or the long length."""
    longest = max(sum(len(document.token_ids) for document in row) for row in rows)
    length = SHORT if longest <= SHORT else LONG
    token_ids, targets, positions, roles = (np.zeros((len(rows), length), dtype=np.int32) for _ in range(4))
    for number, row in enumerate(rows):
        at = 0
        for document in row:
            size = len(document.token_ids)
            token_ids[number, at : at + size] = document.token_ids
            targets[number, at : at + size] = document.targets
            positions[number, at : at + size] = np.arange(size)
            roles[number, at : at + size] = document.roles
            roles[number, at] = UNTRAINED  # nothing precedes the first token of a document
            at += size
        positions[number, at:] = np.arange(length - at)  # padding is a document that is not trained
    return Rows(token_ids, targets, positions, roles)


def batches(
    directory: Path, *, seed: int, workers: int, batch_tokens: int, long_share: float = LONG_SHARE
) -> Iterator[Rows]:
    """Yields batches without end. Without workers, the documents are drawn in this process."""
    if workers == 0:
        yield from _worker_batches(directory, seed, batch_tokens, long_share)
    context = multiprocessing.get_context("spawn")
    queues: list[Queue[Rows]] = [context.Queue(maxsize=4) for _ in range(workers)]
    for number, queue in enumerate(queues):
        arguments = (queue, directory, seed * 1000 + number, batch_tokens, long_share)
        context.Process(target=_work, args=arguments, daemon=True).start()
    while True:
        for queue in queues:
            yield queue.get(timeout=120)


def _work(queue: Queue[Rows], directory: Path, seed: int, batch_tokens: int, long_share: float) -> None:
    for rows in _worker_batches(directory, seed, batch_tokens, long_share):
        queue.put(rows)


def _worker_batches(directory: Path, seed: int, batch_tokens: int, long_share: float) -> Iterator[Rows]:
    encoder = Encoder(directory)
    encoded = (encoder.encode(document) for document in training_documents(seed, long_share=long_share))
    return map(lay_out, pack(encoded, batch_tokens))
