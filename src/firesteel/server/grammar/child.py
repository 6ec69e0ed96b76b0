"""A child process that compiles grammars on trial: start, ask, kill. Its program is `chat/trial.py`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from firesteel.chat import trial
from firesteel.chat.grammar import Grammar

START_S = 30.0  # for the first answer of a child: the imports of a busy machine
EXIT_S = 5.0  # for a process whose socket closed to exit
READY = json.dumps({"rules": {}, "whole": 'start: "a"'}).encode()  # asked first, to wait for the imports


class ChildDied(Exception):
    """The child ended before it answered. `code` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(describe_exit(code))
        self.code = code


class TrialChild:
    """Answers one question at a time."""

    def __init__(self, memory_bytes: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-P", trial.__file__, str(descriptor), str(os.getpid()), str(memory_bytes)]
            self._popen = subprocess.Popen(
                command,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a library that panics writes its stack there
                start_new_session=True,  # Ctrl-C is for the parent
            )
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_waiting = False  # for an answer
        self._retires = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_usable(self) -> bool:
        """True if another question may be asked: no answer is due, and the child has not ended."""
        return not (self._is_waiting or self._retires) and self._popen.poll() is None

    async def start(self) -> None:
        """Waits until the child has imported what it needs; does nothing the second time."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._socket)
            async with asyncio.timeout(START_S):
                await self._exchange(READY)

    async def ask(self, grammar: Grammar) -> dict[str, Any]:
        """Returns the child's answer. Raises ChildDied if none came."""
        return await self._exchange(json.dumps({"rules": grammar.rules, "whole": grammar.trial}).encode())

    async def convert(self, name: str, gbnf: str) -> dict[str, Any]:
        """Returns the child's answer with the grammar in Lark. Raises ChildDied if none came."""
        return await self._exchange(json.dumps({"name": name, "gbnf": gbnf}).encode())

    def kill(self) -> None:
        """Ends the process. Its exit is awaited in a thread of the event loop, so that no zombie is left."""
        self._retires = True
        self._popen.kill()
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].transport.abort()
        asyncio.get_running_loop().run_in_executor(None, self._popen.wait)

    async def _exchange(self, message: bytes) -> dict[str, Any]:
        assert self._streams is not None
        reader, writer = self._streams
        self._is_waiting = True
        try:
            writer.write(trial.HEAD.pack(len(message)) + message)
            await writer.drain()
            head = await reader.readexactly(trial.HEAD.size)
            answer: dict[str, Any] = json.loads(await reader.readexactly(trial.HEAD.unpack(head)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ChildDied(await asyncio.to_thread(self._popen.wait, EXIT_S)) from None
        self._is_waiting, self._retires = False, answer["retires"]
        return answer


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
