"""Checks kernel libraries on a GPU beyond `firesteel verify`: orders, quantisers, machine code and whole engines.

PYTHONPATH=src python tools/kernel_libraries.py [orders] [quantizers] [proof] [engine] [engine-120b]

orders      our orders of FlashInfer's weights against its own functions, bit for bit
quantizers  FlashInfer's MXFP4 quantiser and dequantiser against ours
proof       the verdict on each kernel that a library launched, and on those in its compiled modules
engine      greedy tokens of the built-in model with each library against those of our kernels, the ledger of each,
            and the kernels that a profiler saw
engine-120b the same with random weights at the widths of gpt-oss-120b, in 4 layers
Prints one row for each check, and a table of all of them last. Exits with 1 if one is wrong.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import firesteel
from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.engine.load import Loaded, load_engine, synthetic_engine
from firesteel.formats import mxfp4
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.libraries.flashinfer import import_flashinfer
from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts, fold_scales
from firesteel.kernels.libraries.flashinfer_order import HOPPER_ROWS, restore_codes, restore_scales
from firesteel.kernels.libraries.package import find_flashinfer, list_compiled
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.verdict import judge_compiled
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.library import read_library
from firesteel.kernels.proof.profile_check import count_kernels, new_profiler
from firesteel.measure.tokens.agreement import compare
from firesteel.measure.tokens.runs import draw_requests, run_together
from firesteel.model.spec import PRESETS
from firesteel.types import SamplingParams

SIZE = 2880
SEED = 7
LENGTHS = (5, 20, 129, 500, 64, 33, 7, 300)
NEW = 32  # tokens per request
TIE = 0.25  # nats between the two best tokens: two steps of a bf16 logit, up to which another rounding may decide
FP8_TIE = 0.5  # with activations rounded to E4M3
OWN_TIMES = 2.0  # the margin at which our own kernels part may be exceeded by this factor
LAYERS = 4  # of random weights
RUNS = {  # what is asked of the engine -> words in the names of kernels that a profiler must see
    "attention=flashinfer:fa3": ("PrefillWithKVCacheKernel", "SparseCollectiveMainloop"),
    "attention=flashinfer:fa2": ("BatchPrefillWithPagedKVCache",),
    "moe_matmul=triton_kernels": ("matmul_ogs",),
    "moe_matmul=flashinfer:bf16": ("GemmUniversal",),
    "moe_matmul=flashinfer:fp8": ("GemmUniversal",),
}


JUDGED = {True: "right", False: "WRONG", None: ""}


class Row(NamedTuple):
    check: str
    found: str
    is_right: bool | None  # None: a finding, neither right nor wrong


def main() -> None:
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "orders": check_orders,
        "quantizers": check_quantizers,
        "proof": show_proof,
        "engine": lambda: check_engines(None),
        "engine-120b": lambda: check_engines(LAYERS),
    }
    asked = sys.argv[1:] or list(parts)
    if not set(asked) <= set(parts):
        sys.exit(__doc__)
    rows: list[Row] = []
    for part in asked:
        try:
            for row in parts[part]():
                rows.append(row)
                print(f"{part}: {row.check}: {row.found}", flush=True)
        except Exception as error:  # one part must not hide the others
            traceback.print_exc()
            rows.append(Row(part, f"{type(error).__name__}: {str(error).splitlines()[0]}", False))
    print("\n| check | found | |\n|---|---|---|")
    for row in rows:
        print(f"| {row.check} | {row.found} | {JUDGED[row.is_right]} |")
    sys.exit(any(row.is_right is False for row in rows))


def check_orders() -> Iterator[Row]:
    library = import_flashinfer().fused_moe
    generator = torch.Generator("cuda").manual_seed(SEED)
    experts = random_experts(4, SIZE, SIZE, generator)
    for kind, name in (("bf16", "fp4"), ("fp8", "fp4_fp8")):
        packed = FlashinferExperts.pack(experts, kind)
        codes, scales = restore_codes(packed.down_values, kind), restore_scales(packed.down_scales, HOPPER_ROWS)
        same = torch.equal(library.interleave_moe_weights_for_sm90_mixed_gemm(codes, name), packed.down_values)
        yield Row(f"order of codes, {kind}", "bit for bit" if same else "other bits", same)
        same = torch.equal(library.interleave_moe_scales_for_sm90_mixed_gemm(scales), packed.down_scales)
        yield Row(f"order of scales, {kind}", "bit for bit" if same else "other bits", same)
    for span in (3, 40):
        codes = torch.randint(256, (4, 64, 64), dtype=torch.uint8, device="cuda", generator=generator)
        scales = torch.randint(100, 100 + span, (4, 64, 4), dtype=torch.uint8, device="cuda", generator=generator)
        fold = library.preprocess_moe_weights_for_sm90_mixed_gemm_humming
        theirs, ours = fold(codes, scales, interleave=False), fold_scales(codes, scales)
        same = torch.equal(_without_negative_zero(theirs[0]), ours[0]) and torch.equal(theirs[1], ours[1])
        same = same and torch.equal(theirs[2] * 64, ours[2])
        yield Row(f"folded scales that span {span - 1}", "equal but for -0" if same else "other bits", same)


def _without_negative_zero(codes: Tensor) -> Tensor:
    low, high = codes & 15, codes >> 4
    low, high = (torch.where(part == 8, 0, part) for part in (low, high))
    return low | high << 4


def check_quantizers() -> Iterator[Row]:
    library = import_flashinfer()
    linear = library.SfLayout.layout_linear
    x = torch.randn(256, SIZE, device="cuda", generator=torch.Generator("cuda").manual_seed(SEED)).bfloat16()
    codes, scales = mxfp4.quantize(x.float())
    ours = mxfp4.dequantize(codes, scales)
    theirs = library.mxfp4_dequantize(codes, scales, sfLayout=linear).to(ours.device)
    same = torch.equal(theirs, ours)
    yield Row("mxfp4_dequantize of our codes", "bit for bit" if same else _describe_difference(theirs, ours), same)
    their_codes, their_scales = library.mxfp4_quantize(x, sfLayout=linear)
    shares = [
        (theirs != ours).float().mean().item() for theirs, ours in ((their_codes, codes), (their_scales, scales))
    ]
    zeros = (their_codes == 0).float().mean().item()
    found = f"{shares[0]:.1%} of bytes of codes and {shares[1]:.1%} of scales differ, {zeros:.1%} of theirs are 0"
    yield Row("mxfp4_quantize on this GPU", found, None)


def _describe_difference(theirs: Tensor, ours: Tensor) -> str:
    return f"{(theirs != ours).float().mean().item():.2%} differ, by up to {(theirs - ours).abs().max().item():.3g}"


def show_proof() -> Iterator[Row]:
    device, implementation = find_device("cuda"), moe_matmul.implementations["triton_kernels"]
    if why := implementation.needs(device):
        yield Row("triton_kernels", why, None)
    else:
        assert moe_matmul.make_samples is not None and implementation.pack is not None
        ledger, sample = Ledger(), next(iter(moe_matmul.make_samples(device.torch_device)))
        Chosen(moe_matmul, [implementation], ledger)(*implementation.pack([sample.args])[0])
        for launch in (launch for entry in ledger.entries.values() for launch in entry.launches):
            verdict = "unknown" if launch.compiled is None else judge_compiled(launch.compiled)
            yield Row(f"triton_kernels: {launch.kernel}", verdict, None)
    package = find_flashinfer()
    for module, path in ({} if package is None else list_compiled(package)).items():
        kernels = read_library(path)
        counts = Counter(kernel.verdict for kernel in kernels)
        found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        spilling = sum(kernel.spills > 0 for kernel in kernels)
        yield Row(module, f"{len(kernels)} kernels: {found}; {spilling} use the stack", None)


def check_engines(layers: int | None) -> Iterator[Row]:
    """Compares each library with Triton's kernel of its op; our own kernels bound how much may differ."""
    model = "Kindling" if layers is None else f"{layers} layers of 120b"
    fused = run_engine("", layers)[0]
    ours = {op: run_engine(f"{op}=triton", layers) for op in dict.fromkeys(name.partition("=")[0] for name in RUNS)}
    equal, own = judge_tokens(ours["attention"], fused)
    yield Row(f"ours op by op and fused, {model}", describe_tokens(equal, len(LENGTHS), own), None)
    for kernels, words in RUNS.items():
        op, _, name = kernels.partition("=")
        label = f"{kernels}, {model}"
        try:
            tokens, _, ledger, seen = run_engine(kernels, layers)
        except Exception as error:  # the next library may run
            traceback.print_exc()
            yield Row(label, f"{type(error).__name__}: {str(error).splitlines()[0]}", False)
            continue
        equal, worst = judge_tokens(ours[op], tokens)
        bound = max(FP8_TIE if kernels.endswith("fp8") else TIE, OWN_TIMES * own)
        yield Row(label, describe_tokens(equal, len(LENGTHS), worst), worst <= bound)
        counted = [
            f"{ran.implementation} {entry.calls} calls" for ran, entry in ledger.entries.items() if ran.op == op
        ]
        is_alone = all(ran.implementation == name for ran in ledger.entries if ran.op == op)
        matching = {kernel: count for kernel, count in seen.items() if all(word in kernel for word in words)}
        found = (
            f"ledger: {', '.join(counted)}; profiler: {sum(matching.values())} launches of {len(matching)} kernels"
        )
        yield Row(f"{label}: what ran", found, is_alone and bool(matching))


def judge_tokens(expected: Any, tokens: Any) -> tuple[int, float]:
    """Returns how many requests have equal tokens, and the largest margin at which the others part."""
    wanted, margins, *_ = expected
    pairs = [compare(wanted[name], tokens[name], margins[name]) for name in wanted]
    return sum(pair.is_equal for pair in pairs), max((pair.margin or 0.0 for pair in pairs), default=0.0)


def describe_tokens(equal: int, count: int, worst: float) -> str:
    return f"{equal} of {count} requests equal, others part at margins of up to {worst:.3f} nats"


def run_engine(kernels: str, layers: int | None) -> tuple[Any, Any, Ledger, Any]:
    """Returns tokens and margins by request, the ledger, and the kernels of a second run by a profiler's names."""
    loaded = open_engine(kernels, layers)
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=2)
    requests = draw_requests(LENGTHS, params, loaded.spec.vocab_size, seed=SEED)
    outputs = run_together(loaded.engine, requests)
    with new_profiler() as profiler:
        run_together(
            loaded.engine, [replace(request, request_id=f"{request.request_id}-again") for request in requests]
        )
        torch.cuda.synchronize()
    result = outputs.tokens, outputs.margins, loaded.kernels.ledger, count_kernels(profiler)
    del loaded
    torch.cuda.empty_cache()
    return result


def open_engine(kernels: str, layers: int | None) -> Loaded:
    settings: dict[str, Any] = {
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "prefix_caching": False,
        "kv_cache_gib": 2.0,
    }
    if kernels:
        settings["kernels"] = kernels
    if kernels.startswith("attention"):
        settings["cuda_graphs"] = False
    folder = Path(firesteel.__file__).parent / "kindling"
    config = resolve({"model": str(folder), **settings}, environ={}).config
    if layers is None:
        return load_engine(folder, config)
    spec = PRESETS["gpt-oss-120b"]
    return synthetic_engine(replace(spec, num_layers=layers, windows=spec.windows[:layers]), config, seed=SEED)


if __name__ == "__main__":
    main()
