"""The command of compose.vllm.yaml that waits for both nodes, on a Ray without its dashboard."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.vllm_plugin.peers import ROOT, environment, folder_of, is_installed
from tests.vllm_plugin.ray_nodes import two_nodes

VERSION = "0.28.0"


@pytest.mark.peer
@pytest.mark.skipif(not is_installed(VERSION), reason="needs vLLM's CPU builds: make vllm")
def test_vllm_is_started_once_both_nodes_are_there():
    compose = yaml.safe_load((ROOT / "compose.vllm.yaml").read_text(encoding="utf-8"))
    [command] = compose["services"]["serve"]["command"]
    condition = re.search(r"until (.*); do sleep", command)[1].replace("$$", "$")
    with tempfile.TemporaryDirectory(prefix="ray") as folder, two_nodes(VERSION, Path(folder)) as variables:
        path = f"{folder_of(VERSION)}:{environment()['PATH']}"
        for wanted, code in ((2, 0), (3, 1)):
            asked = condition.replace("< 2", f"< {wanted}")
            done = subprocess.run(
                ["bash", "-c", asked], env=environment(**variables, PATH=path), capture_output=True, timeout=120
            )
            assert done.returncode == code, done.stderr.decode()[-2000:]
