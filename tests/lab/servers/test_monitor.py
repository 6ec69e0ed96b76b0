"""Monitoring of a running server: memory over time, and a log that grows too large."""

from firesteel.lab.memory.gpu import OWN, GpuMemory
from firesteel.lab.servers import monitor
from firesteel.lab.servers.monitor import shorten
from firesteel.lab.servers.supervisor import SupervisedServer


def test_memory_is_sampled_over_time_with_its_peak(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "SAMPLE_S", 0.01)
    with SupervisedServer(fake(), tmp_path) as server:
        server.monitor.sample()
    samples = server.monitor.memory
    assert len(samples) >= 2 and server.monitor.peak_bytes == max(rss for _, rss, _ in samples) > 1e6
    assert [at for at, _, _ in samples] == sorted(at for at, _, _ in samples)


def test_samples_of_long_runs_are_thinned(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "MAX_SAMPLES", 4)
    with SupervisedServer(fake(), tmp_path) as server:
        for _ in range(20):
            server.monitor.sample()
        assert len(server.monitor.memory) <= 5


def test_long_log_keeps_both_ends_and_a_short_one_is_unchanged(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"a" * 50 + b"b" * 900 + b"c" * 50)
    shorten(log, kept_bytes=50)
    assert log.read_bytes() == b"a" * 50 + b"\n... 900 bytes left out ...\n" + b"c" * 50
    log.write_bytes(b"short")
    shorten(log, kept_bytes=50)
    assert log.read_bytes() == b"short"


def test_gpu_memory_is_that_of_the_servers_processes(fake, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(monitor, "used_by", lambda pids: asked.append(list(pids)) or GpuMemory(5, OWN))
    with SupervisedServer(fake(), tmp_path) as server:
        server.monitor.sample()
        assert asked[-1] == [server.processes.leader]
    assert server.monitor.memory[-1][2] == 5 and server.monitor.gpu_scope == OWN
