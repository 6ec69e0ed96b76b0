"""Messages between the engine's process and its parent.

A frame is the length in four bytes, big endian, and that many bytes of MessagePack. Requests have a number besides
their name, so that outputs of a cancelled request are not taken for those of another with the same name.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import msgspec

from firesteel.config import Config
from firesteel.engine.statistics import Statistics
from firesteel.kernels.ledger import Launch, Ledger
from firesteel.types import Request, RequestStatistics, SamplingParams, StepOutput, TokenLogprobs

HEAD_BYTES = 4
SHOW_STACKS = signal.SIGUSR1  # makes the engine write the stacks of its threads to its log


class WireMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Start(WireMessage, frozen=True):
    """The first message: what to load."""

    directory: str
    config: Config


class Submit(WireMessage, frozen=True):
    number: int
    request_id: str
    token_ids: list[int]
    params: SamplingParams
    stops: frozenset[int]
    arrival: float  # of the monotonic clock, which all processes of a machine share
    cache_salt: str = ""

    @classmethod
    def of(cls, request: Request, number: int) -> Submit:
        return cls(
            number=number,
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            params=request.params,
            stops=request.stops,
            arrival=request.arrival,
            cache_salt=request.cache_salt,
        )

    def request(self) -> Request:
        return Request(
            request_id=self.request_id,
            token_ids=self.token_ids,
            params=self.params,
            stops=self.stops,
            arrival=self.arrival,
            cache_salt=self.cache_salt,
        )


class Cancel(WireMessage, frozen=True):
    number: int
    finished: bool  # the reader found the end itself: a last output follows


class GetStatistics(WireMessage, frozen=True):
    number: int


class GetLedger(WireMessage, frozen=True):
    """Asks for the ledger, which follows at once, and again when the verdicts that it lacks were read."""


class Shutdown(WireMessage, frozen=True):
    pass


class Around(WireMessage, frozen=True):
    """The engine's surroundings; sent before anything is loaded."""

    surroundings: dict[str, Any]


class Loading(WireMessage, frozen=True):
    done_bytes: int
    all_bytes: int


class Preparing(WireMessage, frozen=True):
    """Progress of making kernels and steps before the first request."""

    done: int
    total: int


class Ready(WireMessage, frozen=True):
    device: str
    max_context: int  # tokens per request, prompt and answer, that fit the model and the cache
    vocab_size: int
    pages: int
    page_size: int
    max_num_seqs: int  # requests that are computed together
    cache_bytes: int
    load_s: float
    kernels: dict[str, str]  # op -> implementations that may run
    formats: dict[str, str] = {}  # of mxfp4_layers beside the experts, activations and kv
    sinks: bool = True


class Refused(WireMessage, frozen=True):
    """The engine cannot start, for a reason that the user can fix."""

    kind: str
    reason: str


class Planned(WireMessage, frozen=True):
    """The plan of the step that begins: per span the request, its first token and the token after its last."""

    spans: list[tuple[str, int, int]]


class Alive(WireMessage, frozen=True):
    """A long step is making progress."""


class Output(msgspec.Struct, frozen=True, array_like=True):
    """The output of one step for one request: a `StepOutput` with the request's number in place of its name."""

    number: int
    token_ids: list[int]
    finish_reason: str | None
    num_cached: int
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    statistics: RequestStatistics | None = None

    @classmethod
    def of(cls, output: StepOutput, number: int) -> Output:
        return cls(
            number=number,
            token_ids=output.token_ids,
            finish_reason=output.finish_reason,
            num_cached=output.num_cached,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            error=output.error,
            statistics=output.statistics,
        )


class Step(WireMessage, frozen=True):
    """The outputs of one step, of all requests."""

    outputs: list[Output]


class Rejected(WireMessage, frozen=True):
    """The answer to a request that can never run."""

    number: int
    kind: str
    reason: str


class StatisticsAnswer(WireMessage, frozen=True):
    number: int
    statistics: Statistics


class LedgerArtefact(msgspec.Struct, frozen=True):
    """Machine code that was launched."""

    kernel: str
    tile: str
    artefact: str  # its hash
    launches: int
    verdict: str | None  # None until it was read

    @classmethod
    def of(cls, launch: Launch, count: int, verdict: str | None) -> LedgerArtefact:
        return cls(
            kernel=launch.kernel, tile=launch.tile, artefact=launch.artefact, launches=count, verdict=verdict
        )


class LedgerRow(msgspec.Struct, frozen=True):
    op: str
    implementation: str
    activation: str
    calls: int
    seconds: float
    launches: dict[str, int]  # by kernel
    clipped: int | None = None  # values, of ops that count them
    artefacts: list[LedgerArtefact] = []  # empty if an interpreter runs the kernels

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def ledger_rows(
    ledger: Ledger,
    *,
    find_verdict: Callable[[Launch], str | None] = lambda launch: None,
    can_ask_device: bool = True,
) -> list[LedgerRow]:
    """Returns a row per op and implementation. A failed device cannot be asked for its counters."""
    rows = []
    for ran, entry in ledger.entries.items():
        launches: dict[str, int] = {}
        for launch, count in entry.launches.items():
            launches[launch.kernel] = launches.get(launch.kernel, 0) + count
        row = LedgerRow(
            **ran._asdict(),
            calls=entry.calls,
            seconds=entry.seconds,
            launches=launches,
            clipped=entry.clipped if can_ask_device else None,
            artefacts=[
                LedgerArtefact.of(launch, count, find_verdict(launch))
                for launch, count in entry.launches.items()
                if launch.compiled is not None
            ],
        )
        rows.append(row)
    return rows


class LedgerSoFar(WireMessage, frozen=True):
    rows: list[LedgerRow]


class Dying(WireMessage, frozen=True):
    """The cause of the engine's failure; only its ledger may follow."""

    cause: str


ToEngine = Start | Submit | Cancel | GetStatistics | GetLedger | Shutdown
FromEngine = (
    Around
    | Loading
    | Preparing
    | Ready
    | Refused
    | Planned
    | Alive
    | Step
    | Rejected
    | StatisticsAnswer
    | LedgerSoFar
    | Dying
)

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def pack(message: ToEngine | FromEngine) -> bytes:
    """Returns a whole frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def read_head(head: bytes) -> int:
    """Returns the length of the body that follows."""
    return int.from_bytes(head, "big")


def parse_to_engine(body: bytes) -> ToEngine:
    return _to_engine.decode(body)


def parse_from_engine(body: bytes) -> FromEngine:
    return _from_engine.decode(body)
