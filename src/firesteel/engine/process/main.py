"""The engine's own process: receives requests from its parent, steps, and sends the outputs.

It is started as `python -m firesteel.engine.process.main DESCRIPTOR`, a socket to its parent. When the parent's end
closes, the process exits at once, whatever it is doing.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from firesteel.device import find_device
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded, load_engine
from firesteel.engine.process.channel import Channel
from firesteel.engine.process.liveness import beat_at_calls, beat_at_compiles
from firesteel.engine.process.messages import (
    SHOW_STACKS,
    Alive,
    Around,
    Cancel,
    Dying,
    FromEngine,
    GetLedger,
    GetStatistics,
    LedgerSoFar,
    Loading,
    Output,
    Planned,
    Preparing,
    Ready,
    Refused,
    Rejected,
    Shutdown,
    Start,
    StatisticsAnswer,
    Step,
    Submit,
    ToEngine,
    ledger_rows,
)
from firesteel.engine.process.orphan import die_with_parent
from firesteel.engine.process.progress import thin_out
from firesteel.engine.process.verdicts import Verdicts
from firesteel.engine.process.worker import BackgroundWorker
from firesteel.engine.sample.grammar import Grammars
from firesteel.engine.step.decode_loop import StepObserver
from firesteel.errors import RequestError, UserError
from firesteel.heap import settled_heap
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.needs import triton_ready
from firesteel.surroundings import look_around
from firesteel.types import Plan, Request, StepOutput

LEDGER_S = 1.0  # between two messages with the ledger
REFUSED = 2  # exit codes
ORPHANED = 3

Callback = Callable[[], None]  # put into the inbox by a background thread, called by the engine's thread
Inbox = SimpleQueue[ToEngine | Callback]


class MessageLoop:
    """Drives an engine by the messages of its inbox and sends the results."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        grammars: Grammars,
        inbox: Inbox,
        send: Callable[[FromEngine], None],
    ) -> None:
        self.engine = engine
        self.grammars = grammars
        self.ledger = ledger
        self.inbox = inbox
        self.send = send
        self.verdicts = Verdicts()
        self.numbers: dict[str, int] = {}  # of unfinished requests, by name
        self._names: dict[int, str] = {}
        self._ledger_due = 0.0
        self._worker = BackgroundWorker()
        self._compiling: set[int] = set()  # numbers of requests whose grammar is being compiled
        self._observer = StepObserver(on_plan=self._announce)

    def run(self) -> None:
        """Returns at a `Shutdown` message."""
        while self._take():
            self._step()

    def send_ledger(self, *, can_ask_device: bool = True) -> None:
        self._ledger_due = time.monotonic() + LEDGER_S
        rows = ledger_rows(self.ledger, find_verdict=self.verdicts.find, can_ask_device=can_ask_device)
        self.send(LedgerSoFar(rows=rows))

    def _take(self) -> bool:
        """Handles what is in the inbox, and waits for more while there is nothing to compute."""
        while not self.inbox.empty() or not self.engine.has_work:
            message = self.inbox.get()
            if isinstance(message, Shutdown):
                return False
            self._handle(message)
        return True

    def _handle(self, message: ToEngine | Callback) -> None:
        match message:
            case Submit() if message.params.grammar is not None:
                self._compile(message)
            case Submit():
                self._submit(message, message.request)
            case Cancel() if message.number in self._compiling:
                self._compiling.remove(message.number)
            case Cancel():
                self._cancel(message)
            case GetStatistics():
                self.send(StatisticsAnswer(number=message.number, statistics=self.engine.statistics()))
            case GetLedger():
                self._answer_ledger()
            case _ if callable(message):
                message()

    def _compile(self, message: Submit) -> None:
        """Compiles the grammar in the background, so that no other request waits, and submits the request then."""
        self._compiling.add(message.number)
        self._worker.do(
            lambda: self._bind(message), lambda bound: self.inbox.put(lambda: self._submit_bound(message, bound))
        )

    def _bind(self, message: Submit) -> Request:
        """Called by the worker. Nobody reads the error of a request that was cancelled before its turn."""
        if message.number not in self._compiling:
            raise RequestError("the request was cancelled")
        return self.grammars.bind(message.request())

    def _submit_bound(self, message: Submit, bound: Future[Request]) -> None:
        if message.number in self._compiling:
            self._compiling.remove(message.number)
            self._submit(message, bound.result)

    def _submit(self, message: Submit, find_request: Callable[[], Request]) -> None:
        try:
            self.engine.submit(find_request())
        except UserError as error:
            self.send(Rejected(number=message.number, kind=type(error).__name__, reason=str(error)))
            return
        self.numbers[message.request_id] = message.number
        self._names[message.number] = message.request_id

    def _cancel(self, message: Cancel) -> None:
        name = self._names.get(message.number)
        if name is None:  # its last output was already sent
            return
        statistics = self.engine.cancel(name, finished=message.finished)
        if statistics is not None and message.finished:
            last = Output(
                number=message.number,
                token_ids=[],
                finish_reason="stop",
                num_cached=statistics.cached_tokens,
                statistics=statistics,
            )
            self.send(Step(outputs=[last]))
        self._forget(name)

    def _answer_ledger(self) -> None:
        """Sends the ledger now, and again when machine code without a verdict was read."""
        self.send_ledger()
        self.verdicts.read(self.ledger, lambda: self.inbox.put(self._answer_ledger))

    def _step(self) -> None:
        outputs = [self._number(output) for output in self.engine.step(self._observer)]
        if outputs:
            self.send(Step(outputs=outputs))
        if time.monotonic() >= self._ledger_due:
            self.send_ledger()

    def _number(self, output: StepOutput) -> Output:
        numbered = Output.of(output, self.numbers[output.request_id])
        if output.finish_reason is not None:
            self._forget(output.request_id)
        return numbered

    def _forget(self, name: str) -> None:
        del self._names[self.numbers.pop(name)]

    def _announce(self, plan: Plan) -> None:
        """Sends a plan before it is computed: a fault of the device may take the process with it."""
        self.send(Planned(spans=[(span.request.request_id, span.start, span.end) for span in plan.spans]))


@contextmanager
def last_words(
    send: Callable[[FromEngine], None], send_ledger: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Sends the exception that ends the process, and then the ledger."""
    try:
        yield
    except (SystemExit, ConnectionError):
        raise
    except BaseException as error:
        send(Dying(cause=f"{type(error).__name__}: {error}"))
        send_ledger()
        raise


def load(start: Start, channel: Channel) -> Loaded:
    device = find_device(start.config.model.device)
    channel.send(Around(surroundings=dataclasses.asdict(look_around(device))))
    if triton_ready()(device) is None:
        beat_at_compiles(lambda: channel.send(Alive()))
    return load_engine(
        Path(start.directory),
        start.config,
        progress=thin_out(lambda done, total: channel.send(Loading(done_bytes=done, all_bytes=total))),
        preparing=lambda done, total: channel.send(Preparing(done=done, total=total)),
    )


def describe(loaded: Loaded) -> Ready:
    totals, report = loaded.engine.totals, loaded.report
    longest = loaded.engine.scheduler.tables.layout.count_tokens(totals.pages)
    return Ready(
        device=loaded.device.name,
        max_context=min(loaded.max_context, longest),
        vocab_size=loaded.spec.vocab_size,
        pages=totals.pages,
        page_size=loaded.engine.config.page_size,
        max_num_seqs=loaded.engine.config.max_num_seqs,
        cache_bytes=totals.cache_bytes,
        load_s=report.seconds,
        kernels=dict(loaded.table()),
        formats=loaded.formats(),
        sinks=loaded.model.sinks,
    )


def open_loop(channel: Channel, inbox: Inbox) -> tuple[MessageLoop, Ready]:
    """Loads the engine that the first message names; returns its loop and its description."""
    start = inbox.get()
    assert isinstance(start, Start), start
    try:
        grammars = Grammars.of(Path(start.directory))
        with grammars.preparing():
            loaded = load(start, channel)
    except UserError as error:
        channel.send(Refused(kind=type(error).__name__, reason=str(error)))
        sys.exit(REFUSED)
    return MessageLoop(loaded.engine, loaded.kernels.ledger, grammars, inbox, channel.send), describe(loaded)


def serve(channel: Channel, inbox: Inbox) -> None:
    """Loads an engine and runs it until a `Shutdown` message."""
    with last_words(channel.send):
        loop, facts = open_loop(channel, inbox)
    with last_words(channel.send, lambda: loop.send_ledger(can_ask_device=False)), settled_heap():
        channel.send(facts)
        end_beats = beat_at_calls(loop.ledger, lambda: channel.send(Alive()))
        try:
            loop.run()
            loop.send_ledger()
        finally:
            end_beats()


def listen(channel: Channel, inbox: Inbox) -> None:
    """Fills the inbox; ends the process when the parent is gone."""
    while (message := channel.receive()) is not None:
        inbox.put(message)
    os._exit(ORPHANED)


def main(descriptor: int) -> None:
    os.set_inheritable(descriptor, False)  # child processes must not keep the socket open
    die_with_parent()
    faulthandler.register(SHOW_STACKS, all_threads=True)
    channel, inbox = Channel(socket.socket(fileno=descriptor)), Inbox()
    threading.Thread(target=listen, args=(channel, inbox), daemon=True).start()
    serve(channel, inbox)


if __name__ == "__main__":
    main(int(sys.argv[1]))
