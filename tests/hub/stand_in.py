"""A stand-in of the Hugging Face hub: the part of its HTTP interface that huggingface_hub uses for downloads.

Large files are redirected to another host name, as the hub does with its storage. Every request is recorded.
"""

import hashlib
import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants

LARGE = (".safetensors", ".bin", "tokenizer.json")
PIECE = 1 << 12


@dataclass(kw_only=True)
class StoredRepository:
    """Files of a repository by name, and its revisions."""

    files: dict
    commit: str = "a" * 40
    revisions: tuple = ("main",)
    is_gated: bool = False
    altered: dict = field(default_factory=dict)  # file -> content that is sent in place of what is listed
    misstated: dict = field(default_factory=dict)  # file -> fields of the listing that are wrong

    def siblings(self):
        for name, content in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            sibling = {"rfilename": name, "size": len(content), "blobId": git}
            if name.endswith(LARGE):
                digest = hashlib.sha256(content).hexdigest()
                sibling |= {"blobId": "f" * 40, "lfs": {"sha256": digest, "size": len(content), "pointerSize": 134}}
            yield sibling | self.misstated.get(name, {})


@dataclass(frozen=True)
class Asked:
    """A request for a file's content, and what was sent of it."""

    name: str
    first: int  # offset that the range began with
    sent: int
    token: str | None
    encoding: str | None  # that the client accepts


class StandIn(ThreadingHTTPServer):
    """The server; tests set what goes wrong."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), StandInHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories = {}
        self.token = None  # that all requests need
        self.asked = []  # requests for content
        self.listed = []  # (path, token) of requests for listings
        self.cuts = {}  # file -> offset at which connections break, once
        self.stalls = {}  # file -> offset at which the server sends no more until `resume`
        self.resume = threading.Event()
        self.failures = {}  # file -> HTTP statuses, one per request
        self.listing_status = None
        self.listing_body = None
        self.ignores_ranges = False

    def add(self, repository, files, **facts):
        self.repositories[repository] = StoredRepository(files=files, **facts)
        return self.repositories[repository]

    def fetched(self, name):
        """Returns (first byte, bytes sent) of every request for a file."""
        return [(asked.first, asked.sent) for asked in self.asked if asked.name == name]


class StandInHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path).lstrip("/")
        token = self.headers.get("Authorization")
        if path.startswith("storage/"):
            self.send_content(*path.removeprefix("storage/").rsplit("/resolve/", 1), token)
        elif self.server.token is not None and token != f"Bearer {self.server.token}":
            self.refuse(401, message="Invalid credentials in Authorization header" if token else "Unauthorized")
        elif path.startswith("api/models/"):
            self.server.listed.append((path, token))
            self.send_listing(*path.removeprefix("api/models/").partition("/revision/")[::2])
        elif "/resolve/" in path:
            self.resolve(*path.split("/resolve/", 1), token)
        else:
            self.refuse(404)

    def send_listing(self, repository, revision):
        stored = self.server.repositories.get(repository)
        if self.server.listing_status is not None:
            self.refuse(self.server.listing_status)
        elif stored is None:
            self.refuse(404, code="RepoNotFound")
        elif revision not in ("", stored.commit, *stored.revisions):
            self.refuse(404, code="RevisionNotFound")
        else:
            content = {"id": repository, "sha": stored.commit, "siblings": list(stored.siblings())}
            self.reply(200, self.server.listing_body or json.dumps(content).encode())

    def resolve(self, repository, place, token):
        stored, (revision, name) = self.server.repositories[repository], place.split("/", 1)
        if stored.is_gated:
            self.refuse(403 if token else 401, code="GatedRepo")
        elif revision not in (stored.commit, *stored.revisions) or name not in stored.files:
            self.refuse(404, code="EntryNotFound")
        elif name.endswith(LARGE):
            location = f"http://localhost:{self.server.server_port}/storage/{repository}/resolve/{name}"
            self.reply(302, b"", Location=location)
        else:
            self.send_content(repository, name, token)

    def send_content(self, repository, name, token):
        if failures := self.server.failures.get(name):
            self.refuse(failures.pop(0))
            return
        stored = self.server.repositories[repository]
        content = stored.altered.get(name, stored.files[name])
        asked = self.headers.get("Range") if not self.server.ignores_ranges else None
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        sent = 0
        try:
            for sent in self.send_pieces(name, content, first):  # noqa: B007
                pass
        finally:
            self.server.asked.append(Asked(name, first, sent, token, self.headers.get("Accept-Encoding")))

    def send_pieces(self, name, content, first):
        """Sends content from `first` on, and yields the bytes sent; stops where the test wants it."""
        cut = self.server.cuts.get(name, len(content) + 1)
        stall = self.server.stalls.get(name, len(content) + 1)
        for begin in range(first, len(content), PIECE):
            end = min(begin + PIECE, len(content))
            if end > stall:
                self.server.resume.wait(30)
            if end > cut:
                self.server.cuts.pop(name)
                self.close_connection = True
                return
            self.wfile.write(content[begin:end])
            self.wfile.flush()
            yield end - first

    def refuse(self, status, *, code="", message=""):
        self.reply(status, b"{}", **{"X-Error-Code": code, "X-Error-Message": message})

    def reply(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(OSError):  # the client may have left
            super().handle()


def point_at(server, monkeypatch, home):
    """Points huggingface_hub at a stand-in, without the user's token; it reads its variables at import."""
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", PIECE)
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(home / "harnesses.json"), raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)


@contextmanager
def running_hub():
    """Runs a stand-in."""
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.resume.set()
            server.shutdown()
            thread.join()
