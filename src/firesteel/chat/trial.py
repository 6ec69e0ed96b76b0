"""Trial compilation of grammars: finds what is wrong with a client's schema before the engine compiles it.

`find_fault` compiles in this process. Run as a program, the module is a child process that does it for its parent
and that can be killed, because a hostile schema may take hours, fill the memory or overflow the stack:

    python -P trial.py DESCRIPTOR PARENT_PID MEMORY_BYTES

DESCRIPTOR is a socket. Each message is JSON after its length in bytes: {"rules": {...}, "whole": ...} from the
parent, {"fault": [name, text] or null, "panic": text or null, "retires": bool} from the child. The message
{"name": ..., "gbnf": text} asks for the same grammar in Lark, which the answer holds as "lark". The module imports
nothing of firesteel, so that a child starts in a fraction of a second. Compilation with a vocabulary of bytes costs
the same as with the model's own, which takes seconds to load.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher

HEAD = struct.Struct("!I")
STACK_BYTES = 8 << 20  # of a trial; the engine compiles with twice as much
NUM_BYTES = 256
NICENESS = 5
PR_SET_PDEATHSIG = 1
TOGETHER = "tools and response_format together"
WITHOUT_LIBRARY = 3  # exit code
PANIC = "panic:"  # beginning of the error of a matcher whose construction panicked
MISSING = "grammars need the package llguidance: pip install llguidance"
_SURROUNDINGS = re.compile(r"^.*JSON schema: |\n +1 \|.*", re.DOTALL)  # parts of an error that quote our own text


class TrialPanic(Exception):
    """llguidance panicked and caught it."""


def find_fault(rules: Mapping[str, str], whole: str) -> tuple[str, str] | None:
    """Returns the name of the first rule that cannot be used and why, or None. `whole` is a grammar with all rules.

    Raises TrialPanic if llguidance cannot cope with a rule.
    """
    for name, rule in rules.items():
        matcher = _compile(f"start: {rule}")
        if matcher.is_error():
            return name, _shorten(matcher.get_error())
        if not any(matcher.compute_logit_bias()[:NUM_BYTES]):
            return name, "no text satisfies it: it refers only to itself, or to special tokens"
    matcher = _compile(whole)
    return (TOGETHER, _shorten(matcher.get_error())) if matcher.is_error() else None


def _compile(grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    if matcher.get_error().startswith(PANIC):
        raise TrialPanic(matcher.get_error().partition("\n")[0][:200])
    return matcher


def _shorten(error: str) -> str:
    return " ".join(_SURROUNDINGS.sub("", error).split())[:500]


def answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Tries or converts the grammar of a message. A panic of the library is an answer too."""
    if "gbnf" in message:
        return convert(message["name"], message["gbnf"])
    try:
        return {"fault": find_fault(message["rules"], message["whole"]), "panic": None}
    except BaseException as error:  # a panic is not an Exception
        return {"fault": None, "panic": f"{type(error).__name__}: {error}"[:500]}


def convert(name: str, gbnf: str) -> dict[str, Any]:
    """Converts a grammar to Lark."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return {"lark": gbnf_to_lark(gbnf), "fault": None, "panic": None}
    except Exception as error:  # the library raises no class of its own, and RecursionError
        return {"fault": [name, _shorten(str(error) or type(error).__name__)], "panic": None}


def serve(end: socket.socket, memory_bytes: int) -> None:
    """Answers messages until the parent closes its end."""
    base = address_space()
    resource.setrlimit(resource.RLIMIT_AS, (base + memory_bytes, base + memory_bytes))
    with end, contextlib.suppress(ConnectionError):
        while (head := read(end, HEAD.size)) is not None:
            body = read(end, HEAD.unpack(head)[0])
            if body is None:
                return
            # A child that holds much memory after a trial would refuse the next one for it.
            reply = {**answer(json.loads(body)), "retires": address_space() - base > memory_bytes // 4}
            data = json.dumps(reply).encode()
            end.sendall(HEAD.pack(len(data)) + data)


def read(end: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = end.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def address_space() -> int:
    """Returns the bytes of this process's address space, which RLIMIT_AS limits."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main(descriptor: int, parent: int, memory_bytes: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        return
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = socket.socket(fileno=descriptor)
    try:
        import llguidance  # noqa: F401 - before the first message, so that it does not count as compilation
    except ImportError:
        sys.exit(WITHOUT_LIBRARY)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(end, memory_bytes))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
