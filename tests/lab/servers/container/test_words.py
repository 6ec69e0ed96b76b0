"""The words of `docker run`."""

import shlex

import pytest

from firesteel.errors import UserError
from firesteel.lab.servers.container.words import find_address, is_run, parse_run

VLLM = (
    "docker run --gpus all --rm -it -v /models:/m --ipc=host -p 8000:8000 vllm/vllm-openai:v0.32 --model /m/x -p 1"
)


def parse(text):
    return parse_run(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, True),
        ("sudo -E docker run x", True),
        ("env A=1 /usr/bin/podman --log-level debug run x", True),
        ("docker container run x", True),
        ("docker start x", False),
        ("vllm serve docker run", False),
        ("my-server --with docker --run", False),
    ],
)
def test_commands_that_start_a_container_are_recognised(text, expected):
    assert is_run(shlex.split(text)) is expected


def test_options_image_and_command_are_told_apart():
    run = parse(VLLM)
    assert run.program == ("docker",) and run.image == "vllm/vllm-openai:v0.32"
    assert run.command == ("--model", "/m/x", "-p", "1")
    assert run.values("gpus", "ipc") == ["all", "host"] and run.values("publish") == ["8000:8000"]
    assert parse("docker container run -m 8g x y").program == ("docker",)
    assert parse("sudo docker --context c run x").program == ("sudo", "docker", "--context", "c")


@pytest.mark.parametrize(
    "text",
    ["docker run -p 1:2 -itd x", "docker run -itdp 1:2 x", "docker run -p1:2 x", "docker run --publish=1:2 x"],
)
def test_every_way_to_write_an_option_is_read(text):
    run = parse(text)
    assert run.values("publish") == ["1:2"] and run.image == "x"


def test_container_is_detached_and_removed_by_the_lab():
    """With --rm its exit code would be gone before it could be read."""
    words = parse("docker run --rm -it --restart always --restart=no --name a -e X=1 image serve --rm").detached(
        ["-e", "Y=2"]
    )
    assert words == ("docker", "run", "--detach", "-e", "Y=2", "--name", "a", "-e", "X=1", "image", "serve", "--rm")


@pytest.mark.parametrize(
    ("options", "command", "kind", "address"),
    [
        ("-p 8000:8000", "", "vllm", ("127.0.0.1", 8000)),
        ("-p 127.0.0.1:9000:8000", "", "vllm", ("127.0.0.1", 9000)),
        ("-p 10.0.0.7:9000:8000/tcp", "", "vllm", ("10.0.0.7", 9000)),
        ("-p [::]:9000:8000", "", "vllm", ("127.0.0.1", 9000)),
        ("-p 9000:1234 -p 9001:30000", "", "sglang", ("127.0.0.1", 9001)),
        ("-p 9000:1234 -p 9001:99", "--port 99", "sglang", ("127.0.0.1", 9001)),
        ("-p 9000:1234 -p 9001:99/udp", "", "other", ("127.0.0.1", 9000)),
        ("--network host", "--port=8123", "vllm", ("127.0.0.1", 8123)),
        ("--net=host", "", "llamacpp", ("127.0.0.1", 8080)),
    ],
)
def test_port_is_the_one_that_the_command_publishes(options, command, kind, address):
    assert find_address(parse(f"docker run {options} image {command}"), kind) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker run -it x", r"publishes no port: add `-p \{port\}:8000`"),
        ("docker run -p 1:2 -p 3:4 x", "several ports, and none is 8000"),
        ("docker run -p 8000 x", "-p 8000: the lab needs one fixed port"),
        ("docker run -p 8000-8010:8000-8010 x", "one fixed port"),
        ("docker run -p", "-p of docker run lacks its value"),
        ("docker run --rm", "names no image"),
    ],
)
def test_container_without_a_fixed_port_or_image_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        find_address(parse(text), "vllm")
