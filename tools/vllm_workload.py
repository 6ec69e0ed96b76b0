"""Sends the requests of `firesteel bench workload` to vLLM, stock or with the plugin, and writes records.

PYTHONPATH=src python tools/vllm_workload.py --shapes DIR --engine vllm --out records/h200-vllm-workload
DIR holds the model's config.json. The first pass is cold: kernels are compiled while requests wait. Passes repeat
the same requests, with an empty prefix cache, until no closed loop or rate of arrivals gains more than 5 %. Each
engine is measured in a process of its own, with its own defaults for graphs and steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.heap import settled_heap
from firesteel.measure.loop.mixed_requests import MixedRequests
from firesteel.measure.loop.workload import Workload, WorkloadFigures, WorkloadSweep
from firesteel.measure.record import Record
from firesteel.measure.tokens.runs import SEED
from firesteel.types import Request, StepOutput
from vllm_bench import ENGINES, prepare_environment

SETTLED = 1.05  # ratio of rates between two passes
Rates = Mapping[str, float]  # output tokens per second, keyed by workload


class VllmEngine:
    """vLLM's engine, driven step by step in this process."""

    def __init__(self, llm: Any, sampling: Any) -> None:
        self.engine = llm.llm_engine
        self.sampling = sampling
        self.num_seen: dict[str, int] = {}  # tokens of each request that were returned

    @property
    def has_work(self) -> bool:
        return bool(self.num_seen)

    def submit(self, request: Request) -> None:
        params = self.sampling(
            temperature=0.0, max_tokens=request.params.max_tokens, ignore_eos=True, detokenize=False
        )
        self.num_seen[request.request_id] = 0
        self.engine.add_request(request.request_id, {"prompt_token_ids": list(request.token_ids)}, params)

    def step(self) -> list[StepOutput]:
        """Returns the new tokens: vLLM returns all tokens of a request each time."""
        return [self._convert(output) for output in self.engine.step()]

    def _convert(self, output: Any) -> StepOutput:
        completion, name = output.outputs[0], output.request_id
        token_ids = list(completion.token_ids)[self.num_seen[name] :]
        self.num_seen[name] += len(token_ids)
        if output.finished:
            del self.num_seen[name]
        return StepOutput(
            request_id=name,
            token_ids=token_ids,
            finish_reason=completion.finish_reason if output.finished else None,
            num_cached=output.num_cached_tokens or 0,
        )


def has_settled(before: Rates | None, now: Rates) -> bool:
    """Tells whether no rate gained more than 5 % since the pass before; chat turns have none."""
    return before is not None and all(rate <= SETTLED * before[name] for name, rate in now.items())


def describe(figures: WorkloadFigures) -> str:
    return f"{figures.kind} " + " ".join(f"{key}={value:g}" for key, value in figures.parameters.items())


def run_pass(engine: VllmEngine, sweep: WorkloadSweep, workload: Workload) -> list[WorkloadFigures]:
    with settled_heap():
        return list(sweep.run(engine, workload))


def list_rates(measured: Sequence[WorkloadFigures]) -> Rates:
    return {describe(figures): figures.output_tok_s for figures in measured if figures.kind != "turns"}


def make_record(figures: WorkloadFigures, number: int, startup_s: float, arguments: argparse.Namespace) -> Record:
    import vllm

    runner = "V2" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else "V1"
    facts = {"engine": arguments.engine, "vllm": vllm.__version__, "runner": runner, "pass": number}
    return Record.now(
        find_device(),
        resolve().config,
        name=f"{arguments.engine} {runner} workload {describe(figures)} pass {number}",
        unit="ms",
        samples=figures.first_token_ms,
        warmups=number,
        parameters={"model": f"{arguments.shapes.name}, random weights", **facts, **figures.as_dict()},
        startup_s=startup_s,
        seed=SEED,
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path, required=True, help="folder with the model's config.json")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    parser.add_argument("--turns", type=int, nargs="*", default=[1024, 8192], help="cached tokens before turns")
    parser.add_argument("--closed", type=int, nargs="*", default=[1, 8, 32, 64], help="requests in flight")
    parser.add_argument("--rates", type=int, nargs="*", default=[2, 6], help="requests per second")
    parser.add_argument("--open-s", type=float, default=12.0, help="seconds during which requests arrive")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every length, for a trial")
    parser.add_argument("--most-passes", type=int, default=6)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--memory", type=float, default=0.9, help="share of the memory (default: 0.9)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    prepare_environment(arguments.engine)
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    llm = LLM(
        model=str(arguments.shapes),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        gpu_memory_utilization=arguments.memory,
        enable_prefix_caching=True,
        seed=0,
        generation_config="vllm",
        disable_log_stats=True,
    )
    startup_s = time.perf_counter() - start
    status = 0
    try:
        measure(llm, VllmEngine(llm, SamplingParams), arguments, startup_s)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # vLLM's threads would keep the process


def measure(llm: Any, engine: VllmEngine, arguments: argparse.Namespace, startup_s: float) -> None:
    """Runs passes until they settle, and keeps the records of each."""
    sweep = WorkloadSweep(
        contexts=tuple(arguments.turns),
        new=(20, 200),
        in_flight=tuple(arguments.closed),
        rates=tuple(arguments.rates),
        open_s=arguments.open_s,
    )
    workload = Workload(MixedRequests(vocab_size=llm.model_config.get_vocab_size(), scale=arguments.scale))
    before: Rates | None = None
    for number in range(1, arguments.most_passes + 1):
        measured = run_pass(engine, sweep, workload)
        for figures in measured:
            make_record(figures, number, startup_s, arguments).save(arguments.out)
            print(f"pass {number}: {describe(figures)}: {figures.output_tok_s:.0f} tok/s", flush=True)
        rates = list_rates(measured)
        if has_settled(before, rates):
            return
        before = rates
        if not llm.reset_prefix_cache():
            raise SystemExit("vLLM did not empty its prefix cache, so another pass would find its prompts there")
    print(f"rates still grew in pass {arguments.most_passes}: raise --most-passes", flush=True)


if __name__ == "__main__":
    main()
