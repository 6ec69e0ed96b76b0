"""Fixtures of the server's tests: an engine that answers with a script, and a server in front of it."""

import asyncio
import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from firesteel.chat.tokenizer import Tokenizer
from firesteel.config import resolve
from firesteel.engine.process.messages import Ready
from firesteel.engine.process.waiters import OutputStream
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied
from firesteel.server.app import build_app
from firesteel.server.run import Server, bind, url_of
from firesteel.server.service import Service
from firesteel.types import RequestStatistics, StepOutput, TokenLogprobs

FINAL = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>"
FACTS = Ready(
    device="CPU",
    max_context=4096,
    vocab_size=272,
    pages=9,
    page_size=4,
    max_num_seqs=64,
    cache_bytes=99,
    load_s=1.0,
    kernels={"linear": "reference"},
    formats={"mxfp4_layers": "", "activation": "bf16", "prefill_activation": "bf16", "kv": "float32"},
)


def spell(tokenizer, text):
    """Returns the token ids of a text with special tokens in it."""
    parts = re.split(r"(<\|\w+\|>)", text)
    ids = [
        [tokenizer.special_ids[part]] if part in tokenizer.special_ids else tokenizer.encode(part) for part in parts
    ]
    return [token for part in ids for token in part]


class ScriptedEngine:
    """Answers every request with `script`; keeps the requests."""

    def __init__(self, tokenizer, script=FINAL):
        self.tokenizer = tokenizer
        self.script = script
        self.scripts = []  # of the next requests, before `script`
        self.pause_s = 0.0
        self.facts = FACTS
        self.num_deaths = 0
        self.is_ready = True
        self.failure = None
        self.fatal_failure = None  # like `failure`, and ends the server
        self.requests = []
        self.num_open = 0
        self.told = Statistics(pages=10, pages_held=4)
        self.finished = set()
        self.ledger = [
            {
                "op": "linear",
                "implementation": "reference",
                "activation": "bf16",
                "calls": 3,
                "seconds": 0.5,
                "launches": {"gemm": 3},
                "clipped": None,
                "artefacts": [
                    {"kernel": "gemm", "tile": "64x64", "artefact": "1f", "launches": 3, "verdict": "bf16"}
                ],
            }
        ]
        self.refresh_error = None
        self.dies_after = None  # tokens
        self.error = None

    @asynccontextmanager
    async def open(self, requests):
        queue = asyncio.Queue(1)  # the next output is computed once the last was taken

        async def fill(index):
            try:
                async with aclosing(self.generate(requests[index])) as outputs:
                    async for output in outputs:
                        await queue.put((index, output))
            except Exception as error:
                await queue.put((index, error))

        def note_end(cancel):
            if cancel.finished:
                self.finished.add(requests[cancel.number].request_id)

        tasks = [asyncio.create_task(fill(index)) for index in range(len(requests))]
        try:
            yield OutputStream(range(len(requests)), queue, note_end)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def generate(self, request):
        self.requests.append(request)
        self.num_open += 1
        try:
            tokens = spell(self.tokenizer, self.scripts.pop(0) if self.scripts else self.script)
            for number, token in enumerate(tokens):
                await asyncio.sleep(self.pause_s)
                if number == self.dies_after:
                    raise EngineDied("the engine died: SIGKILL; crash bundle: /secret/place")
                if request.request_id in self.finished:
                    yield self.output(request, [], "stop", number)
                    return
                is_last = number + 1 == min(len(tokens), request.params.max_tokens)
                reason = "stop" if token in request.stops else "length" if is_last else None
                yield self.output(request, [token], reason, number + 1)
                if reason:
                    return
        finally:
            self.num_open -= 1

    def output(self, request, token_ids, reason, count):
        wanted = request.params.logprobs
        logprobs = None
        if wanted is not None and token_ids:
            top = tuple((97 + rank, -1.0 - rank) for rank in range(wanted))
            logprobs = TokenLogprobs(token_id=token_ids[0], logprob=-0.5, top=top)
        statistics = RequestStatistics(
            queue_s=0.0,
            first_token_s=0.1,
            token_s=0.01,
            prompt_tokens=request.num_prompt,
            cached_tokens=2,
            output_tokens=count,
            preemptions=0,
        )
        return StepOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            finish_reason="error" if self.error else reason,
            num_cached=2,
            logprobs=logprobs,
            error=self.error,
            statistics=statistics if reason else None,
        )

    async def refresh_ledger(self):
        if self.refresh_error is not None:
            raise self.refresh_error
        self.ledger[0]["calls"] += 1

    async def statistics(self):
        return replace(self.told, requests_running=self.num_open)


class Answer:
    """An answer of the server, read whole."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]

    @property
    def events(self):
        """The objects of a stream, in order; its last line must be [DONE]."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]


class Running:
    """A running server on its own port."""

    def __init__(self, url, engine, service, server):
        self.url, self.engine, self.service = url, engine, service
        self.server = server

    def get(self, path, **headers):
        return self._ask(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **headers}
        return self._ask(urllib.request.Request(self.url + path, data=data, headers=headers))

    def delete(self, path, **headers):
        return self._ask(urllib.request.Request(self.url + path, headers=headers, method="DELETE"))

    def chat(self, content="hi", **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def _ask(self, request):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())


@pytest.fixture(scope="session")
def eventually():
    """eventually(condition): waits until it is true."""

    def wait(condition, patience_s=10.0):
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.01)

    return wait


@contextmanager
def running(app_of, config):
    """Runs a server in a thread; `app_of` creates the service on that thread's event loop."""
    ready, box = threading.Event(), {}

    async def main():
        with bind(config.server) as bound:
            box["service"] = service = app_of()
            box["url"] = url_of(bound)
            box["server"] = Server(
                build_app(service),
                config.server,
                service.admission,
                when_ready=ready.set,
                find_failure=lambda: service.engine.fatal_failure,
            )
            try:
                await box["server"].serve([bound])
            finally:
                service.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(30)
    try:
        yield box["url"], box["service"], box["server"]
    finally:
        box["server"].should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def tokenizer(checkpoint):
    return Tokenizer.load(checkpoint)


@pytest.fixture
def new_engine(tokenizer):
    """new_engine(script): an engine that answers with it."""
    return lambda script=FINAL: ScriptedEngine(tokenizer, script)


@pytest.fixture
def open_server(checkpoint, tokenizer):
    """open_server(api_key="x"): a server with these settings in front of a scripted engine, until the test ends."""
    stack = []

    def open_one(script=FINAL, **settings):
        engine = ScriptedEngine(tokenizer, script)
        config = resolve({"model": "tiny", "port": 0, **settings}).config
        if config.batch.max_num_seqs:
            engine.facts = msgspec.structs.replace(FACTS, max_num_seqs=config.batch.max_num_seqs)
        context = running(lambda: Service(engine, checkpoint, config), config)
        url, service, server = context.__enter__()
        stack.append(context)
        return Running(url, engine, service, server)

    yield open_one
    for context in reversed(stack):
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def shared_server(checkpoint, tokenizer):
    engine = ScriptedEngine(tokenizer)
    config = resolve({"model": "tiny", "port": 0}).config
    with running(lambda: Service(engine, checkpoint, config), config) as (url, service, server):
        yield Running(url, engine, service, server)


@pytest.fixture
def server(shared_server):
    """A server with default settings in front of a new engine. Its metrics include all earlier tests."""
    shared_server.engine.__init__(shared_server.engine.tokenizer)
    vars(shared_server.engine).pop("generate", None)
    return shared_server


@pytest.fixture(scope="session")
def start_serve():
    """with start_serve("--port", "0") as process: a ready `firesteel serve`, started as a user would."""

    @contextmanager
    def start(*flags, directory=None):
        command = [sys.executable, "-W", "error", "-m", "firesteel", "serve", "--device", "cpu", *flags]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            cwd=directory,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        log = []
        reader = threading.Thread(target=lambda: log.extend(process.stderr))
        reader.start()
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), "".join(log)
            yield Started(url, process, log)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            reader.join()
            process.stdout.close()
            process.stderr.close()

    return start


class Started(Running):
    """`firesteel serve` in a process of its own."""

    def __init__(self, url, process, log):
        self.url, self.process, self.log = url, process, log


@pytest.fixture(scope="session")
def start_stub():
    """with start_stub() as server: a server process in front of the stub engine; `log` takes its stderr.

    `descriptors` limits its open files, `rate` the tokens per second of each request (0: no limit).
    """

    @contextmanager
    def start(*, rate=0, log=subprocess.DEVNULL, descriptors=None):
        def limit():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        command = [sys.executable, "-m", "firesteel.server.stub.server", str(rate)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, encoding="utf-8", preexec_fn=limit)
        try:
            yield Started(process.stdout.readline().strip(), process, [])
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()

    return start


@pytest.fixture(scope="session")
def kindling_server(start_serve, tmp_path_factory):
    """Kindling behind the API key "right"; tests must not change it."""
    with start_serve("--port", "0", "--api-key", "right", directory=tmp_path_factory.mktemp("serve")) as started:
        yield started


@pytest.fixture(scope="session")
def open_kindling(start_serve, tmp_path_factory):
    """Kindling without an API key, as a browser on the same machine sees it; tests must not change it."""
    with start_serve("--port", "0", directory=tmp_path_factory.mktemp("open")) as started:
        yield started


@pytest.fixture
def browser(tmp_path):
    """Headless Chromium; see browser.py."""
    spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.PROGRAM is None:
        pytest.skip("needs Chromium: no program chromium is installed")
    opened = module.Browser(tmp_path / "profile")
    yield opened
    opened.close()
