"""Texts with what Kindling computes on them: the features a DFlash drafter reads, and the tokens it must draft.

The text of a document is given to Kindling whole. After each token Kindling's most likely one is the label; drafts
after a token are compared with it for as long as the text is what Kindling itself would have written.

Shape letters: n tokens of a text, F features, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from kindling.corpus import training_documents
from kindling.feed import ANSWER, Encoded, Encoder
from kindling.network import Masks, Network, norm

HEADER = 2  # tokens of <|start|>assistant, which begin a later message of an answer and count as the prompt's
LONGEST = 384  # tokens of a text: longer ones cost more than they teach
BATCH_TOKENS = {"cpu": 1024, "cuda": 32_768}  # that Kindling computes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    token_ids: Tensor  # [n] int64
    features: Tensor  # [n, F] bf16, on the device that trains
    labels: Tensor  # [n] int64, Kindling's most likely token after each
    anchors: Tensor  # places of tokens after which Kindling drafts: those of answers, but the last of the text

    def find_labels(self, anchors: Tensor, num_drafted: int) -> tuple[Tensor, Tensor]:
        """Returns the tokens after each anchor [A, drafted], and which of them Kindling would compare drafts with.

        The first token that Kindling would not have written ends the comparison after its label.
        """
        length = len(self.token_ids)
        places = anchors[:, None] + torch.arange(num_drafted)
        inside = places < length - 1
        places = places.clamp(max=length - 2)
        is_own = (self.token_ids[places + 1] == self.labels[places]) & inside
        before = functional.pad(is_own[:, :-1], (1, 0), value=True).cumprod(-1).bool()
        return self.labels[places], before & inside


def draw_texts(directory: Path, network: Network, layers: Sequence[int], *, seed: int, count: int) -> list[Text]:
    """Returns `count` training texts, shorter ones first, with the outputs of `layers` as features."""
    encoder = Encoder(directory)
    documents = islice(
        _short(encoder.encode(document) for document in training_documents(seed, long_share=0)), count
    )
    ordered = sorted(documents, key=lambda document: len(document.token_ids))
    most_tokens = BATCH_TOKENS[network.lm_head.device.type]
    return [text for batch in _batches(ordered, most_tokens) for text in compute_texts(network, layers, batch)]


def fast_products(device: torch.device) -> torch.autocast:
    """Multiplies in bf16 inside its body on a GPU, and on CPUs with instructions for it: five times as fast."""
    is_fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=is_fast)


@torch.no_grad()
def compute_texts(network: Network, layers: Sequence[int], documents: Sequence[Encoded]) -> list[Text]:
    """Runs Kindling on whole documents."""
    rows = [torch.from_numpy(document.token_ids).long() for document in documents]
    device = network.lm_head.device
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    with fast_products(device):
        hidden, outputs = run(network, padded, layers)
        labels = functional.linear(hidden, network.lm_head).argmax(-1).cpu()
    texts = []
    for number, (row, document) in enumerate(zip(rows, documents, strict=True)):
        features = outputs[number, : len(row)].bfloat16().clone()
        own = labels[number, : len(row)].clone()
        texts.append(Text(token_ids=row, features=features, labels=own, anchors=find_anchors(document)))
    return texts


def run(network: Network, token_ids: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns hidden rows [B, n, H] after the last norm, and the outputs of `layers` side by side [B, n, F]."""
    length = token_ids.shape[1]
    order = torch.arange(length, device=token_ids.device)
    full = (order[:, None] >= order)[None]
    window = next(window for window in network.spec.windows if window is not None)
    masks = Masks(full, full & (order[:, None] - order < window))
    cos, sin = network.table[:length].unsqueeze(0).unsqueeze(1).chunk(2, dim=-1)
    x, outputs = network.embedding[token_ids], {}
    for number, (layer, width) in enumerate(zip(network.layers, network.spec.windows, strict=True)):
        x, _ = layer(x, cos, sin, masks.full if width is None else masks.window)
        outputs[number] = x
    hidden = norm(x, network.norm, network.spec.rms_eps)
    return hidden, torch.cat([outputs[layer] for layer in layers], dim=-1)


def find_anchors(document: Encoded) -> Tensor:
    """Returns the places of tokens that Kindling writes, with the header of a message that follows another."""
    is_written = torch.from_numpy(document.roles == ANSWER)
    for _ in range(HEADER):
        is_written |= functional.pad(is_written[:-1], (1, 0))
    is_written[0] = is_written[-1] = False
    return is_written.nonzero().flatten()


def _short(documents: Iterable[Encoded]) -> Iterator[Encoded]:
    return (document for document in documents if 2 < len(document.token_ids) <= LONGEST)


def _batches(documents: Sequence[Encoded], most_tokens: int) -> Iterator[list[Encoded]]:
    """Yields documents of about equal length, `most_tokens` with padding or fewer."""
    batch: list[Encoded] = []
    for document in documents:
        if batch and (len(batch) + 1) * len(document.token_ids) > most_tokens:
            yield batch
            batch = []
        batch.append(document)
    if batch:
        yield batch
