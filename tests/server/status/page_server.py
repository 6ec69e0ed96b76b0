"""A server of the page whose model answers with given deltas: what no real model can be made to say."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from firesteel.server.status.page import read_page

STATES = {
    "/health/live": {"status": "ready"},
    "/v1/models": {"data": [{"id": "scripted", "max_model_len": 131072}]},
    "/ledger": {"device": "CPU", "ran": [], "kernels": {}},
}


class PageServer(ThreadingHTTPServer):
    """Answers each request with the next of `answers`, a list of deltas, and the last one again and again."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.asked = []  # bodies of the requests
        self.pause_s = 0.0  # between deltas
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/":
            text, policy = read_page()
            self.reply("text/html", text, policy)
        elif self.path == "/metrics":
            self.reply("text/plain", "")
        else:
            self.reply("application/json", json.dumps(STATES[self.path]))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        deltas = self.server.answers[min(len(self.server.asked), len(self.server.answers) - 1)]
        self.server.asked.append(body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for delta in deltas:
                self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
                time.sleep(self.server.pause_s)
            self.send({"choices": [], "usage": {"completion_tokens": len(deltas)}})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reader pressed Stop

    def send(self, chunk):
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def reply(self, kind, text, policy=""):
        self.send_response(200)
        self.send_header("content-type", f"{kind}; charset=utf-8")
        if policy:
            self.send_header("content-security-policy", policy)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


@contextmanager
def serving(*answers):
    """Yields a PageServer; an answer is a list of deltas, or a text."""
    server = PageServer([pieces(answer) if isinstance(answer, str) else answer for answer in answers])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def pieces(text, size=4):
    """Returns the text as deltas of a few characters."""
    return [{"content": text[start : start + size]} for start in range(0, len(text), size)]
