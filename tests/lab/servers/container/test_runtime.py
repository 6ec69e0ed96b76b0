"""Commands of docker and podman about one container."""

import pytest

from firesteel.lab.servers.container.runtime import CommandOutput, ContainerRuntime, TopRow

DOCKER = (
    "PID   PPID  RSS    STAT  COMMAND\n"
    "41    40    1024   Ssl   python3 -m vllm serve\n"
    "42    41    0      Z     [python3]\n"
)
PODMAN = "HPID  PPID  RSS    STATE  COMMAND\n41    0     1024   S      python3 -m vllm serve \n"


@pytest.mark.parametrize(
    ("version", "printed", "columns", "first"),
    [
        (
            "Docker version 28.2.2",
            DOCKER,
            ["-eo", "pid,ppid,rss,stat,args"],
            TopRow(41, 40, 1 << 20, "S", "python3 -m vllm serve"),
        ),
        (
            "podman version 4.3.1",
            PODMAN,
            ["hpid", "ppid", "rss", "state", "args"],
            TopRow(41, 0, 1 << 20, "S", "python3 -m vllm serve"),
        ),
    ],
)
def test_processes_are_those_that_top_shows(version, printed, columns, first, monkeypatch):
    asked = []

    def ask(self, *words, **given):
        asked.append(list(words))
        return CommandOutput(0, version if words == ("--version",) else printed, "")

    monkeypatch.setattr(ContainerRuntime, "ask", ask)
    rows = ContainerRuntime(("docker",)).list_processes("abc")
    assert rows[0] == first and asked[-1] == ["top", "abc", *columns]
    assert [row.state for row in rows[1:]] == (["Z"] if printed is DOCKER else [])


def test_container_that_is_unknown_is_told_from_a_daemon_that_does_not_answer(docker):
    """A container must not count as removed while nobody can say."""
    assert docker.runtime.inspect("abc") is None
    (docker.folder / "broken").touch()
    assert docker.runtime.inspect("abc") == {} and docker.runtime.remove("abc")


def test_image_without_a_registry_has_the_digest_of_its_configuration(monkeypatch):
    answer = CommandOutput(0, '[{"Id": "sha256:12", "RepoDigests": []}]', "")
    monkeypatch.setattr(ContainerRuntime, "ask", lambda self, *words, **given: answer)
    assert ContainerRuntime(("docker",)).find_digest("x") == "sha256:12"
