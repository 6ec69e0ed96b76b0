"""Personal data is removed from every text of a report."""

from pathlib import Path

import pytest

from firesteel.spark_report import private
from firesteel.spark_report.private import scrub


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/jane/x", "~/x"),
        ("at '/Users/jane': no", "at '~': no"),
        (str(Path("/root") / "x"), "~/x"),
        ("/rooted/x", "/rooted/x"),
        ("/opt/x", "/opt/x"),
    ],
)
def test_paths_of_home_folders_are_hidden(text, shown, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/nobody"))
    assert scrub(text) == shown
    assert scrub({"a": [text, 1], text: (text, None)}) == {"a": [shown, 1], shown: (shown, None)}


def unknown():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", [lambda: Path("/"), unknown])
def test_home_that_is_the_root_folder_hides_nothing(monkeypatch, home):
    monkeypatch.setattr(Path, "home", home)
    assert scrub("/opt/x/home") == "/opt/x/home" and scrub("/home/jane/x") == "~/x"


def test_folder_of_the_checkpoint_is_hidden():
    assert scrub(["/data/jane/gpt-oss/x", 1], Path("/data/jane/gpt-oss")) == ["MODEL/x", 1]


def test_folders_of_python_and_firesteel_are_hidden(monkeypatch):
    monkeypatch.setattr(private.sys, "prefix", "/data/jane/.venv")
    monkeypatch.setattr(private, "SOURCE", Path("/data/jane/src"))
    text = "torch from /data/jane/.venv/lib, firesteel from /data/jane/src/firesteel, not /data/jane/srcs"
    assert scrub(text) == "torch from PYTHON/lib, firesteel from SOURCE/firesteel, not /data/jane/srcs"
    monkeypatch.setattr(private.sys, "prefix", "/")
    assert scrub("/a/b") == "/a/b"


def test_folders_behind_links_are_hidden(monkeypatch, tmp_path):
    """A linked environment: the lab names libraries by the paths of the process's maps, which are resolved."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere/tmp")
    for name in ("venv", "model", "extra"):
        (tmp_path / "jane" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(tmp_path / "jane" / name)
    monkeypatch.setattr(private.sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(private.sys, "path", [*private.sys.path, str(tmp_path / "extra")])
    text = " ".join(f"{tmp_path}/jane/{name}/x {tmp_path}/{name}/x" for name in ("venv", "model", "extra"))
    assert scrub(text, tmp_path / "model") == "PYTHON/x PYTHON/x MODEL/x MODEL/x PYTHON/x PYTHON/x"


def test_short_folders_of_the_system_stay(monkeypatch):
    monkeypatch.setattr(private.sys, "base_prefix", "/usr")
    assert scrub("/usr/bin/cc") == "/usr/bin/cc"


def test_temporary_folder_is_hidden_once(monkeypatch):
    """The name in /tmp/tmpabc begins like the folder's own: once it became TMPTMPabc."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    assert scrub("/tmp/tmpabc/x and /tmp") == "TMP/tmpabc/x and TMP"


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("janes-spark", "ran on HOST: ok, janes-sparkle"),
        ("janes-spark.lan", "ran on HOST: ok, janes-sparkle"),
        ("spark", "ran on janes-spark: ok, janes-sparkle"),
    ],
)
def test_name_of_the_machine_is_hidden_unless_it_is_common(monkeypatch, host, shown):
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert scrub("ran on janes-spark: ok, janes-sparkle") == shown
