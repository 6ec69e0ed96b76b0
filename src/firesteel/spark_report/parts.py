"""The parts of a report, most valuable first: each is a firesteel command that runs in its own process.

On a GPU the first part is one request of the largest model that fits, with all layers in MXFP4: it is the figure
that a report is asked for, and a run that ends early still has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firesteel.device import GIB, DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.target import find_target
from firesteel.plot import PlotError, check_libraries

NO_GPU = "steps are timed on a GPU only"
DECODED = {"gpt-oss-120b": 80, "gpt-oss-20b": 20}  # GiB of memory that a GPU needs for its weights and steps
MXFP4 = ("--mxfp4-layers", "qkv,o,lm_head")
AS_SERVED = {True: ("--preset", "spark"), False: MXFP4}  # by whether the GPU is an SM12x
ONE_STEP = ("--max-num-batched-tokens", "8192")  # a whole prompt
ALL_MXFP4 = "all MXFP4"  # its name in bench quality
QUICK_M = {True: "1,16,256,2048", False: "1"}  # by is_cuda
CACHE = ("--kv-cache-gib", "4")  # enough for 8 requests of 8192 tokens; leaves the host its memory
# By is_cuda. On a GPU, prompts of lengths with published figures; on a CPU, sizes that take seconds.
PROMPTS = {
    True: ("--tokens", "512,2048,8192", "--rounds", "5", *CACHE),
    False: ("--tokens", "16,64", "--rounds", "1"),
}
ENGINE = {
    True: ("--concurrency", "1,8", "--requests", "16", "--prompt-tokens", "512", "--max-tokens", "128", *CACHE),
    False: (
        "--concurrency",
        "1,2",
        "--requests",
        "2",
        "--prompt-tokens",
        "16",
        "--max-tokens",
        "8",
        "--check",
        "1",
    ),
}
# By whether it is short, as with --quick or on a CPU, and by is_cuda. llama-benchy does not count the tokens of the
# chat template if they are a fifth of the prompt: prompts are not shorter than 512 tokens.
LLAMA_BENCHY = {
    (False, True): ("--pp", "2048", "--tg", "128", "--depth", "0,4096,16384", "--runs", "3"),
    (True, True): ("--pp", "2048", "--tg", "32", "--depth", "0,4096", "--runs", "2"),
    (True, False): ("--pp", "512", "--tg", "16", "--depth", "0,512", "--runs", "1"),
}
FIRST_STEPS = {True: ("--steps", "50", "--check", "32"), False: ("--steps", "200")}  # by quick
# Minutes on a GB10 or an H200, for the list that is shown before the run: estimates, not a limit.
MINUTES = {
    "doctor": 0.5,
    "decode-gpt-oss-120b": 8,
    "decode-gpt-oss-20b": 3,
    "prefill-gpt-oss-120b": 6,
    "prefill-gpt-oss-20b": 3,
    "verify": 5,
    "prove": 3,
    "bench": 8,
    "model-prefill": 8,
    "model-decode": 8,
    "model-engine": 8,
    "model-quality": 40,
    "model-serve": 25,
    "model-llama-benchy": 8,
}
QUICK_SHARE = 0.4  # of these minutes with --quick


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand:
    name: str
    arguments: tuple[str, ...]
    minutes: float = 0.0  # expected
    result_file: str = ""  # file in the part's folder that holds its result; empty: stdout


def list_parts(device: DeviceSpec, folder: Path, *, quick: bool, model: Path | None = None) -> list[ReportCommand]:
    """Returns the parts for this machine in the order in which they run; each writes into its own folder."""
    models = [name for name in DECODED if why_not_decoded(name, device, quick=quick) is None]
    hurry = ("--quick",) if quick else ()
    steps = [part for name in models for part in _list_steps(name, device, folder, quick)]
    checks = [
        _command("verify", "verify", "--json", *hurry, quick=quick),
        _command("prove", "prove", "--json", "--target", proof_target(device), quick=quick),
        *_list_ops(device, folder, quick),
    ]
    real = [] if model is None else list(_list_real(model, device, folder, quick))
    largest = [part for part in steps if models[0] in part.name]
    smaller = [part for part in steps if part not in largest]
    doctor = _command("doctor", "doctor", "--json", quick=quick)
    return [*largest[:1], doctor, *real, *largest[1:], *checks, *smaller]


def list_left_out(device: DeviceSpec, *, quick: bool, model: Path | None) -> dict[str, str]:
    """Returns the parts that do not run on this machine, with the reason of each."""
    reasons = {f"decode-{name}": why_not_decoded(name, device, quick=quick) for name in DECODED}
    if model is not None and not device.is_cuda:
        reasons["model-decode"] = NO_GPU
    return {name: why for name, why in reasons.items() if why is not None}


def why_not_decoded(model: str, device: DeviceSpec, *, quick: bool) -> str | None:
    """Returns why no step of the model is timed here, or None."""
    if not device.is_cuda:
        return NO_GPU
    if device.memory_bytes < DECODED[model] * GIB:
        return f"needs {DECODED[model]} GiB, {device.name} has {device.memory_bytes / GIB:.0f}"
    larger = list(DECODED)[: list(DECODED).index(model)]
    is_largest = all(device.memory_bytes < DECODED[name] * GIB for name in larger)
    return None if is_largest or not quick else "--quick times the largest model only"


def can_plot() -> bool:
    try:
        check_libraries()
    except PlotError:
        return False
    return True


def proof_target(device: DeviceSpec) -> str:
    """Returns the target of this GPU, or that of GB10 if there is no GPU or we cannot compile for it."""
    if device.capability is None:
        return "sm_121a"
    try:
        return find_target(device.capability)
    except KernelError:
        return "sm_121a"


def has_native_mxfp8(device: DeviceSpec) -> bool:
    return device.capability is not None and device.capability[0] == 12


def _command(name: str, *arguments: str, quick: bool, result_file: str = "") -> ReportCommand:
    expected = next(minutes for prefix, minutes in MINUTES.items() if name.startswith(prefix))
    minutes = expected * QUICK_SHARE if quick else expected
    return ReportCommand(name=name, arguments=arguments, minutes=minutes, result_file=result_file)


def _plot_flags() -> tuple[str, ...]:
    return () if can_plot() else ("--no-plot",)


def _list_steps(model: str, device: DeviceSpec, folder: Path, quick: bool) -> Iterator[ReportCommand]:
    """Yields decoding and prompts of random weights of the model's shapes."""

    def decode(name: str, *arguments: str) -> ReportCommand:
        out = ("--out", str(folder / name), *_plot_flags())
        return _command(name, "bench", "decode", "--synthetic", model, "--json", *arguments, *out, quick=quick)

    def prefill(name: str, *arguments: str) -> ReportCommand:
        asked = ("bench", "prefill", "--synthetic", model, "--json", *PROMPTS[True], *arguments)
        return _command(name, *asked, "--out", str(folder / name), quick=quick)

    yield decode(f"decode-{model}-mxfp4", *MXFP4, "--batch", "1", "--context", "2048", *FIRST_STEPS[quick])
    if quick:
        return
    if has_native_mxfp8(device):
        yield prefill(f"prefill-{model}-as-served", *AS_SERVED[True])
        yield prefill(f"prefill-{model}-mxfp4-mxfp8", *MXFP4, *ONE_STEP, "--prefill-activation", "mxfp8")
    yield prefill(f"prefill-{model}-mxfp4", *MXFP4, *ONE_STEP, "--prefill-activation", "bf16")
    yield decode(f"decode-{model}-as-shipped", "--mxfp4-layers", "", "--batch", "1,8", "--context", "2048,8192")
    batches, contexts = ",".join(map(str, range(2, 9))), "2048,8192"
    yield decode(f"decode-{model}-mxfp4-batches", *MXFP4, "--batch", batches, "--context", contexts)
    yield decode(f"decode-{model}-mxfp4-deep", *MXFP4, "--batch", "1", "--context", "0,8192,32768")


def _list_real(model: Path, device: DeviceSpec, folder: Path, quick: bool) -> Iterator[ReportCommand]:
    """Yields loading, prompts, steps, engine, server, llama-benchy and quality of a real checkpoint."""

    def bench(name: str, verb: str, *arguments: str) -> ReportCommand:
        asked = ("bench", verb, "--model", str(model), "--json", *arguments, "--out", str(folder / name))
        return _command(name, *asked, quick=quick)

    served, is_short = AS_SERVED[has_native_mxfp8(device)], quick or not device.is_cuda
    yield bench("model-prefill", "prefill", *served, *PROMPTS[device.is_cuda])
    if device.is_cuda:
        yield bench("model-decode", "decode", *MXFP4, "--batch", "1", *FIRST_STEPS[quick], *_plot_flags())
    yield bench("model-engine", "engine", *served, *ENGINE[device.is_cuda])
    yield _command(
        "model-serve",
        *("lab", "run", "--level", "4", "--model", str(model), "--out", str(folder / "model-serve")),
        *(("--quick",) if is_short else ()),
        *("--", *served),
        quick=quick,
        result_file="result.json",
    )
    yield _command(
        "model-llama-benchy",
        *("lab", "benchy", "--json", "--model", str(model), "--out", str(folder / "model-llama-benchy")),
        *(*LLAMA_BENCHY[is_short, device.is_cuda], "--", *served),
        quick=quick,
    )
    questions = "25" if not quick else "5" if device.is_cuda else "1"  # per family
    cache = CACHE if device.is_cuda else ()
    yield bench("model-quality", "quality", "--precision", ALL_MXFP4, "--limit", questions, *cache)


def _list_ops(device: DeviceSpec, folder: Path, quick: bool) -> Iterator[ReportCommand]:
    """Yields a part per activation, with its own folder: kernels that crash the GPU affect one activation only."""
    sizes = ("--m", QUICK_M[device.is_cuda]) if quick else ()
    for activation in ACTIVATIONS if device.is_cuda else ACTIVATIONS[:1]:
        name = f"bench-{activation}"
        asked = ("bench", "ops", "--json", "--activation", activation, *sizes, "--out", str(folder / name))
        yield _command(name, *asked, *_plot_flags(), quick=quick)
