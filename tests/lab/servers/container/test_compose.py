"""Servers that are a service of a compose file."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.servers.commands import find_key, find_kind, make_command
from firesteel.lab.servers.container.compose import OVERRIDE, find_service_address, parse_service, read_file
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port

FAKE = Path(__file__).parents[2] / "fake_server.py"


@pytest.fixture
def file(docker, tmp_path):
    """A compose file with a fake vLLM and a service that it depends on."""
    port = find_free_port()
    server = {
        "image": "vllm/vllm-fake",
        "command": [sys.executable, "-S", str(FAKE), str(port), "well", "--api-key", "k", "--port", str(port)],
        "ports": [{"target": port, "published": str(port), "protocol": "tcp"}],
        "depends_on": {"cache": {}},
        "restart": "unless-stopped",
    }
    cache = {"image": "vllm/vllm-fake", "command": ["sleep", "60"]}
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "compose.yaml").write_text(json.dumps({"services": {"server": server, "cache": cache}}))
    read_file.cache_clear()
    return folder / "compose.yaml"


def make(file, tmp_path, flags=()):
    command = make_command(f"compose:{file}:server", model="m", port=1, folder=tmp_path / "out", flags=flags)
    return replace(command, ready_s=20.0, grace_s=2.0)


def test_service_is_started_with_what_it_depends_on_and_all_are_removed(docker, file, tmp_path):
    command = make(file, tmp_path, flags=("--price", "5$"))
    assert command.words == ("docker", "compose", "--file", str(file), "up", "--detach", "server")
    with SupervisedServer(command, tmp_path / "out") as server:
        assert len(docker.containers()) == 2
        [process] = server.processes.describe_all()
        assert process.command.endswith("--price 5$") and "PYTHONFAULTHANDLER" in server.place.environment
        override = json.loads((tmp_path / "out" / OVERRIDE).read_text())["services"]
        assert override["cache"] == {"labels": override["server"]["labels"], "restart": "no"}
    assert server.exit.is_clean and docker.containers() == [] and not (tmp_path / "out" / OVERRIDE).exists()


def test_engine_key_and_port_are_those_of_the_service(file, tmp_path):
    engine = f"compose:{file}:server"
    assert find_kind(engine) == "vllm" and find_key((), engine=engine) == "k"
    port = json.loads(file.read_text())["services"]["server"]["ports"][0]["target"]
    assert make(file, tmp_path).url == f"http://127.0.0.1:{port}"


def test_service_that_is_up_already_is_refused_and_left(docker, file, tmp_path):
    """Starting it again would restart the user's server, and the end of the run would remove it."""
    docker.run("compose", "--file", str(file), "up", "--detach", "server")
    with pytest.raises(UserError, match=r"has a container already: remove it .*--url"):
        make(file, tmp_path)
    assert len(docker.containers()) == 2


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("compose:nowhere.yaml:server", "there is no file nowhere.yaml"),
        ("compose:server", "give compose:FILE:SERVICE"),
        ("compose:{file}:other", "has no service other; it has server, cache"),
    ],
)
def test_wrong_file_or_service_is_named(engine, words, file):
    with pytest.raises(UserError, match=words):
        find_kind(engine.format(file=file))


@pytest.mark.parametrize(
    ("content", "address"),
    [
        ({"ports": [{"target": 8000, "published": "9000"}]}, ("127.0.0.1", 9000)),
        (
            {"ports": [{"target": 1, "published": "9000"}, {"target": 8000, "published": "9001"}]},
            ("127.0.0.1", 9001),
        ),
        ({"ports": [{"target": 8000, "published": "9000", "host_ip": "10.0.0.7"}]}, ("10.0.0.7", 9000)),
        ({"network_mode": "host", "command": ["--port", "8123"]}, ("127.0.0.1", 8123)),
    ],
)
def test_port_is_the_one_that_the_service_publishes(content, address):
    assert find_service_address(content, "vllm", "vllm") == address


def test_service_without_a_fixed_port_is_refused():
    with pytest.raises(UserError, match=r"vllm must publish port 8000"):
        find_service_address({"ports": [{"target": 8000}]}, "vllm", "vllm")


def test_service_name_follows_the_last_colon(tmp_path):
    (tmp_path / "a:b.yaml").touch()
    assert parse_service(f"compose:{tmp_path}/a:b.yaml:vllm").name == "vllm"
