"""A server in a container of docker or podman itself, if one of them runs containers here."""

import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.lab.path.imports import find_imports
from firesteel.lab.servers.commands import make_command
from firesteel.lab.servers.supervisor import ServerFailed, SupervisedServer, find_free_port

FAKE = Path(__file__).parents[2] / "fake_server.py"
IMAGE = "firesteel-lab-empty"
FOLDERS = ("usr", "lib", "lib64", "bin", "tmp", "proc", "sys", "dev", "etc")
# Without a working cgroup or the right to raise limits, as in a virtual machine for tests, podman needs more words.
PROGRAMS = (
    ("docker", ""),
    ("podman", ""),
    ("podman --runtime runc", "--ulimit nofile=1024:1024 --ulimit nproc=1000:1000"),
)
pytestmark = pytest.mark.peer


def quietly(*words):
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False, timeout=120)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """Program and options of a runtime that starts a container of an image without any file; removes the image."""
    root = tmp_path_factory.mktemp("image")
    with tarfile.open(root / "root.tar", "w") as archive:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
    reasons = []
    for program, options in PROGRAMS:
        words = program.split()
        if shutil.which(words[0]) is None:
            reasons.append(f"{words[0]} is not installed")
            continue
        quietly(*words, "import", str(root / "root.tar"), IMAGE)
        shared = [f"-v={folder}:{folder}:ro" for folder in ("/usr", "/lib", "/lib64") if Path(folder).exists()]
        tried = quietly(*words, "run", "--rm", "--network=host", *options.split(), *shared, IMAGE, "/usr/bin/true")
        if tried.returncode == 0:
            yield program, options
            quietly(*words, "rmi", "--force", IMAGE)
            return
        reasons.append(f"{program}: {tried.stderr.strip()[-200:]}")
    pytest.skip("; ".join(reasons))


@pytest.fixture
def make(runtime, tmp_path):
    """make("well"): the command of a fake server in a container that sees this machine's Python."""
    program, options = runtime
    python = Path(sys.executable).resolve()
    folders = {"/usr", "/lib", "/lib64", str(python.parents[1]), str(FAKE.parent), str(FAKE.parents[2] / "src")}
    shared = " ".join(f"-v {folder}:{folder}:ro" for folder in sorted(folders) if Path(folder).exists())

    def command(way="well", *, added=""):
        inside = f"{python} {FAKE} {{port}} {way} --port {{port}}"
        engine = f"{program} run --rm -e VLLM_X=1 --network host {options} {added} {shared} {IMAGE} {inside}"
        made = make_command(engine, model="m", port=find_free_port(), folder=tmp_path)
        return replace(made, ready_s=30.0, grace_s=3.0)

    yield command
    listed = quietly(*program.split(), "ps", "--all", "--quiet", "--filter", "label=firesteel.lab")
    assert listed.stdout.split() == []


def test_server_is_followed_measured_asked_and_removed(make, tmp_path):
    with SupervisedServer(make(), tmp_path / "out") as server:
        [process] = server.processes.describe_all()
        assert process.rss_bytes > 1e6 and "fake_server.py" in process.command
        imports = find_imports(server.place, ["json"])
        assert imports.python == "{}.{}.{}".format(*sys.version_info)
        assert server.place.environment["VLLM_X"] == "1"
        assert IMAGE in server.container.image and "sha256:" in server.container.digest
    assert server.exit.is_clean and server.exit.exit_code == 0 and "loading" in server.log.read_text()


def test_crash_is_diagnosed_with_the_state_of_the_container(make, tmp_path):
    with pytest.raises(ServerFailed) as caught, SupervisedServer(make("import-error"), tmp_path / "out"):
        pytest.fail("it became ready")
    assert caught.value.diagnosis.kind == "import-error"
    around = json.loads((caught.value.bundle / "report.json").read_text())["surroundings"]
    assert around["container"]["state"]["ExitCode"] == 1 and around["environment"]["VLLM_X"] == "1"


def test_hang_leaves_its_stacks(make, tmp_path):
    with SupervisedServer(make("hangs"), tmp_path / "out") as server:
        error = server.fail_silent(7.0)
    assert "in serve_forever" in (error.bundle / "log.txt").read_text()


def test_unknown_option_is_the_reason(make, tmp_path):
    with pytest.raises(ServerFailed, match="no-such-option"):
        SupervisedServer(make(added="--no-such-option=1"), tmp_path / "out")
