"""Personal data is removed from every text of a report."""

from pathlib import Path

import pytest

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
