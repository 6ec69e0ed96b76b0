"""Servers in containers: started detached, followed, diagnosed, stopped by id, and always removed."""

import json
import socket
import sys

import pytest

from firesteel.lab.memory.footprint import Footprint
from firesteel.lab.path.imports import find_imports
from firesteel.lab.run import run_lab
from firesteel.lab.servers.server_exit import FOR_STACKS
from firesteel.lab.servers.supervisor import ServerFailed, SupervisedServer, is_free
from firesteel.lab.spec import LabSpec
from tests.lab.observers import RecordingObserver


def fail(command, folder):
    with pytest.raises(ServerFailed) as caught, SupervisedServer(command, folder):
        pytest.fail("it became ready")
    return caught.value


def test_server_is_followed_measured_asked_and_removed(docker, tmp_path):
    command = docker.command(options="--rm -it --name mine -e VLLM_X=1", flags=("--x", "a b"))
    with SupervisedServer(command, tmp_path / "out") as server:
        [container] = docker.containers()
        assert server.container.container == container and not is_free(command.address)
        [process] = server.processes.describe_all()
        assert process.pid == server.processes.leader and process.command.endswith("well --x a b")
        assert Footprint.of(server.processes.find_living()).resident > 1e6
        server.monitor.sample()
        assert server.monitor.peak_bytes > 1e6
        place = server.place
        assert place.environment["VLLM_X"] == "1" and "STAND_IN" not in place.environment
        assert place.environment["PYTHONFAULTHANDLER"] == "1"  # for stacks in the log
        imports = find_imports(place, ["json", "no_such_package"])
        assert imports.python == "{}.{}.{}".format(*sys.version_info) and imports.packages["json"].file
        assert (
            server.container.image == "vllm/vllm-fake"
            and server.container.digest == f"vllm/vllm-fake@sha256:{'ab' * 32}"
        )
    assert server.exit.is_clean and server.exit.how == "on SIGTERM" and server.exit.exit_code == 0
    assert "loading" in server.log.read_text() and docker.containers() == [] and is_free(command.address)


def test_crash_is_diagnosed_by_the_log_and_the_container_is_in_the_bundle(docker, tmp_path):
    error = fail(docker.command("import-error", options="-e VLLM_X=1"), tmp_path / "out")
    assert error.diagnosis.kind == "import-error" and "exited with code 1 at start-up" in error.diagnosis.words
    around = json.loads((error.bundle / "report.json").read_text())["surroundings"]
    assert around["container"]["image"] == "vllm/vllm-fake" and around["container"]["state"]["ExitCode"] == 1
    assert around["environment"]["VLLM_X"] == "1" and docker.containers() == []


@pytest.mark.slow
def test_memory_limit_of_the_container_is_named(docker, tmp_path):
    program = f"{sys.executable} -S -c 'import time; x = bytes(1) * (200 << 20); time.sleep(60)'"
    error = fail(docker.command(options="--memory 64m", program=program), tmp_path / "out")
    assert error.diagnosis.kind == "out-of-memory" and "memory limit" in error.diagnosis.words
    assert "signal 9 (SIGKILL)" in error.diagnosis.words and "--memory" in error.diagnosis.cure


@pytest.mark.slow
def test_hang_leaves_stacks_in_the_log(docker, tmp_path):
    with SupervisedServer(docker.command("hangs"), tmp_path / "out") as server:
        error = server.fail_silent(7.0)
    assert error.diagnosis.kind == "hang" and "in serve_forever" in (error.bundle / "log.txt").read_text()
    assert server.exit.how == FOR_STACKS and docker.containers() == []


@pytest.mark.slow
def test_server_that_ignores_sigterm_is_killed_and_said_to_be_unclean(docker, tmp_path):
    with SupervisedServer(docker.command("ignores-sigterm", grace_s=0.3), tmp_path / "out") as server:
        pass
    assert server.exit.how == "on SIGABRT" and not server.exit.is_clean and docker.containers() == []


@pytest.mark.slow
def test_container_that_somebody_else_removes_is_noticed(docker, tmp_path):
    with SupervisedServer(docker.command(), tmp_path / "out") as server:
        docker.run("rm", "--force", *docker.containers())
        server._server.wait(5)
        with pytest.raises(ServerFailed, match="killed by signal 9"):
            server.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "words", "cure"),
    [
        ({"options": "--name taken"}, "is already in use by container", "remove it"),
        ({"image": "other/image"}, "pull access denied", "check the image's name"),
    ],
)
def test_container_that_does_not_start_has_the_runtimes_reason_and_a_cure(fields, words, cure, docker, tmp_path):
    docker.run("run", "-d", "--name", "taken", "vllm/vllm-fake", "sleep", "60")
    error = fail(docker.command(**fields), tmp_path / "out")
    assert (
        error.diagnosis.kind == "container"
        and words in error.diagnosis.evidence[-1]
        and cure in error.diagnosis.cure
    )
    assert len(docker.containers()) == 1 and error.bundle is None


@pytest.mark.slow
def test_missing_program_in_the_image_leaves_no_created_container(docker, tmp_path):
    error = fail(docker.command(program="no-such-server"), tmp_path / "out")
    assert "exit code 127" in error.diagnosis.words and "no such program" in error.diagnosis.cure
    assert docker.containers() == []


@pytest.mark.slow
def test_missing_image_is_pulled_before(docker, tmp_path):
    (docker.folder / "images").write_text("")
    (docker.folder / "registry").write_text("vllm/vllm-fake\n")
    with SupervisedServer(docker.command(), tmp_path / "out") as server:
        assert server.container.image == "vllm/vllm-fake"


def test_absent_daemon_is_named_with_its_cure(docker, tmp_path):
    (docker.folder / "broken").touch()
    error = fail(docker.command(), tmp_path / "out")
    assert "Cannot connect to the Docker daemon" in str(error) and "systemctl start docker" in error.diagnosis.cure


def test_used_port_is_reported_before_a_container_is_created(docker, tmp_path):
    command = docker.command()
    with socket.create_server(command.address), pytest.raises(ServerFailed, match="used by another process"):
        SupervisedServer(command, tmp_path / "out")
    assert docker.containers() == []


@pytest.mark.slow
def test_interrupted_start_leaves_no_container(docker, tmp_path, monkeypatch):
    def interrupt(self):
        raise SystemExit(143)

    monkeypatch.setattr(SupervisedServer, "_is_ready", interrupt)
    with pytest.raises(SystemExit), SupervisedServer(docker.command(), tmp_path / "out"):
        pass
    assert docker.containers() == []


@pytest.mark.slow
def test_result_names_the_image_also_if_the_server_never_ran(docker, tmp_path):
    program = "sh -c 'echo no; exit 3'"
    engine = f"docker run -p {{port}}:{{port}} vllm/vllm-fake {program}"
    result = run_lab(LabSpec(engine=engine, model="m", level="1", ready_s=20.0), tmp_path, RecordingObserver())
    assert result.engine.image == "vllm/vllm-fake" and result.engine.digest.startswith("vllm/vllm-fake@sha256:")
    assert "exited with code 3" in result.levels[0].reason and docker.containers() == []
