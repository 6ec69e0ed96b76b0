"""Measures gpt-oss inside vLLM, with random weights, by stock vLLM or by the plugin, and writes records.

PYTHONPATH=src python tools/vllm_bench.py --shapes DIR --engine vllm+firesteel --out records/h200-vllm
DIR holds the model's config.json. Each engine is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path
from typing import Any

from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.measure.record import Record

ENGINES = ("vllm", "vllm+firesteel")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, so that the engine's own time is measured
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it is compiled at first use
    "VLLM_BENCH_REALISTIC_DUMMY": "1",  # for a vLLM whose random weights would lead all tokens to the same experts
}
VOCABULARY = 199_000
SEED = 1


class Bench:
    """An engine inside vLLM, and what is measured of it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams

        self.arguments = arguments
        self.draw = random.Random(SEED)
        self.sampling = SamplingParams
        start = time.perf_counter()
        self.llm = LLM(
            model=str(arguments.shapes),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=arguments.max_model_len,
            max_num_seqs=arguments.max_num_seqs,
            gpu_memory_utilization=0.85,
            enable_prefix_caching=False,
            seed=0,
            generation_config="vllm",
            disable_log_stats=True,
            **_stock_options(arguments.engine),
        )
        self.startup_s = time.perf_counter() - start

    def generate(self, num_requests: int, prompt: int, new: int) -> float:
        """Returns the seconds that as many requests take with prompts that were never seen before."""
        params = self.sampling(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        prompts: list[Any] = [
            {"prompt_token_ids": [self.draw.randrange(VOCABULARY) for _ in range(prompt)]}
            for _ in range(num_requests)
        ]
        start = time.perf_counter()
        self.llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    def measure_decode(self, batch: int) -> Record:
        """Measures the time per step: that of many tokens less that of the first, per further token."""
        new = 257
        self.generate(batch, 64, 32)
        steps = [
            (self.generate(batch, 64, new) - self.generate(batch, 64, 1)) / (new - 1)
            for _ in range(self.arguments.runs)
        ]
        return self.record("decode", f"batch {batch}", [1e3 * step for step in steps], {"batch": batch})

    def measure_prompt(self, tokens: int) -> Record:
        for _ in range(2):
            self.generate(1, tokens, 1)
        times = [1e3 * self.generate(1, tokens, 1) for _ in range(7)]
        return self.record("first token", f"{tokens} tokens", times, {"tokens": tokens})

    def record(self, kind: str, label: str, samples: list[float], parameters: dict[str, Any]) -> Record:
        import vllm

        runner = "V2" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else "V1"
        facts = {"kind": kind, "engine": self.arguments.engine, "vllm": vllm.__version__, "runner": runner}
        return Record.now(
            find_device(),
            resolve().config,
            name=f"{self.arguments.engine} {runner} {kind} {label}",
            unit="ms",
            samples=samples,
            warmups=1,
            parameters={"model": f"{self.arguments.shapes.name}, random weights", **facts, **parameters},
            startup_s=self.startup_s,
            seed=SEED,
        )


def _stock_options(engine: str) -> dict[str, Any]:
    """Gives stock vLLM graphs for the measured numbers of tokens only: all of its own take minutes to capture."""
    if engine != "vllm":
        return {}
    return {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32, 64, 104, 504, 512]}}


def prepare_environment(engine: str) -> None:
    """Sets vLLM's variables; without the package's entry point, the plugin is registered here."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    os.environ["FIRESTEEL_VLLM"] = "off" if engine == "vllm" else "on"
    from firesteel.vllm_plugin.register import register

    register()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path, required=True, help="folder with the model's config.json")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--prompts", type=int, nargs="*", default=[20, 100, 500, 2048, 8192])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    arguments = parser.parse_args()
    prepare_environment(arguments.engine)
    bench = Bench(arguments)
    for batch in arguments.batches:
        _keep(bench.measure_decode(batch), arguments.out)
    for tokens in arguments.prompts:
        _keep(bench.measure_prompt(tokens), arguments.out)
    os._exit(0)  # vLLM's threads would keep the process


def _keep(record: Record, folder: Path) -> None:
    record.save(folder)
    print(f"{record.name}: {record.median:.3f} ms, started in {record.startup_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
