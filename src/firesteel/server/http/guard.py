"""Refuses requests that a server on this address should not see: other hosts, and ambiguous lengths of bodies.

A web page can point a name of its own at 127.0.0.1 (DNS rebinding) and then use a server on the visitor's machine
as if it were its own. Its requests carry that name in the header Host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from firesteel.config import ServerConfig, parse_hosts
from firesteel.server.http.errors import ApiError, note_error

LOCAL_NAMES = ("localhost", "*.localhost")
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")


class HostCheck:
    """Hosts that a request may name. Names of this machine itself are always among them."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Takes names, addresses, `*.name` for all names below it, and `*` for every host."""
        names = {name.lower().rstrip(".") for name in (*allowed, *LOCAL_NAMES)}
        self.allows_all = "*" in names
        self._names = frozenset(name.strip("[]") for name in names)
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))

    @classmethod
    def of(cls, config: ServerConfig) -> HostCheck:
        """Builds the check; without `allowed_hosts`, a server on loopback allows loopback only, others any host."""
        given = parse_hosts(config.allowed_hosts)
        is_local, address = find_bound(config.host)
        return cls([*given, config.host, address] if given or is_local else ["*"])

    def allows(self, host: str) -> bool:
        """Returns whether a request with this value of the header Host is served."""
        if self.allows_all:
            return True
        parts = _HOST.fullmatch(host.strip())
        if parts is None:
            return False
        name = (parts["v6"] or parts["name"] or "").lower().rstrip(".")
        return name in self._names or name.endswith(self._endings) or is_loopback(name)


def find_bound(host: str) -> tuple[bool, str]:
    """Returns whether a server on `host` is reached from this machine only, and the address that it listens on."""
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0])
    except socket.gaierror:
        return False, host  # nothing can listen there
    return is_loopback(address), address


def is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


class RequestGuard:
    """Checks the headers of each request before anything else reads it."""

    def __init__(self, app: ASGIApp, hosts: HostCheck) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self.find_error(scope["headers"]) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
            return
        note_error(scope, error)
        response = error.response(scope)
        response.headers["connection"] = "close"  # it may be unclear where the next request begins
        await response(scope, receive, send)

    def find_error(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiError | None:
        given = {name: str(value, "latin-1") for name, value in headers}
        if b"content-length" in given and b"transfer-encoding" in given:
            return ApiError(400, "a request has Content-Length or Transfer-Encoding, not both")
        host = given.get(b"host")  # a browser always sends it; HTTP/1.0 does not need it
        if host is not None and not self.hosts.allows(host):
            return ApiError(
                403,
                f"host {host!r:.100} is not allowed: use the address that this server listens on, or start it with "
                "--allowed-hosts and that name",
                code="host_not_allowed",
            )
        return None
