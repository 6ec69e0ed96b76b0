"""Fixtures that run the program: in this process, or as a user starts it."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from firesteel.cli import app


@pytest.fixture(scope="session")
def run():
    """run("env", "--json", VARIABLE="value") in this process. Verbs are assembled once, because it is slow."""
    command = get_command(app)

    def invoke(*arguments, **environment):
        return CliRunner().invoke(app, [*arguments], env=environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", lambda app: command)
        yield invoke


@pytest.fixture(scope="session")
def start():
    """Runs firesteel in its own process, through its entry point."""

    def begin(*arguments, **environment):
        command = [sys.executable, "-W", "error", "-m", "firesteel", *arguments]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **environment}
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, timeout=120)

    return begin


@pytest.fixture(scope="session")
def shown():
    """Rows of `env --json` by name."""

    def parse(result):
        assert result.exit_code == 0, result.output
        return {row["name"]: row for row in json.loads(result.stdout)}

    return parse


@pytest.fixture(scope="session")
def rows_of():
    """Returns the cells of a table's rows, from its text."""

    def split(text):
        lines = (line for line in text.splitlines() if "│" in line)
        return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]

    return split


@pytest.fixture
def free_port():
    """A port on which nothing listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Served(ThreadingHTTPServer):
    """An OpenAI-compatible server of the model flint, with scripted answers."""

    def __init__(self, *, key="", models=None, refusal=None, events=(), is_done=True, pause_s=0.0):
        super().__init__(("127.0.0.1", 0), ServedHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.key, self.refusal, self.is_done, self.pause_s = key, refusal, is_done, pause_s
        self.models = models or {"data": [{"id": "flint"}]}
        self.events = events
        self.bodies = []


class ServedHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, self.server.models)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.refusal:
            self.reply(400, self.server.refusal)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):  # the client may have left
            for event in self.server.events:
                self.say(json.dumps(event))
                time.sleep(self.server.pause_s)
            if self.server.is_done:
                self.say("[DONE]")

    def reply(self, status, content):
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            status, content = 401, {"error": {"message": "wrong key"}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def say(self, data):
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """serve(events=[...]) answers every chat completion with these events."""
    with ExitStack() as stack:

        def begin(**told):
            served = stack.enter_context(Served(**told))
            thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            stack.callback(thread.join)
            stack.callback(served.shutdown)
            return served

        yield begin
