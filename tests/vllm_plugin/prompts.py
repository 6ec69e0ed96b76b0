"""Prompts for the shipped model, and the tokens that our own engine generates for them."""

import gzip
import itertools
from functools import cache

from firesteel import LLM, SamplingParams
from firesteel.hub import BUILT_IN

NEW = 12  # tokens generated per prompt
LENGTHS = (5, 17, 40, 64, 127, 129, 200, 333)  # tokens; the window has 128


@cache
def our_llm():
    return LLM("kindling", device="cpu", environ={})


@cache
def make_rounds():
    """Returns 24 prompts in four rounds.

    Eight at once; the same behind their cached prefixes, with other ends; one alone; seven of other lengths.
    """
    with gzip.open(BUILT_IN / "perplexity.jsonl.gz", "rt", encoding="utf-8") as lines:
        text = "".join(itertools.islice(lines, 200))
    tokens = our_llm().tokenizer.encode(text[:60_000])
    assert len(tokens) > 9200
    starts = range(0, 16 * 400, 400)
    first = [tokens[start : start + length] for start, length in zip(starts, LENGTHS, strict=False)]
    behind = [[*prompt, *tokens[9000 + 20 * n : 9007 + 20 * n]] for n, prompt in enumerate(first)]
    alone = [tokens[8000:8030]]
    others = [tokens[start : start + length + 3] for start, length in zip(starts[8:], LENGTHS[:7], strict=False)]
    return [first, behind, alone, others]


@cache
def expected_tokens(num_rounds=4, new=NEW):
    """Returns the greedy tokens of each prompt alone in our engine, in the shape of the first rounds."""
    llm = our_llm()
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    return [
        [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]
        for prompts in make_rounds()[:num_rounds]
    ]
