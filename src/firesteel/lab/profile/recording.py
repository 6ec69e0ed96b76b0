"""Records a profile of a running server by its own profiler, while it reads prompts or decodes.

vLLM and SGLang have POST /start_profile and /stop_profile, and write traces of PyTorch's profiler to a folder of
the server's machine. vLLM's folder is set when it starts, SGLang's in the request.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.client.load_client import LoadClient
from firesteel.lab.client.prompts import Prompter, calibrate
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.trace import CPU_OP, Slice, TraceEvent, order_timeline, read_events

VLLM, SGLANG, LLAMACPP, FIRESTEEL = "vllm", "sglang", "llamacpp", "firesteel"  # as /v1/models says: owned_by
NO_ROUTE = (404, 405, 501)
NSYS = (
    "record it with `nsys profile --cuda-graph-trace=node -o report SERVER ...`, convert that with "
    "`nsys export --type sqlite report.nsys-rep`, and read it with `firesteel profile report.sqlite`"
)
CURES = {
    VLLM: (
        'start vLLM with --profiler-config \'{"profiler": "torch", "torch_profiler_dir": "/DIR"}\' '
        "(older versions: VLLM_TORCH_PROFILER_DIR=/DIR), and name that folder with --traces"
    ),
    SGLANG: "SGLang itself always has one, so a proxy in front of it may hide /start_profile: name its own port",
    LLAMACPP: f"llama-server has none: {NSYS}",
    FIRESTEEL: "firesteel profiles its engine without a server: firesteel profile --model M",
}
ANY_CURE = f"vLLM: {CURES[VLLM]}; any other server: {NSYS}"
PATTERNS = ("*.json", "*.json.gz")
MAX_TOKENS = 8192  # of an answer that is decoded meanwhile
FEWEST_TOKENS = 16
SPARE_TOKENS = 256  # of the context, for the template and for prompts that are longer than asked for
SEED = 0
WRITE_S = 300.0  # to write the traces after /stop_profile was answered
SETTLED_S = 1.0  # a file that does not grow for so long is complete
POLL_S = 0.2
SPARE_S = 60.0  # for a busy machine to wake up after the recording


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    url: str
    seconds: float
    reads_prompts: bool  # else it decodes
    batch: int  # requests at once
    context: int  # tokens of each prompt
    folder: Path | None = None  # where the server's traces appear on this machine
    api_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    engine: str  # as the server calls itself, may be empty
    path: Path
    slices: list[Slice]
    others: tuple[Path, ...] = ()  # traces of its other processes


def record_profile(plan: RecordingPlan, on_progress: Callable[[str], None]) -> Recording:
    return asyncio.run(_record(plan, on_progress))


async def _record(plan: RecordingPlan, on_progress: Callable[[str], None]) -> Recording:
    async with LoadClient(plan.url, api_key=plan.api_key) as client:
        engine, max_context = await _identify(client)
        folder = _choose_folder(plan, engine)
        before = set(_list_traces(folder))
        await client.open_stream()
        prompter = await calibrate(client, SEED)
        async with _busy(client, plan, prompter, _answer_tokens(plan, max_context)) as load:
            on_progress("starting the profiler")
            await _start(client, engine, folder)
            try:
                on_progress(f"recording for {plan.seconds:g} s")
                await load.wait(asyncio.sleep(plan.seconds), plan.seconds + SPARE_S)
            finally:
                on_progress("waiting for the server to write its trace")
                await client.command("/stop_profile")
    return await _collect(folder, before, engine)


async def _identify(client: LoadClient) -> tuple[str, int | None]:
    """Returns how the server calls itself, and its context length."""
    answer = await client.get("/v1/models")
    models = answer.get("data") if isinstance(answer, dict) else None
    first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
    limit = first.get("max_model_len")
    return str(first.get("owned_by") or "").lower(), limit if isinstance(limit, int) else None


def _choose_folder(plan: RecordingPlan, engine: str) -> Path:
    if plan.folder is not None:
        if not plan.folder.is_dir():
            raise UserError(f"--traces {plan.folder} is not a folder: name where the server's traces appear here")
        return plan.folder.resolve()
    if engine != SGLANG:
        raise UserError(
            f"--traces is missing: the folder in which the traces of {plan.url} appear on this machine; "
            f"{CURES.get(engine, ANY_CURE)}"
        )
    return Path(tempfile.mkdtemp(prefix="firesteel-profile-"))


async def _start(client: LoadClient, engine: str, folder: Path) -> None:
    """Starts the profiler; vLLM ignores the body."""
    try:
        await client.command("/start_profile", {"output_dir": str(folder), "activities": ["CPU", "GPU"]})
    except RequestFailed as error:
        if error.status in NO_ROUTE:
            raise UserError(f"{client.url} offers no profiler: {CURES.get(engine, ANY_CURE)}") from error
        raise


def _answer_tokens(plan: RecordingPlan, max_context: int | None) -> int:
    """Returns how long an answer may be while the server decodes."""
    if plan.reads_prompts:
        return 1
    room = MAX_TOKENS if max_context is None else max_context - plan.context - SPARE_TOKENS
    if room < FEWEST_TOKENS:
        raise UserError(
            f"--context {plan.context} leaves no room to decode in a context of {max_context}: lower it"
        )
    return min(MAX_TOKENS, room)


class _Load:
    def __init__(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        self.tasks = tasks

    async def wait(self, waited: Coroutine[Any, Any, Any], timeout_s: float) -> None:
        """Waits for something else, and raises what a request failed with meanwhile."""
        other = asyncio.create_task(waited)
        try:
            await asyncio.wait([other, *self.tasks], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for task in self.tasks:
                if task.done():
                    task.result()
            if not other.done():
                raise RequestFailed("silent", f"not every stream had a token after {timeout_s:.0f} s")
        finally:
            other.cancel()


@asynccontextmanager
async def _busy(client: LoadClient, plan: RecordingPlan, prompter: Prompter, tokens: int) -> AsyncIterator[_Load]:
    """Sends requests all the time; its body runs once every stream has its first token."""
    started = [asyncio.Event() for _ in range(plan.batch)]
    load = _Load([asyncio.create_task(_repeat(client, plan, prompter, tokens, event)) for event in started])
    try:
        await load.wait(_all_set(started), client.timeout_s)
        yield load
    finally:
        for task in load.tasks:
            task.cancel()
        await asyncio.gather(*load.tasks, return_exceptions=True)


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _repeat(
    client: LoadClient, plan: RecordingPlan, prompter: Prompter, tokens: int, started: asyncio.Event
) -> None:
    fields: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}
    while True:
        messages = prompter.make(plan.context, 0)
        exchange = await client.stream_telling(messages, started.set, max_tokens=tokens, **fields)
        if not exchange.is_whole:
            raise RequestFailed(exchange.error_kind, exchange.error, exchange.status)


async def _collect(folder: Path, before: set[Path], engine: str) -> Recording:
    """Waits until the new traces are complete, and returns one with kernels or, on a CPU, the one with most ops."""
    deadline = time.monotonic() + WRITE_S
    sizes: dict[Path, int] = {}
    settled = time.monotonic()
    trouble = "no trace appeared there"
    while time.monotonic() < deadline:
        now = {path: path.stat().st_size for path in _list_traces(folder) if path not in before}
        if now != sizes:
            sizes, settled = now, time.monotonic()
        elif now and time.monotonic() - settled >= SETTLED_S:
            try:
                return _choose({path: read_events(path) for path in sorted(now)}, engine)
            except UserError as error:  # it is still being written
                trouble, settled = str(error), time.monotonic()
        await asyncio.sleep(POLL_S)
    raise UserError(
        f"no complete trace in {folder} {WRITE_S:.0f} s after the recording ({trouble}); if the server runs "
        "elsewhere or in a container, let it share this folder, and name the folder of this machine with --traces"
    )


def _choose(events: Mapping[Path, list[TraceEvent]], engine: str) -> Recording:
    on_gpu = [path for path, listed in events.items() if any(event.kind != CPU_OP for event in listed)]
    chosen = on_gpu[0] if on_gpu else max(events, key=lambda path: len(events[path]))
    others = tuple(path for path in events if path != chosen)
    return Recording(engine=engine, path=chosen, slices=order_timeline(events[chosen], chosen), others=others)


def _list_traces(folder: Path) -> list[Path]:
    return [path for pattern in PATTERNS for path in folder.rglob(pattern)]
