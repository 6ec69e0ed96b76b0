"""Surroundings of a measurement: GPU state, source revision, packages, command, and unavailable values."""

import hashlib
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import torch

from firesteel import surroundings
from firesteel.device import find_device
from firesteel.surroundings import (
    GpuState,
    ask_gpu,
    find_commit,
    hash_packages,
    look_again,
    look_around,
    parse_gpu,
    peak_memory_bytes,
    shown_command,
)

CPU = find_device("cpu")
H200 = "580.95.05, 1980, 3201, 1980, 3201, 700.00, 123.45, 41, P0, Enabled\n"
GB10 = "580.90, 2418, [N/A], 3003, [N/A], [N/A], 4.56, 39, P0, [Not Supported]\n"


def git(folder, *words):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


def test_answer_of_nvidia_smi_is_parsed():
    state = parse_gpu(H200)
    assert state.driver == "580.95.05"
    assert state.clocks_mhz == {"sm": 1980.0, "memory": 3201.0, "max_sm": 1980.0, "max_memory": 3201.0}
    assert state.power == {
        "limit_w": 700.0,
        "draw_w": 123.45,
        "temperature_c": 41.0,
        "performance_state": "P0",
        "persistence": "Enabled",
    }


def test_field_that_the_driver_lacks_is_none():
    """GB10 has no memory clock and no power limit; the driver version must not become a float."""
    state = parse_gpu(GB10)
    assert state.driver == "580.90"
    assert state.clocks_mhz["sm"] == 2418.0 and state.clocks_mhz["memory"] is None
    assert state.power["limit_w"] is None and state.power["persistence"] is None
    assert parse_gpu("No devices were found\n") == GpuState()


def test_cpu_has_no_gpu_state(monkeypatch):
    monkeypatch.setattr(surroundings, "_run", lambda *command: pytest.fail("asked nvidia-smi"))
    assert ask_gpu(CPU) == GpuState(driver=None, clocks_mhz=None, power=None)


def test_second_look_renews_gpu_state_and_time_only(monkeypatch):
    first = look_around(CPU)
    monkeypatch.setattr(surroundings, "find_commit", None)
    monkeypatch.setattr(surroundings, "hash_packages", None)
    monkeypatch.setattr(surroundings, "ask_gpu", lambda device: parse_gpu(H200))
    monkeypatch.setattr(surroundings, "_now", lambda: "2027-01-01T00:00:00Z")
    again = look_again(first, CPU)
    assert (again.gpu, again.time_utc) == (parse_gpu(H200), "2027-01-01T00:00:00Z")
    assert replace(again, gpu=first.gpu, time_utc=first.time_utc) == first


@pytest.mark.parametrize("command", [("no-such-program-anywhere",), ("git", "no-such-verb")])
def test_program_that_is_missing_or_fails_gives_none(command):
    assert surroundings._run(*command) is None


def test_program_that_hangs_gives_none(monkeypatch):
    monkeypatch.setattr(surroundings, "PATIENCE_S", 0.05)
    assert surroundings._run("sleep", "10") is None


def test_commit_and_changes_of_a_tracked_folder(tmp_path):
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    head = subprocess.run(
        ["git", "-C", tmp_path, "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    (tmp_path / "notes.txt").write_text("outside the package")
    assert find_commit(package) == (head, False)
    (package / "new.py").write_text("")
    assert find_commit(package) == (head, True)


def test_package_inside_another_checkout_has_no_commit(tmp_path):
    """A virtual environment often lies inside its user's own repository."""
    package = tmp_path / ".venv" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "x")
    assert find_commit(package) == (None, None)


def test_hash_of_packages_changes_with_any_version(monkeypatch):
    class Package:
        def __init__(self, name, version):
            self.name, self.version = name, version

    def hash_of(*packages):
        monkeypatch.setattr(surroundings.importlib.metadata, "distributions", lambda: packages)
        return hash_packages()

    packages = [Package(name, "1") for name in "Fdbaec"]
    frozen = b"a==1\nb==1\nc==1\nd==1\ne==1\nf==1"
    assert hash_of(*packages) == hash_of(*packages, packages[0]) == hashlib.sha256(frozen).hexdigest()
    assert hash_of(*packages[1:], Package("f", "2")) != hash_of(*packages)


def test_secrets_on_the_command_line_are_hidden_in_both_forms():
    words = ["firesteel", "serve", "--api-key", "abc", "--max-tokens", "5", "--admin-key=def", "--port=80"]
    assert shown_command(words) == (
        "firesteel",
        "serve",
        "--api-key",
        "(hidden)",
        "--max-tokens",
        "5",
        "--admin-key=(hidden)",
        "--port=80",
    )


def test_surroundings_of_this_process(monkeypatch):
    monkeypatch.setenv("FIRESTEEL_PAGE_SIZE", "32")
    monkeypatch.setenv("FIRESTEEL_API_KEY", "hush")
    monkeypatch.setenv("SOME_TOKEN", "hush")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(surroundings.sys, "argv", ["firesteel", "--api-key=hush"])
    seen = look_around(CPU)
    kept = {"CUDA_VISIBLE_DEVICES": "1", "FIRESTEEL_API_KEY": "(hidden)", "FIRESTEEL_PAGE_SIZE": "32"}
    assert kept.items() <= seen.environment.items() and "hush" not in seen.environment.values()
    assert "hush" not in repr(seen)  # hashes are hexadecimal: a secret of those digits might be in one
    assert seen.device == "CPU" and seen.capability is None
    assert (
        seen.versions["torch"] == torch.__version__.partition("+")[0] or seen.versions["torch"] == torch.__version__
    )
    assert set(seen.versions) == {"python", "torch", "triton", "firesteel", "cuda"}
    assert re.fullmatch(r"[0-9a-f]{64}", seen.packages_hash)
    moment = datetime.strptime(seen.time_utc, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)


def test_peak_memory_of_a_cpu_is_that_of_the_process():
    assert 50 << 20 < peak_memory_bytes(CPU) < 1 << 40


@pytest.mark.gpu
def test_peak_memory_and_state_of_a_gpu():
    device = find_device("cuda")
    held = torch.empty(64 << 20, dtype=torch.uint8, device=device.torch_device)
    assert peak_memory_bytes(device) >= held.nbytes
    state = ask_gpu(device)
    assert state.driver and state.clocks_mhz["sm"] > 0
