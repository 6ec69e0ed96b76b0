"""Times whole decode steps with several plans of the decode kernels, one after the other on one GPU.

python tools/sweep.py [--mxfp4] [--context 2048,32768] PLAN ...

A PLAN lists its changes, joined by commas: implementations of ops and constants of their modules, such as
decode_experts=cuda:passed,decode.experts_plan.PASSED_FLIGHT=3,decode.attention_plan.STAGES=3.
`plain` changes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from firesteel.cli.bench.model import open_model
from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.kernels.stream.build import forget_plans
from firesteel.measure.decode.bench import DecodeSubject, DecodeSweep, choose_decode_ops, open_step
from firesteel.measure.decode.steps import time_steps
from firesteel.measure.decode.variants import list_variants, time_groups
from firesteel.measure.ops.memory import free_memory

DENSE = "qkv,o,lm_head"
STEPS, GROUP_STEPS = 200, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", default="gpt-oss-120b")
    parser.add_argument("--mxfp4", action="store_true", help="MXFP4 dense layers")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", default="2048")
    parser.add_argument("plans", nargs="+", metavar="PLAN")
    asked = parser.parse_args()
    plans = {words: read_plan(words) for words in asked.plans}
    contexts = tuple(map(int, asked.context.split(",")))
    plan = DecodeSweep(batches=(asked.batch,), contexts=contexts, steps=STEPS, check=1, delays=False)
    settings = {"mxfp4_layers": DENSE if asked.mxfp4 else "", "kv_cache_gib": 0.1}
    name, loaded = open_model(resolve(settings).config, asked.synthetic)
    print(f"{name}, {'all MXFP4' if asked.mxfp4 else 'as shipped'}: ms per step; us of each group", flush=True)
    for words, (pins, constants) in plans.items():
        config = resolve({**settings, "kernels": ",".join(pins)}).config
        for context in contexts:
            try:
                with changed(constants):
                    ops = choose_decode_ops(loaded, config)
                    subject = DecodeSubject(name=name, loaded=loaded, ops=ops, config=config, read_gb_s=1.0)
                    print(f"{words:60} {context:6} {time_plan(plan, subject, asked.batch, context)}", flush=True)
            except UserError as error:
                print(f"{words:60} {context:6} {error}", flush=True)
            free_memory(loaded.device)


def read_plan(words: str) -> tuple[list[str], dict[tuple[str, str], int]]:
    """Parses a plan into pins of ops, and values by module and constant."""
    pins, constants = [], {}
    for word in words.split(",") if words != "plain" else []:
        left, _, right = word.partition("=")
        module, dot, constant = left.rpartition(".")
        if not dot:
            pins.append(word)
        elif hasattr(sys.modules.get(f"firesteel.kernels.{module}"), constant) and right.isdigit():
            constants[f"firesteel.kernels.{module}", constant] = int(right)
        else:
            sys.exit(
                f"{word}: must be MODULE.CONSTANT=NUMBER, a module of firesteel.kernels, such as "
                "decode.experts_plan.PASSED_FLIGHT=2"
            )
    return pins, constants


@contextmanager
def changed(constants: dict[tuple[str, str], int]) -> Iterator[None]:
    """Applies the plan inside the context."""
    before = {(module, name): getattr(sys.modules[module], name) for module, name in constants}
    put(constants)
    try:
        yield
    finally:
        put(before)


def put(constants: dict[tuple[str, str], int]) -> None:
    for (module, name), value in constants.items():
        setattr(sys.modules[module], name, value)
    forget_plans()


@torch.inference_mode()
def time_plan(plan: DecodeSweep, subject: DecodeSubject, batch: int, context: int) -> str:
    step = open_step(plan, subject, batch, context)
    begin, device = step.inputs.copy(), subject.loaded.device
    way = list_variants(device, subject.config.kernels)[-1]
    samples = time_steps(way.open(step, device), lambda: step.inputs.restore(begin), device, steps=plan.steps)
    step.inputs.restore(begin)
    groups = time_groups(step, way, device, steps=GROUP_STEPS)
    shown = " ".join(f"{group} {1e3 * ms:.0f}" for group, ms in groups.items())
    return f"{statistics.median(samples):.4f}  {shown}"


if __name__ == "__main__":
    main()
