"""The container files: their commands equal those of the documentation, and Compose accepts them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from firesteel.config import all_settings
from firesteel.vllm_plugin.refusal.versions import VersionSupport, judge_version

ROOT = Path(__file__).parents[2]
FILES = ("compose.yaml", "compose.dev.yaml")
# What an image needs and a machine that is already set up does not.
OF_IMAGES_ONLY = (r"useradd --create-home firesteel", r"mkdir --parents [\w./ ]+")


def instructions():
    """Returns (word, rest) of each instruction of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_commands_of_the_image_are_those_of_the_documentation():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/install.md")]
    documented = {re.sub(r"\s+#.*", "", line).strip() for text in texts for line in text.splitlines()}
    commands = [rest for word, rest in instructions() if word == "RUN"]
    assert len(commands) >= 5
    for command in commands:
        is_known = command in documented or any(re.fullmatch(pattern, command) for pattern in OF_IMAGES_ONLY)
        assert is_known, f"docs/install.md does not have {command!r}"
    started = [json.loads(rest) for word, rest in instructions() if word in ("ENTRYPOINT", "CMD")]
    assert " ".join(started[0]) in documented  # make test
    assert any(line.startswith(" ".join([*started[1], started[2][0]])) for line in documented)  # firesteel serve


def test_files_that_the_image_copies_exist_and_are_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [name for word, rest in instructions() if word == "COPY" for name in rest.split()[:-1]]
    assert "src" in copied
    for name in copied:
        assert (ROOT / name).exists() and f"!{name}" in ignored, name


@pytest.mark.parametrize("name", FILES)
def test_compose_files_name_stages_and_settings_that_exist(name):
    stages = {rest.split()[-1] for word, rest in instructions() if word == "FROM"}
    variables = {setting.env for setting in all_settings().values()}
    content = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    for service in content["services"].values():
        assert service["build"]["target"] in stages
        assert set(service.get("environment", {})) <= variables
        named = {mount.split(":")[0] for mount in service["volumes"] if not mount.startswith(("$", "."))}
        assert named <= set(content["volumes"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_nodes_of_vllm_get_a_tested_version_and_the_files_of_the_package():
    content = yaml.safe_load((ROOT / "compose.vllm.yaml").read_text(encoding="utf-8"))
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for service in content["services"].values():
        lines = [line.split() for line in service["build"]["dockerfile_inline"].splitlines()]
        version = lines[0][1].rpartition(":v")[2]
        assert judge_version(version).support is VersionSupport.GPU_TESTED
        copied = [name for word, *rest in lines if word == "COPY" for name in rest[:-1]]
        assert "src" in copied and all((ROOT / name).exists() and f"!{name}" in ignored for name in copied)
        variables = {"VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "FIRESTEEL_", "RAY_DEDUP_LOGS": "0"}
        assert variables.items() <= service["environment"].items()
    assert "--tensor-parallel-size 2 --distributed-executor-backend ray" in " ".join(
        content["services"]["serve"]["command"]
    )


def test_development_mounts_the_sources():
    content = yaml.safe_load((ROOT / "compose.dev.yaml").read_text(encoding="utf-8"))
    assert ".:/firesteel" in content["services"]["dev"]["volumes"]
    assert ("WORKDIR", "/firesteel") in instructions()


def find_compose():
    """Returns the command that runs Compose, None if there is none."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    return None


@pytest.mark.parametrize("name", [*FILES, "compose.vllm.yaml"])
def test_compose_accepts_the_file(name, tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_IP", "127.0.0.1")
    monkeypatch.setenv("HEAD_IP", "127.0.0.1")
    compose = find_compose()
    if compose is None:
        pytest.skip("needs Docker Compose: neither `docker compose` nor `docker-compose` answers")
    command = [*compose, "--project-directory", str(ROOT), "--file", str(ROOT / name), "config"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(result.stdout)["services"]
