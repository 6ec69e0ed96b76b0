"""A stand-in for vLLM or SGLang: serves as `mock.py` does, and writes a trace as their profilers do."""

import gzip
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.lab.mock import MODEL, Mock

DECODED = ["fused_moe_kernel", "nvjet_gemm", "argmax"] * 4
READ = ["BatchPrefillWithPagedKVCacheKernel", "fused_moe_kernel", "argmax"]


@dataclass(slots=True, kw_only=True)
class ProfilingServer(Mock):
    owner: str = "vllm"
    folder: Path | None = None  # vLLM's, set when it starts; None: no profiler
    asked: list[dict] = field(default_factory=list)  # bodies of /start_profile
    tokens: list[int] = field(default_factory=list)  # max_tokens of the requests while it records
    is_recording: bool = False

    def app(self):
        app = Mock.app(self)
        if self.folder is not None or self.owner == "sglang":
            app.routes.append(Route("/start_profile", self.start, methods=["POST"]))
            app.routes.append(Route("/stop_profile", self.stop, methods=["POST"]))
        return app

    async def models(self, request):
        model = {"id": MODEL, "owned_by": self.owner, "max_model_len": self.max_context}
        return JSONResponse({"object": "list", "data": [model]})

    async def chat(self, request):
        body = await request.json()
        if self.owner == "sglang" and "return_token_ids" in body:
            return PlainTextResponse("unknown field", status_code=400)
        self.tokens.append(body["max_tokens"])
        return await Mock.chat(self, request)

    async def start(self, request):
        self.asked.append(await request.json())
        self.is_recording = True
        return PlainTextResponse("Start profiling.\n")  # vLLM's answer is empty; neither is JSON

    async def stop(self, request):
        assert self.is_recording
        folder = self.folder if self.owner == "vllm" else Path(self.asked[-1]["output_dir"])
        names = READ if self.tokens[-1] == 1 else DECODED
        front = [{"cat": "cpu_op", "name": "aten::to", "ts": 0, "dur": 5} for _ in range(40)]
        kernels = [
            {"cat": "kernel", "name": name, "ts": 10 * number, "dur": 5} for number, name in enumerate(names)
        ]
        for name, events in (("front.pt.trace.json.gz", front), ("rank0.pt.trace.json.gz", kernels)):
            (folder / name).write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        return Response()


@contextmanager
def profiling_server(**settings):
    """Yields the address and the server, which runs in a thread."""
    mock = ProfilingServer(pp_tok_s=1e6, tg_tok_s=200.0, **settings)
    server = uvicorn.Server(uvicorn.Config(mock.app(), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", mock
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
