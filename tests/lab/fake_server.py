"""A server with a part of the OpenAI API that fails in a given way: fake_server.py PORT WAY."""

import ctypes
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # it also runs without site-packages

from firesteel.lab.coherence.questions import QUESTIONS

PORT, WAY = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "well"
KEY = sys.argv[4] if sys.argv[3:4] == ["--api-key"] else ""
LAST_LINES = {
    "gpu-out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "illegal-memory-access": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "import-error": "ModuleNotFoundError: No module named 'flashinfer'",
    "port-in-use": "OSError: [Errno 98] Address already in use",
    "missing-model": "OSError: /models/nowhere does not appear to have a file named config.json.",
    "out-of-memory": "MemoryError",
    "disk-full": "OSError: [Errno 28] No space left on device: 'x.bin'",
    "exit": "something else went wrong",
}
num_requests = 0
HOW, _, AT = WAY.partition("-at-")  # fails from this request on
IS_LLAMACPP, IS_SGLANG = WAY == "speaks-llamacpp", WAY == "speaks-sglang"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        print("request", num_requests, *words)

    def do_GET(self):
        if KEY and self.path != "/health" and self.headers["authorization"] != f"Bearer {KEY}":
            return self.send(401, {"error": {"message": "wrong key"}})
        if self.path == "/health":
            return self.send(200, {"status": "ready"})
        if self.path == "/v1/models":
            size = {"meta": {"n_ctx": 8192, "n_ctx_train": 131072}} if IS_LLAMACPP else {"max_model_len": 8192}
            return self.send(200, {"data": [{"id": "fake", **size}]})
        return self.send(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        global num_requests
        num_requests += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if AT and num_requests >= int(AT):
            return self.fail(body)
        if WAY == "hangs":
            time.sleep(600)
        if WAY == "answers-500":
            return self.send(500, {"error": {"message": "internal error", "type": "server_error"}})
        if WAY == "loses-its-worker":
            print("Fatal Python error: Illegal instruction")
            return self.send(500, {"error": {"message": "the engine encountered an issue"}})
        if WAY == "answers-garbage":
            return self.send_text(200, "<html>hello</html>")
        if WAY == "says-nan":
            return self.send_text(200, answer(body, logprob="NaN"))
        if WAY == "half-an-answer":
            return self.send(200, {"choices": []})
        if IS_SGLANG and body.get("stream") and body.get("return_token_ids"):
            return self.send(400, {"message": "return_token_ids is not supported with streaming"})
        if body.get("stream"):
            return self.send_stream(body)
        return self.send_text(200, answer(body))

    def fail(self, body):
        """Fails this request and all later ones."""
        if HOW == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "hangs":
            time.sleep(600)
        self.close_connection = True  # "breaks-off": no answer, but the server keeps running

    def send(self, status, value):
        self.send_text(status, json.dumps(value))

    def send_text(self, status, text):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def send_stream(self, body):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(min(body.get("max_tokens") or 8, 64)):
            choice = {"index": 0, "delta": {"content": "Paris "}, "text": "Paris "}
            if body.get("return_token_ids") and not IS_LLAMACPP:
                choice["token_ids"] = [number]
            self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            self.wfile.flush()
            time.sleep(0.002)
        usage = {"prompt_tokens": 5, "completion_tokens": number + 1, "total_tokens": number + 6}
        self.wfile.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        self.close_connection = True


def answer(body, logprob="-0.25"):
    """Builds JSON by hand, because it may contain NaN."""
    prompt = body.get("prompt") or ""
    num_prompt = len(prompt) if isinstance(prompt, list) else max(1, len(str(body.get("messages") or prompt)) // 4)
    count = 3 + (num_prompt if body.get("echo") else 0)
    listed = ", ".join([*(["null"] if body.get("echo") else [logprob]), *[logprob] * (count - 1)])
    tokens = json.dumps(["x"] * count)
    usage = {"prompt_tokens": num_prompt, "completion_tokens": 3, "total_tokens": num_prompt + 3}
    chat = "".join(f'{{"token": "x", "logprob": {logprob}, "top_logprobs": []}},' for _ in range(3)).rstrip(",")
    is_chat = IS_LLAMACPP or "messages" in body  # llama.cpp has one format for both
    logprobs = f'{{"content": [{chat}]}}' if is_chat else f'{{"tokens": {tokens}, "token_logprobs": [{listed}]}}'
    known = find_known_answer(body)
    message = json.dumps({"role": "assistant", "content": known or "The capital of France is Paris."})
    text = json.dumps(known or " Paris")
    return (
        f'{{"choices": [{{"index": 0, "text": {text}, "message": {message}, "finish_reason": "stop", '
        f'"token_ids": [1, 2, 3], "logprobs": {logprobs}}}], "usage": {json.dumps(usage)}}}'
    )


def find_known_answer(body):
    """Returns the expected answer to a question about coherence; empty for any other prompt."""
    prompt = body["messages"][-1]["content"] if body.get("messages") else body.get("prompt")
    expected = next((question.expected for question in QUESTIONS if question.prompt == prompt), ())
    return f"It is {', '.join(expected)}." if expected else ""


def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)


def leave_orphan():
    """Starts a child in its own session that ignores SIGTERM; returns once it does."""
    reader, writer = os.pipe()

    def outlive():
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, b".")
        time.sleep(600)

    fork(outlive)
    os.read(reader, 1)


def main():
    print("loading")
    if WAY in LAST_LINES:
        sys.exit(LAST_LINES[WAY])
    if WAY == "tells-its-flags":
        sys.exit(f"flags: {sys.argv[3:]}")
    if WAY == "segfaults":
        ctypes.string_at(0)
    if WAY == "never-ready":
        time.sleep(600)
    if WAY == "floods":
        for _ in range(1024):
            sys.stdout.write("x" * (1 << 20))
    if WAY == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if WAY == "makes-zombie":
        fork(lambda: None)
    if WAY == "leaves-orphan":
        leave_orphan()
    if WAY != "ignores-sigterm":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()


if __name__ == "__main__":
    main()
