"""What crosses between the engine's process and its parent; knows no process and no socket.

A frame is the length in four bytes, the highest first, and that many bytes of MessagePack. Requests have a number
besides their name: where two have the same name, outputs of the cancelled one are not taken for the other's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import msgspec

from firesteel.config import Config
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.engine.statistics import Statistics
from firesteel.kernels.ledger import Launch, Ledger
from firesteel.types import Request, RequestStatistics, SamplingParams, StepOutput

HEAD_BYTES = 4
SHOW_STACKS = signal.SIGUSR1  # makes the engine write what each of its threads is doing into its log


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Start(Message, frozen=True):
    """The first message: what to load."""

    directory: str
    config: Config


class Submit(Message, frozen=True):
    number: int
    request_id: str
    token_ids: list[int]
    params: SamplingParams
    stops: frozenset[int]
    arrival: float  # of the clock that all processes of a machine share

    @classmethod
    def of(cls, request: Request, number: int) -> Submit:
        return cls(
            number=number, request_id=request.request_id, token_ids=list(request.token_ids), params=request.params,
            stops=request.stops, arrival=request.arrival,
        )  # fmt: skip

    def request(self) -> Request:
        return Request(
            request_id=self.request_id, token_ids=self.token_ids, params=self.params, stops=self.stops,
            arrival=self.arrival,
        )  # fmt: skip


class Cancel(Message, frozen=True):
    number: int
    finished: bool  # the reader found the end by itself: a last output follows


class GetStatistics(Message, frozen=True):
    number: int


class GetLedger(Message, frozen=True):
    """It follows at once, and again when machine code that it has no verdict on was read."""


class Shutdown(Message, frozen=True):
    pass


class Around(Message, frozen=True):
    """Where the engine runs; sent before anything is loaded."""

    surroundings: dict[str, Any]


class Loading(Message, frozen=True):
    done_bytes: int
    all_bytes: int


class Preparing(Message, frozen=True):
    """Decoding steps made before the first request."""

    done: int
    total: int


class Ready(Message, frozen=True):
    device: str
    max_context: int  # tokens of one request, prompt and answer, that fit the model and the cache
    vocab_size: int
    pages: int
    page_size: int
    max_num_seqs: int  # requests that are computed together
    cache_bytes: int
    load_s: float
    kernels: dict[str, str]  # op -> implementations that may run
    formats: dict[str, str] = {}  # what it holds: mxfp4_layers beside the experts, activation, kv


class Refused(Message, frozen=True):
    """The engine cannot start, for a reason that a user can mend."""

    kind: str
    reason: str


class Planned(Message, frozen=True):
    """What the step that begins will compute: request, first token, token after the last."""

    spans: list[tuple[str, int, int]]


class Alive(Message, frozen=True):
    """A step takes long, but something is done in it."""


class Output(msgspec.Struct, frozen=True, array_like=True):
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
            number=number, token_ids=output.token_ids, finish_reason=output.finish_reason,
            num_cached=output.num_cached, logprobs=output.logprobs, prompt_logprobs=output.prompt_logprobs,
            error=output.error, statistics=output.statistics,
        )  # fmt: skip

    def step_output(self, request_id: str) -> StepOutput:
        return StepOutput(
            request_id=request_id, token_ids=self.token_ids, finish_reason=self.finish_reason,
            num_cached=self.num_cached, logprobs=self.logprobs, prompt_logprobs=self.prompt_logprobs,
            error=self.error, statistics=self.statistics,
        )  # fmt: skip


class Step(Message, frozen=True):
    """What one step gave to all requests."""

    outputs: list[Output]


class Rejected(Message, frozen=True):
    """A request that can never run."""

    number: int
    kind: str
    reason: str


class StatisticsAnswer(Message, frozen=True):
    number: int
    statistics: Statistics


class LedgerArtefact(msgspec.Struct, frozen=True):
    """Machine code that was launched."""

    kernel: str
    tile: str
    artefact: str  # its hash
    launches: int
    verdict: str | None  # None before it was read

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
    artefacts: list[LedgerArtefact] = []  # none where an interpreter runs the kernels

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def ledger_rows(
    ledger: Ledger,
    *,
    find_verdict: Callable[[Launch], str | None] = lambda launch: None,
    can_ask_device: bool = True,
) -> list[LedgerRow]:
    """A device that failed answers with its failure: what it counted is then unknown."""
    rows = []
    for ran, entry in ledger.entries.items():
        launches: dict[str, int] = {}
        for launch, count in entry.launches.items():
            launches[launch.kernel] = launches.get(launch.kernel, 0) + count
        row = LedgerRow(
            **ran._asdict(), calls=entry.calls, seconds=entry.seconds, launches=launches,
            clipped=entry.clipped if can_ask_device else None,
            artefacts=[
                LedgerArtefact.of(launch, count, find_verdict(launch))
                for launch, count in entry.launches.items() if launch.compiled is not None
            ],
        )  # fmt: skip
        rows.append(row)
    return rows


class LedgerSoFar(Message, frozen=True):
    rows: list[LedgerRow]


class Dying(Message, frozen=True):
    """Why an engine fails; only its ledger may follow."""

    cause: str


ToEngine = Start | Submit | Cancel | GetStatistics | GetLedger | Shutdown
FromEngine = (
    Around | Loading | Preparing | Ready | Refused | Planned | Alive | Step | Rejected | StatisticsAnswer
    | LedgerSoFar | Dying
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def pack(message: ToEngine | FromEngine) -> bytes:
    """A whole frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def read_head(head: bytes) -> int:
    """Length of the body that follows."""
    return int.from_bytes(head, "big")


def parse_to_engine(body: bytes) -> ToEngine:
    return _to_engine.decode(body)


def parse_from_engine(body: bytes) -> FromEngine:
    return _from_engine.decode(body)
