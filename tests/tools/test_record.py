"""Commands of the records: firesteel accepts them, and they replace only their own records."""

import re

import pytest
import typer

import record
from firesteel.cli import app
from tables.records import RECORDS, read


@pytest.mark.parametrize("command", [command for commands in record.COMMANDS.values() for command in commands])
def test_commands_are_accepted_by_firesteel(command):
    group, verb, *flags = command.split()
    known = typer.main.get_command(app).commands[group].commands[verb]
    context = known.make_context(verb, [*flags, "--out", "x"])
    assert str(context.params["out"]) == "x"


def what_is_measured(command):
    """Returns the words of a command in any order, without folders."""
    return frozenset(re.sub(r" --(out|kernel-cache-dir) \S+", "", command).split())


@pytest.mark.parametrize("name", [name for name in record.COMMANDS if name not in record.UNMEASURED])
def test_records_of_a_folder_come_from_its_commands(name):
    records = read(RECORDS / name, "*.json")
    said = {what_is_measured(" ".join(measured.surroundings.command[1:])) for measured in records}
    assert said == set(map(what_is_measured, record.COMMANDS[name]))
    assert {measured.surroundings.device for measured in records} == {record.GPU}


def test_another_gpu_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(record, "measure", pytest.fail)
    monkeypatch.setattr(record.sys, "argv", ["record.py"])
    with pytest.raises(SystemExit, match="of an NVIDIA H200, this is CPU"):
        record.main()


def test_records_are_replaced_together(tmp_path):
    made, kept = tmp_path / "made", tmp_path / "records" / "kept"
    for folder, file in ((made, "new.json"), (made, "decode.html"), (kept, "old.json")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("{}")
    record.replace_records(made, kept)
    assert [path.name for path in kept.iterdir()] == ["new.json"]


def test_command_that_fails_keeps_the_records(monkeypatch, tmp_path):
    kept = tmp_path / "records" / "some" / "old.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    with pytest.raises(record.subprocess.CalledProcessError):
        record.measure("some", ["bench decode --no-such-flag"], tmp_path / "records")
    assert kept.exists()


@pytest.fixture
def measured(monkeypatch):
    """Names and destinations of the folders that the program would measure on an H200."""
    done = []
    monkeypatch.setattr(record, "check_gpu", lambda name: None)
    monkeypatch.setattr(record, "measure", lambda name, commands, records: done.append((name, records)))
    return done


def run_record(monkeypatch, *words):
    monkeypatch.setattr(record.sys, "argv", ["record.py", *map(str, words)])
    record.main()


def test_one_folder_is_measured_alone_and_kept_elsewhere(monkeypatch, tmp_path, measured):
    """A machine that hands back one folder only gets what is done, even if a later command is killed."""
    monkeypatch.setattr(record, "renew_pages", pytest.fail)
    run_record(monkeypatch, "--into", tmp_path, "h200-loop", "h200-ops")
    assert measured == [("h200-loop", tmp_path), ("h200-ops", tmp_path)]


def test_missing_package_for_charts_is_named_after_the_records_are_complete(monkeypatch, measured):
    monkeypatch.setitem(record.sys.modules, "pages", None)
    with pytest.raises(SystemExit, match=r"records are complete, .* run tools/pages\.py"):
        run_record(monkeypatch, "h200-loop")
    assert measured == [("h200-loop", RECORDS)]


def test_folders_without_records_are_those_that_are_named():
    assert {name for name in record.COMMANDS if not (RECORDS / name).exists()} == set(record.UNMEASURED)
