"""Compares greedy tokens of gpt-oss in vLLM with the plugin with those of our own engine, on one GPU.

PYTHONPATH=src python tools/vllm_tokens.py engine --model DIR --out ours.json
PYTHONPATH=src python tools/vllm_tokens.py vllm --model DIR --out theirs.json [--eager]
PYTHONPATH=src python tools/vllm_tokens.py compare ours.json theirs.json
DIR is a checkpoint, or a folder with config.json alone for random weights. Both sides compute the same steps: whole
prompts, all requests of a round at once, no cached prefixes, and page tables of one width. With --margins, tokens
come with their distance to the second best, in nats, which `compare` shows where requests part. Logits are rounded
to bf16, so with random weights the best two are sometimes equal: requests that part there are counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firesteel.config import resolve
from firesteel.engine.load import Loaded, load_engine, synthetic_engine
from firesteel.measure.tokens.agreement import compare
from firesteel.measure.tokens.runs import run_together
from firesteel.model.spec import read_spec
from firesteel.types import Request, SamplingParams
from vllm_bench import prepare_environment

# Prompt lengths of each round: alone, small and odd batches, eight at once, prompts past the window and long ones.
ROUNDS = [
    [5],
    [20],
    [100],
    [129],
    [500],
    [1500],
    [40, 17],
    [5, 64, 200],
    [127, 129, 3, 90],
    [300, 20, 20, 7, 61],
    [33] * 6,
    [12, 700, 12, 1, 128, 9, 55],
    [5, 17, 40, 64, 127, 129, 200, 333],
]
NEW = 32  # tokens per request
TOP = 2  # logprobs per token
SEED = 7
CONTEXT = 8192  # also the tokens of a step: no prompt is cut
MOST_REQUESTS = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens of all requests by round, and how far each was ahead of the second best, if that was noted."""

    rounds: list[list[list[int]]] = field(default_factory=list)
    margins: list[list[list[float]]] = field(default_factory=list)


def draw_rounds(vocab_size: int) -> list[list[list[int]]]:
    rng = random.Random(SEED)
    return [[[rng.randrange(vocab_size) for _ in range(length)] for length in lengths] for lengths in ROUNDS]


def is_random(model: Path) -> bool:
    return not list(model.glob("*.safetensors"))


def open_engine(model: Path) -> Loaded:
    settings = {
        "model": str(model),
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": CONTEXT,
        "max_num_seqs": MOST_REQUESTS,
        "max_decode_delay_ms": 0,
        "prefix_caching": False,
    }
    config = resolve(settings, environ={}).config
    return synthetic_engine(read_spec(model), config, seed=SEED) if is_random(model) else load_engine(model, config)


def run_engine(arguments: argparse.Namespace) -> Answer:
    loaded = open_engine(arguments.model)
    asked = TOP if arguments.margins else None
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=asked)
    answer = Answer()
    for prompts in draw_rounds(loaded.spec.vocab_size):
        requests = [
            Request(request_id=str(number), token_ids=prompt, params=params)
            for number, prompt in enumerate(prompts)
        ]
        outputs = run_together(loaded.engine, requests)
        names = [request.request_id for request in requests]
        answer.rounds.append([outputs.tokens[name] for name in names])
        answer.margins.append([outputs.margins.get(name, []) for name in names])
    return answer


def run_vllm(arguments: argparse.Namespace) -> Answer:
    prepare_environment("vllm+firesteel")
    from vllm import LLM
    from vllm import SamplingParams as Params

    llm = LLM(
        model=str(arguments.model),
        load_format="dummy" if is_random(arguments.model) else "auto",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=CONTEXT,
        max_num_batched_tokens=CONTEXT,
        max_num_seqs=MOST_REQUESTS,
        gpu_memory_utilization=arguments.memory,
        enable_prefix_caching=False,
        enforce_eager=arguments.eager,
        seed=SEED,
        generation_config="vllm",
        disable_log_stats=True,
    )
    asked = TOP if arguments.margins else None
    params = Params(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False, logprobs=asked)
    answer = Answer()
    for prompts in draw_rounds(read_spec(arguments.model).vocab_size):
        given: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(given, params, use_tqdm=False)
        completions = [output.outputs[0] for output in outputs]
        answer.rounds.append([list(completion.token_ids) for completion in completions])
        answer.margins.append([find_margins(completion.logprobs or []) for completion in completions])
    return answer


def find_margins(logprobs: list[Any]) -> list[float]:
    """Returns the distance of the two best tokens at each position, from vLLM's dictionaries of logprobs."""
    best = [sorted((entry.logprob for entry in entries.values()), reverse=True) for entries in logprobs]
    return [first - second for first, second, *_ in best]


def compare_files(arguments: argparse.Namespace) -> int:
    """Prints where requests differ; returns the number of those that do, but not at a tie of the first file."""
    expected, actual = (Answer(**json.loads(path.read_text())) for path in arguments.files)
    different = ties = requests = 0
    for lengths, ours, theirs, margins in zip(
        ROUNDS, expected.rounds, actual.rounds, expected.margins, strict=True
    ):
        for length, our_tokens, their_tokens, ahead in zip(lengths, ours, theirs, margins, strict=True):
            pair = compare(our_tokens, their_tokens, ahead)
            requests += 1
            if not pair.is_equal:
                is_tie = pair.margin == 0.0
                ties, different = ties + is_tie, different + (not is_tie)
                nats = "" if pair.margin is None else f", margin {pair.margin:.4f}"
                print(f"  {length} tokens, one of {len(lengths)}: after {pair.num_before} of {NEW} tokens{nats}")
    names = " and ".join(path.stem for path in arguments.files)
    equal = requests - different - ties
    print(
        f"{names}: {equal} of {requests} requests equal, {ties} part where the best two tokens are equally likely"
    )
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides = parser.add_subparsers(dest="side", required=True)
    for name in ("engine", "vllm"):
        side = sides.add_parser(name)
        side.add_argument("--model", type=Path, required=True, help="checkpoint, or folder with config.json")
        side.add_argument("--out", type=Path, required=True)
        side.add_argument("--margins", action="store_true", help="note how near the second best token was")
        side.add_argument("--eager", action="store_true", help="without CUDA graphs; vLLM only")
        side.add_argument("--memory", type=float, default=0.85, help="share of the GPU's memory; vLLM only")
    sides.add_parser("compare").add_argument("files", type=Path, nargs=2)
    arguments = parser.parse_args()
    if arguments.side == "compare":
        sys.exit(1 if compare_files(arguments) else 0)
    answer = (run_engine if arguments.side == "engine" else run_vllm)(arguments)
    arguments.out.write_text(json.dumps(asdict(answer)))
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads would keep the process


if __name__ == "__main__":
    main()
