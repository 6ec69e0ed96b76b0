"""Errors of docker and podman themselves."""

import pytest

from firesteel.lab.servers.container.faults import diagnose_start


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "start the",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "group",
        ),
        ('could not select device driver "" with capabilities: [[gpu]]', "NVIDIA Container Toolkit"),
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "NVIDIA Container Toolkit"),
        ("manifest for vllm/vllm-openai:v9 not found: manifest unknown", "name and tag"),
        ('Conflict. The container name "/vllm" is already in use by container "1a2b"', "docker rm -f"),
        ('exec: "vlm": executable file not found in $PATH: unknown', "no such program"),
        ("invalid mount config for type bind: bind source path does not exist: /models", "folder to mount"),
    ],
)
def test_known_error_has_its_cure(line, cure):
    diagnosis = diagnose_start(125, ["Unable to do it", f"docker: Error response from daemon: {line}", "See help."])
    assert diagnosis.kind == "container" and cure in diagnosis.cure and diagnosis.evidence[0].endswith(line)


def test_published_port_that_is_taken_is_the_usual_diagnosis():
    line = "Bind for 0.0.0.0:8000 failed: port is already allocated."
    assert diagnose_start(125, [line]).kind == "port-in-use"


def test_unknown_error_shows_the_last_lines():
    diagnosis = diagnose_start(125, ["something new"])
    assert diagnosis.evidence == ("something new",) and "exit code 125" in diagnosis.words
