"""Measures how many drafted tokens Kindling's own greedy choice accepts, on held-out prompts, for any drafter.

python -m kindling.acceptance [--drafter eagle3] [--directory DIR] [--tokens 3] [--per-family 4] [--record]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firesteel.chat.harmony import Harmony
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.eval import encode_prompt, take
from firesteel.exam import EXAM, read_items
from firesteel.hub import BUILT_IN
from firesteel.llm import LLM
from firesteel.measure.record import Record
from firesteel.model.drafters.drafter import DraftContext, Drafter
from firesteel.model.drafters.load import KINDS
from firesteel.model.drafters.wiring import suspect_wiring
from firesteel.model.gpt_oss import GptOss
from firesteel.types import Batch, KvView, Plan, Request, SamplingParams, Span, Taps

RECORDS = Path(__file__).parents[2] / "records" / "kindling-drafters"
PAGE_SIZE = 16
MOST_TOKENS = 64  # generated per prompt
LEFT_OUT = ("retrieval_long",)  # minutes of prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt with the target's continuation, and the target's states at every token."""

    token_ids: list[int]
    num_prompt: int
    features: Tensor  # [tokens, F]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Counts of a run; the token that a prompt itself gives is not counted."""

    steps: int  # of the target
    tokens: int  # that these gave
    drafted: tuple[int, ...]  # by place in the draft
    accepted: tuple[int, ...]  # the same; a token is accepted only with all before it

    @property
    def length(self) -> float:
        """The tokens per step of the target, its own included."""
        return self.tokens / self.steps

    def rate(self, place: int) -> float:
        """The share of drafts that are accepted up to `place`, from 1 on."""
        return self.accepted[place - 1] / max(1, self.drafted[place - 1])


def measure_acceptance(drafter: Drafter, texts: Sequence[Text], k: int) -> Acceptance:
    """Drafts k tokens at a time along all texts together, which stand for what the target would choose."""
    width = max(-(-(len(text.token_ids) + drafter.reach + 1) // PAGE_SIZE) for text in texts)
    drafter.attach(1 + width * len(texts), PAGE_SIZE, torch.device("cpu"))
    table = 1 + torch.arange(width * len(texts)).view(len(texts), width)
    fed, known = [0] * len(texts), [text.num_prompt + 1 for text in texts]
    steps = tokens = 0
    drafted, accepted = [0] * k, [0] * k
    while running := [number for number, text in enumerate(texts) if known[number] < len(text.token_ids)]:
        spans = [range(fed[number], known[number] - 1) for number in running]
        # The last token of a step is the target's own.
        counts = [min(k, len(texts[number].token_ids) - known[number] - 1) for number in running]
        with torch.inference_mode():
            context = _make_context([texts[number] for number in running], spans, table[running])
            drafts = drafter.draft(context, counts).tolist()
        for number, draft, count in zip(running, drafts, counts, strict=True):
            following = texts[number].token_ids[known[number] : known[number] + count]
            pairs = zip(draft[:count], following, strict=True)
            right = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), count)
            for place in range(count):
                drafted[place] += 1
                accepted[place] += place < right
            fed[number], known[number] = known[number] - 1, known[number] + right + 1
            steps, tokens = steps + 1, tokens + right + 1
    return Acceptance(steps=steps, tokens=tokens, drafted=tuple(drafted), accepted=tuple(accepted))


def _make_context(texts: Sequence[Text], spans: Sequence[range], table: Tensor) -> DraftContext:
    """Returns the rows `spans` of the texts as a step would have computed them."""
    positions = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    rows = torch.cat([torch.full((len(span),), number) for number, span in enumerate(spans)])
    slots = table[rows, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    view = KvView(page_table=table, slots=slots)
    pairs = list(zip(texts, spans, strict=True))
    batch = Batch(
        token_ids=torch.tensor([token for text, span in pairs for token in text.token_ids[span.start : span.stop]]),
        positions=positions,
        query_starts=torch.tensor([0, *map(len, spans)]).cumsum(0),
        kv_lens=torch.tensor([span.stop for span in spans]),
        full=view,
        window=view,
        logit_rows=torch.zeros(0, dtype=torch.int64),
    )
    return DraftContext(
        batch=batch,
        features=torch.cat([text.features[span.start : span.stop] for text, span in pairs]),
        followers=torch.tensor(
            [token for text, span in pairs for token in text.token_ids[span.start + 1 : span.stop + 1]]
        ),
        next_ids=torch.tensor([text.token_ids[span.stop] for text, span in pairs]),
    )


def continue_greedily(
    llm: LLM, prompts: Sequence[Sequence[int]], boundaries: tuple[int, ...], most_tokens: int = MOST_TOKENS
) -> list[Text]:
    """Returns the target's greedy continuation of each prompt, with its states at `boundaries`."""
    generations = llm.generate(prompts, SamplingParams(max_tokens=most_tokens), progress=False)
    texts = []
    for prompt, generation in zip(prompts, generations, strict=True):
        token_ids = [*prompt, *generation.token_ids]
        features = compute_states(llm.model, token_ids, boundaries)
        texts.append(Text(token_ids=token_ids, num_prompt=len(prompt), features=features))
    return texts


@torch.inference_mode()
def compute_states(model: GptOss, token_ids: list[int], boundaries: tuple[int, ...]) -> Tensor:
    """Returns the model's residuals at `boundaries` side by side for every token of a text."""
    num_pages = -(-len(token_ids) // PAGE_SIZE)
    span = Span(
        request=Request(request_id="states", token_ids=token_ids, params=SamplingParams()),
        token_ids=token_ids,
        start=0,
        end=len(token_ids),
        full_pages=range(num_pages),
        window_pages=range(num_pages, 2 * num_pages),
        num_logits=0,
    )
    cpu = find_device("cpu")
    rows = torch.empty(len(token_ids), len(boundaries) * model.spec.hidden_size, dtype=model.dtype)
    cache = new_cache(model.spec, 2 * num_pages, PAGE_SIZE, cpu, model.dtype)
    taps = Taps(boundaries=boundaries, rows=rows)
    model.forward(build_batch(Plan(spans=[span]), PAGE_SIZE, cpu.torch_device), cache, taps=taps)
    return rows


def held_out_prompts(llm: LLM, per_family: int) -> list[list[int]]:
    """Returns prompts of the exam, which training never saw: some of each family."""
    harmony = Harmony(llm.tokenizer)
    items = [item for item in take(read_items(EXAM), per_family) if item.family not in LEFT_OUT]
    return [encode_prompt(harmony, llm, item) for item in items]


def measure_record(llm: LLM, kind: str, directory: Path, *, k: int, per_family: int) -> Record:
    """Measures a drafter of Kindling; the sample is its acceptance length."""
    drafter = KINDS[kind](directory, llm.model, llm.device)
    texts = continue_greedily(llm, held_out_prompts(llm, per_family), drafter.boundaries)
    measured = measure_acceptance(drafter, texts, k)
    return Record.now(
        llm.device,
        llm.settings.config,
        name=f"acceptance {kind}",
        unit="tokens per step",
        samples=[measured.length],
        warmups=0,
        parameters={
            "k": k,
            "usual": getattr(drafter, "usual_acceptance", None),
            "prompts": len(texts),
            "steps": measured.steps,
            "tokens": measured.tokens,
            "drafted": list(measured.drafted),
            "accepted": list(measured.accepted),
        },
        kernels=llm.kernels.table(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the acceptance of a drafter of Kindling.")
    parser.add_argument("--drafter", choices=KINDS, default="eagle3")
    parser.add_argument("--directory", type=Path, help="folder of the drafter (default: the shipped one)")
    parser.add_argument("--tokens", type=int, default=3, help="tokens drafted at a time")
    parser.add_argument("--per-family", type=int, default=4, help="prompts of each family of the exam")
    parser.add_argument("--record", action="store_true", help=f"save a record in {RECORDS.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    directory = given.directory or BUILT_IN.with_name(f"kindling_{given.drafter}")
    llm = LLM(device="cpu")
    record = measure_record(llm, given.drafter, directory, k=given.tokens, per_family=given.per_family)
    facts = record.parameters
    rates = [ours / max(1, all_) for ours, all_ in zip(facts["accepted"], facts["drafted"], strict=True)]
    print(f"{record.median:.2f} tokens per step; accepted by place: {', '.join(f'{rate:.3f}' for rate in rates)}")
    if warning := suspect_wiring(rates[0], facts["drafted"][0], facts["usual"]):
        print(warning)
    if given.record:
        print(record.save(RECORDS))


if __name__ == "__main__":
    main()
