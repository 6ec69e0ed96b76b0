"""A server of known speed that logs as vLLM does, and answers the lab's questions: vllm --port N.

MOCK_MOE is the backend of experts in its log and MOCK_TG_TOK_S its speed; with MOCK_GARBAGE it answers garbage. It
writes its environment into a file in MOCK_FOLDER that has the name of its speed.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from firesteel.lab.coherence.questions import QUESTIONS
from tests.lab.mock import MODEL, Mock
from tests.lab.path.evidence_lines import CUTLASS, FLASHINFER, GRAPHS, MARLIN, RESOLVED

MOE = {"cutlass": CUTLASS, "marlin": MARLIN}
GARBAGE = "a is the " * 8  # as gpt-oss without sinks
ANSWERS = {question.prompt: " ".join(question.expected) for question in QUESTIONS}
if "MOCK_GARBAGE" in os.environ:
    ANSWERS = dict.fromkeys(ANSWERS, GARBAGE)


@dataclass(slots=True, kw_only=True)
class StandIn(Mock):
    def app(self):
        app = Mock.app(self)
        app.routes.insert(0, Route("/v1/completions", self.complete, methods=["POST"]))
        return app

    async def complete(self, request) -> Response:
        body = await request.json()
        prompt = body["prompt"]  # a text, or token ids
        text = ANSWERS.get(prompt, "Paris") if isinstance(prompt, str) else "Paris"
        return JSONResponse({"choices": [{"index": 0, "text": text}]})

    async def chat(self, request) -> Response:
        body = await request.json()
        answer = ANSWERS.get(body["messages"][-1]["content"])
        if answer is None:
            return await Mock.chat(self, request)
        message = {"role": "assistant", "content": answer}
        return JSONResponse({"model": MODEL, "choices": [{"index": 0, "message": message}]})


def main():
    speed = os.environ["MOCK_TG_TOK_S"]
    Path(os.environ["MOCK_FOLDER"], f"{speed}.json").write_text(json.dumps(dict(os.environ)))
    for line in (RESOLVED, MOE[os.environ["MOCK_MOE"]], FLASHINFER, GRAPHS):
        print(line, flush=True)
    mock = StandIn(tg_tok_s=float(speed), port=int(sys.argv[sys.argv.index("--port") + 1]))
    uvicorn.run(mock.app(), host="127.0.0.1", port=mock.port, log_level="warning")


if __name__ == "__main__":
    main()
