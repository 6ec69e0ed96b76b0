"""The engine's end of the socket to its parent."""

from __future__ import annotations

import socket
import threading

from firesteel.engine.process.messages import HEAD_BYTES, FromEngine, ToEngine, pack, parse_to_engine, read_head


class Channel:
    """The child's end of the socket. Any thread may send; sending blocks while the parent does not read."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        frame = pack(message)
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> ToEngine | None:
        """Returns None once the parent's end is closed."""
        head = self._read(HEAD_BYTES)
        body = None if head is None else self._read(read_head(head))
        return None if body is None else parse_to_engine(body)

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(count - len(parts))
            except ConnectionError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
