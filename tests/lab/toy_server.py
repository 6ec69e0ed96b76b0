"""A server in this process whose next token depends on the last one by a table; its tokens are bytes."""

import json
from http.server import BaseHTTPRequestHandler

import torch

VOCABULARY = 1024


class Toy:
    def __init__(self, *, seed=0, key="", field="prompt", top=True, lacks="", max_requests=10_000):
        self.table = (
            4 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        ).log_softmax(-1)
        self.key, self.field, self.top = key, field, top
        self.lacks = lacks  # "logprobs" or "token_ids": missing in its answers
        self.max_requests = max_requests  # then it answers 500
        self.seen = []  # prompts of all requests

    def near_tie(self, token):
        """Makes the two likeliest tokens after this one almost equal."""
        second = self.table[token].topk(2).indices[1]
        self.table[token, second] = self.table[token].max() + 1e-3

    def answer(self, path, body):
        if path == "/v1/models":
            return {"data": [{"id": "toy", "max_model_len": 8192}]}
        if path == "/tokenize" and self.field:
            return {"tokens": list((body.get(self.field) or "").encode())}
        if path == "/v1/completions" and len(self.seen) < self.max_requests:
            return self.complete(**body)
        return None

    def complete(self, prompt, max_tokens, logprobs=None, echo=False, **fields):
        self.seen.append(prompt)
        tokens, generated = list(prompt.encode() if isinstance(prompt, str) else prompt), []
        for _ in range(max_tokens):
            generated.append(int(self.table[(tokens + generated)[-1]].argmax()))
        choice = {"text": "".join(map(chr, generated)), "token_ids": generated}
        if logprobs is not None:
            shown = tokens + generated if echo else generated
            before = shown[:-1] if echo else (tokens + generated)[len(tokens) - 1 : -1]
            pairs = zip(before, shown[-len(before) :], strict=True)
            values = [float(self.table[last, token]) for last, token in pairs]
            choice["logprobs"] = {"token_logprobs": [None, *values] if echo else values}
            if self.top:
                rows = [self.table[token].topk(logprobs) for token in before]
                choice["logprobs"]["top_logprobs"] = [
                    dict(zip(map(str, row.indices.tolist()), row.values.tolist(), strict=True)) for row in rows
                ]
        choice.pop(self.lacks, None)
        return {"choices": [choice]}


def nearly_equal_toys():
    """Returns two toys: where their two likeliest tokens are almost equal, they choose differently."""
    served, reference = Toy(), Toy()
    for token in range(VOCABULARY):
        served.near_tie(token)
        reference.table[token] = served.table[token].clone()
        first, second = served.table[token].topk(2).indices
        served.table[token, [first, second]] = served.table[token, [second, first]]
    return served, reference


def answers_of(toy):
    """Returns the request handler of a server that gives the toy's answers."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words):
            pass

        def do_GET(self):
            self.reply(None)

        def do_POST(self):
            self.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def reply(self, body):
            is_known = not toy.key or self.headers["authorization"] == f"Bearer {toy.key}"
            answer = toy.answer(self.path, body) if is_known else None
            status = 200 if answer else 401 if not is_known else 500 if self.path == "/v1/completions" else 404
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer or {"error": {"message": "no"}}).encode())

    return Handler
