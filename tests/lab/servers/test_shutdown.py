"""A program that gets stop signals stops the servers it started, also if it gets several."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from firesteel.lab.servers.shutdown import deferred_signals

FAKE = Path(__file__).parents[1] / "fake_server.py"
# Its clean-up takes a while, as stopping a server does.
CLEANS_UP = textwrap.dedent("""
    import time
    from firesteel.lab.servers.shutdown import stop_servers_on_signals
    stop_servers_on_signals()
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("stopping", flush=True)
        time.sleep(0.2)
        print("clean", flush=True)
""")
pytestmark = pytest.mark.slow  # processes that import the package
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def start(program, **given):
    return subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, encoding="utf-8", **given
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_second_signal_does_not_abort_the_clean_up(number):
    with start(CLEANS_UP, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        for again in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(again)
        assert process.stdout.read() == "clean\n"
    assert process.returncode == (-number if number == signal.SIGINT else 128 + number)


def test_nohup_stays_effective():
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with start(CLEANS_UP, preexec_fn=ignore) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopping\nclean\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_child_gets_sigterm_and_time_to_stop(number, tmp_path):
    """An interrupted subprocess.run kills after a quarter of a second."""
    child = CLEANS_UP.replace("sleep(0.2)", "sleep(0.6)")
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from firesteel.lab.servers.shutdown import run_child, stop_servers_on_signals
        stop_servers_on_signals()
        run_child([sys.executable, "-c", {child!r}], Path({str(tmp_path / "log")!r}))
    """)
    with start(program, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "log").is_file() and "ready" in (tmp_path / "log").read_text())
        process.send_signal(number)
    assert (tmp_path / "log").read_text() == "ready\nstopping\nclean\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_review_stops_the_server_of_its_check(number, tmp_path):
    engine = f"{sys.executable} {FAKE} {{port}} hangs"
    program = textwrap.dedent(f"""
        from pathlib import Path
        from firesteel.lab.servers.shutdown import stop_servers_on_signals
        from firesteel.lab.level_two import check_by_level_two
        from firesteel.lab.matrix.result import Matrix
        stop_servers_on_signals()
        matrix = Matrix(gates={{}}, engine={engine!r})
        check_by_level_two(matrix, {{}}, Path({str(tmp_path)!r}))
    """)
    with start(program, stderr=subprocess.DEVNULL) as process:
        server = find_server(process.pid, tmp_path / "server.log")
        process.send_signal(number)
    assert not server.is_running()


# A signal arrives while a process is being started, before anything can stop it.
COMES_EARLY = """
import os, signal, subprocess, sys
from pathlib import Path
from firesteel.lab.servers import shutdown, supervisor
shutdown.stop_servers_on_signals()
class Early(subprocess.Popen):
    def __init__(self, *args, **given):
        super().__init__(*args, **given)
        if args[0] == {words!r}:
            print(self.pid, flush=True)
            os.kill(os.getpid(), {number})
subprocess.Popen = Early
"""
STARTS = {
    "a server": "supervisor.SupervisedServer("
    "supervisor.ServerCommand(words={words!r}, url={url!r}), Path({folder!r}))",
    "a child": "shutdown.run_child({words!r}, Path({folder!r}) / 'log')",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("what", STARTS)
def test_process_started_just_before_a_signal_is_stopped(what, number, tmp_path):
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    line = STARTS[what].format(words=words, url="http://127.0.0.1:9", folder=str(tmp_path))
    program = f"{COMES_EARLY.format(number=int(number), words=words)}\n{line}\nprint('continued')\n"
    with start(program, stderr=subprocess.DEVNULL) as process:
        child = int(process.stdout.readline())
        assert process.stdout.read() == ""  # it did not continue
    assert not psutil.pid_exists(child)
    assert process.returncode == (-number if number == signal.SIGINT else 128 + number)


def find_server(pid, log):
    """Returns the server that a descendant of this process started."""
    wait_until(log.is_file)

    def servers():
        children = psutil.Process(pid).children(recursive=True)
        return [child for child in children if str(FAKE) in child.cmdline()[1:2]]

    wait_until(servers)
    return servers()[0]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_other_threads_do_not_change_signal_handlers():
    before, done = signal.getsignal(signal.SIGTERM), []

    def work():
        with deferred_signals():
            done.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
