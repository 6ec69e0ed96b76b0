"""A Ray cluster of two nodes on loopback addresses, each with a made-up GPU."""

import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.vllm_plugin.peers import ENVIRONMENT, ROOT, environment, folder_of

READY_S = 180.0
VARIABLES = {
    "PYTHONPATH": f"{ROOT / 'tests/vllm_plugin/ray_site'}:{ENVIRONMENT['PYTHONPATH']}",
    "RAY_DEDUP_LOGS": "0",  # else only one of two similar lines is shown
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def two_nodes(version, folder, **of_second):
    """Yields the variables for a driver of the cluster; ends the cluster's processes, and no others.

    `of_second` are variables of the second node alone.
    """
    port, leftover = find_port(), find_shared_memory()
    started = []
    try:
        nodes = (
            ("127.0.0.1", ["--head", f"--port={port}"], {}),
            ("127.0.0.2", [f"--address=127.0.0.1:{port}"], of_second),
        )
        for address, words, variables in nodes:
            started.append(start_node(version, folder, address, words, variables))
            wait_for(started[-1], folder / f"{address}.log")
        yield VARIABLES | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        for process in reversed(started):
            end_tree(process)
        for path in find_shared_memory() - leftover:
            path.unlink(missing_ok=True)


def start_node(version, folder, address, words, variables):
    command = [
        *(folder_of(version) / "python", "-m", "ray.scripts.scripts", "start", "--block", *words),
        *(f"--node-ip-address={address}", "--num-gpus=1", "--num-cpus=2", "--object-store-memory=100000000"),
        *(("--include-dashboard=false", f"--temp-dir={folder}") if "--head" in words else ()),
    ]
    all_variables = environment(**VARIABLES | {"VLLM_HOST_IP": address} | variables)
    with (folder / f"{address}.log").open("w") as log:
        return subprocess.Popen(command, env=all_variables, stdout=log, stderr=log, start_new_session=True)


def wait_for(process, log):
    """Returns when the node says that it runs."""
    deadline = time.monotonic() + READY_S
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)


def find_shared_memory():
    """Returns files of vLLM's CPU build on Ray. Their names repeat, and a file of an earlier run stops the next."""
    paths = Path("/dev/shm").glob("*-cpushm_*")
    return {path for path in paths if not path.name.startswith("vllm_dist_")}  # those of one node have unique names


def find_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_tree(process):
    """Kills a process that we started and all its descendants."""
    with suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid)
        for member in [*tree.children(recursive=True), tree]:
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()
