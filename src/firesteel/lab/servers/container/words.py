"""The words of `docker run`: its options, the image, the command inside, and the port of this machine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firesteel.errors import UserError

PROGRAMS = ("docker", "podman", "nerdctl")
# Options without a value; every other option takes one.
LONG_FLAGS = {
    "detach",
    "disable-content-trust",
    "env-host",
    "help",
    "http-proxy",
    "init",
    "interactive",
    "no-healthcheck",
    "no-hosts",
    "no-hostname",
    "oom-kill-disable",
    "passwd",
    "privileged",
    "publish-all",
    "quiet",
    "read-only",
    "read-only-tmpfs",
    "replace",
    "rm",
    "rmi",
    "rootfs",
    "sig-proxy",
    "tls-verify",
    "tty",
    "unsetenv-all",
    "use-api-socket",
}
SHORT_FLAGS = {"d": "detach", "i": "interactive", "t": "tty", "P": "publish-all", "q": "quiet"}
SHORT_OPTIONS = {"p": "publish", "e": "env", "v": "volume", "l": "label", "h": "hostname", "u": "user"}
SHORT_OPTIONS |= {"w": "workdir", "m": "memory", "c": "cpu-shares", "a": "attach"}
# The lab starts containers detached and removes them itself, after it has read why they ended.
REPLACED = ("detach", "interactive", "tty", "rm", "rmi", "restart", "sig-proxy", "attach", "cidfile")
PORTS = {"sglang": 30000, "llamacpp": 8080}  # on which engines listen unless told otherwise
USUAL_PORT = 8000
PUBLISHED = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:]+):)?(?P<port>\d+):(?P<inside>\d+)(?:/(?P<protocol>\w+))?")


@dataclass(frozen=True, slots=True)
class RunOption:
    name: str  # in its long form, without dashes
    value: str | None  # None: it takes none
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """A parsed `docker run`."""

    program: tuple[str, ...]  # such as ("sudo", "docker")
    options: tuple[RunOption, ...]
    image: str
    command: tuple[str, ...]  # after the image

    def values(self, *names: str) -> list[str]:
        return [option.value for option in self.options if option.name in names and option.value is not None]

    def detached(self, added: Sequence[str]) -> tuple[str, ...]:
        """Returns the words that start it in the background with more options, which its own ones override."""
        kept = (word for option in self.options if option.name not in REPLACED for word in option.words)
        return (*self.program, "run", "--detach", *added, *kept, self.image, *self.command)


def is_run(words: Sequence[str]) -> bool:
    """Returns True if a command line starts a container."""
    return _find_run(words) is not None


def parse_run(words: Sequence[str]) -> RunWords:
    found = _find_run(words)
    assert found is not None
    program, rest = found
    options: list[RunOption] = []
    position = 0
    while position < len(rest) and rest[position].startswith("-"):
        read, count = _read_options(rest[position:])
        options += read
        position += count
    if position >= len(rest):
        raise UserError(
            f"--engine: {' '.join(program)} run names no image: give `docker run OPTIONS IMAGE COMMAND`"
        )
    image, command = rest[position], rest[position + 1 :]
    return RunWords(program=program, options=tuple(options), image=image, command=tuple(command))


def find_address(run: RunWords, kind: str) -> tuple[str, int]:
    """Returns host and port at which the server will answer on this machine."""
    inside = find_port(run.command, kind)
    if "host" in run.values("network", "net"):
        return "127.0.0.1", inside
    published = [match for value in run.values("publish") if (match := _parse_published(value))]
    chosen = [match for match in published if int(match["inside"]) == inside] or published
    if len(chosen) != 1:
        what = "publishes no port" if not published else f"publishes several ports, and none is {inside}"
        raise UserError(
            f"--engine: the container {what}: add `-p {{port}}:{inside}` (the lab chooses {{port}}), a fixed "
            f"`-p {inside}:{inside}`, or `--network host`"
        )
    host = (chosen[0]["host"] or "").strip("[]")
    return ("127.0.0.1" if host in ("", "0.0.0.0", "::") else host), int(chosen[0]["port"])


def find_port(command: Sequence[str], kind: str) -> int:
    """Returns the port on which the engine listens inside the container."""
    given = [word.removeprefix("--port=") for word in command if word.startswith("--port=")]
    given += [after for word, after in itertools.pairwise(command) if word == "--port"]
    numbers = [int(text) for text in given if text.isdigit()]
    return numbers[-1] if numbers else PORTS.get(kind, USUAL_PORT)


def _parse_published(value: str) -> re.Match[str] | None:
    match = PUBLISHED.fullmatch(value)
    if match is None:
        raise UserError(
            f"--engine: -p {value}: the lab needs one fixed port: give HOST_PORT:CONTAINER_PORT or {{port}}:..."
        )
    return None if match["protocol"] == "udp" else match


def _find_run(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]] | None:
    """Returns the program with its global options, and the words after `run`."""
    for at, word in enumerate(words):
        if Path(word).name in PROGRAMS:
            if "run" not in words[at:]:
                return None
            run = list(words).index("run", at)
            program = words[: run - 1] if words[run - 1] == "container" else words[:run]
            return tuple(program), list(words[run + 1 :])
        if not (word in ("sudo", "env", "exec") or word.startswith("-") or "=" in word):
            return None  # another program comes first
    return None


def _read_options(words: Sequence[str]) -> tuple[list[RunOption], int]:
    """Returns the options at the begin of the words, and how many words they take: -it are two in one."""
    word = words[0]
    if not word.startswith("--"):
        return _read_short(words)
    name, equals, value = word.removeprefix("--").partition("=")
    if name in LONG_FLAGS:
        return [RunOption(name, None, (word,))], 1
    if equals:
        return [RunOption(name, value, (word,))], 1
    return [RunOption(name, _next_word(words), tuple(words[:2]))], 2


def _read_short(words: Sequence[str]) -> tuple[list[RunOption], int]:
    """Reads -p X, -pX, -it and -itp X."""
    letters, options = words[0][1:], []
    for at, letter in enumerate(letters):
        if letter in SHORT_FLAGS:
            options.append(RunOption(SHORT_FLAGS[letter], None, (f"-{letter}",)))
            continue
        joined = letters[at + 1 :].removeprefix("=")
        value = joined or _next_word(words)
        options.append(RunOption(SHORT_OPTIONS.get(letter, letter), value, (f"-{letter}", value)))
        return options, 1 if joined else 2
    return options, 1


def _next_word(words: Sequence[str]) -> str:
    if len(words) < 2:
        raise UserError(f"--engine: {words[0]} of docker run lacks its value")
    return words[1]
