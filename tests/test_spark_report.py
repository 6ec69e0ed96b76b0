"""The report: every part, also those that fail, in one file without anybody's paths."""

import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from firesteel import spark_report
from firesteel.device import find_device
from firesteel.errors import UserError
from firesteel.measure.record import Record
from firesteel.spark_report import list_parts, make_report, proof_target, scrub

CPU = find_device("cpu")
# Stands for firesteel: verify dies, bench leaves a record.
STUB = """
import sys
from pathlib import Path
verb = sys.argv[1]
if verb == "verify":
    sys.exit(f"Traceback in {Path.home()}/secret/verify.py")
if verb == "bench":
    from firesteel.config import resolve
    from firesteel.device import find_device
    from firesteel.measure.record import Record
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    config = resolve({"model": str(Path.home() / "models")}).config
    Record.now(
        find_device("cpu"), config, name="op linear", unit="s", samples=[1.0], warmups=1, parameters={"m": 1},
    ).save(out)
    (out / "ops.html").write_text("<html>")
    print('[{"bound": "read"}, {"why": "refused"}]')
if verb == "doctor":
    print('[{"status": "ok", "found": "%s/lib"}, {"status": "note"}]' % Path.home())
if verb == "prove":
    print('[{"verdict": "bf16"}]')
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(parts, files of the zip, what was told) of a run against the stub."""
    told, out = [], tmp_path_factory.mktemp("report") / "report.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(spark_report.__file__).parents[1]))
        parts = make_report(CPU, out, quick=True, tell=told.append, command=(sys.executable, "-c", STUB))
    with zipfile.ZipFile(out) as packed:
        files = {name: packed.read(name).decode() for name in packed.namelist()}
    return parts, files, told


def test_a_part_that_dies_is_reported_and_the_rest_is_kept(report):
    parts, files, told = report
    assert [(part.name, part.exit_code) for part in parts] == [
        ("doctor", 0), ("verify", 1), ("prove", 0), ("bench", 0),
    ]  # fmt: skip
    content = json.loads(files["report.json"])
    verify = content["parts"][1]
    assert verify["result"] is None and "Traceback in ~/secret/verify.py" in verify["last_words"]
    assert content["parts"][2]["result"] == [{"verdict": "bf16"}]
    assert any("2 of 4" in line for line in told) and any("FAILED (exit code 1)" in line for line in told)


def test_the_summary_is_for_people(report):
    text = report[1]["summary.md"]
    assert "no GPU was found" in text and "- doctor: done" in text and "1 note, 1 ok" in text
    assert "- verify: FAILED (exit code 1)" in text and "## verify (exit code 1)" in text
    assert "1 not measured, 1 read" in text


def test_records_and_plots_come_along_and_load(report, tmp_path):
    _, files, _ = report
    (name,) = [name for name in files if name.startswith("records/")]
    path = tmp_path / "record.json"
    path.write_text(files[name])
    record = Record.load(path)
    assert record.file_name == name.removeprefix("records/") and record.config["model"]["model"] == "~/models"
    assert files["ops.html"] == "<html>"


def test_no_home_folder_is_in_any_file(report):
    for text in report[1].values():
        assert str(Path.home()) not in text


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


def test_quick_asks_for_less_and_plots_need_their_libraries(monkeypatch, tmp_path):
    long = {part.name: part.arguments for part in list_parts(CPU, tmp_path, quick=False)}
    quick = {part.name: part.arguments for part in list_parts(CPU, tmp_path, quick=True)}
    assert "--quick" in quick["verify"] and "--quick" not in long["verify"]
    assert "--m" in quick["bench"] and "--m" not in long["bench"]
    assert "--no-plot" not in long["bench"]
    monkeypatch.setattr("firesteel.plot.LIBRARIES", {"gone": "gone"})
    (bench,) = [part.arguments for part in list_parts(CPU, tmp_path, quick=True) if part.name == "bench"]
    assert "--no-plot" in bench


def test_proofs_are_for_this_gpu_or_for_gb10():
    assert proof_target(CPU) == "sm_121a"
    assert proof_target(replace(CPU, capability=(9, 0))) == "sm_90a"
    assert proof_target(replace(CPU, capability=(7, 5))) == "sm_121a"


def test_a_part_that_hangs_is_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(spark_report, "PATIENCE_S", 0.5)
    parts = make_report(
        CPU,
        tmp_path / "r.zip",
        tell=lambda text: None,
        command=(sys.executable, "-c", "import time; time.sleep(9)"),
    )
    assert {part.exit_code for part in parts} == {124} and parts[0].last_words == "stopped after 0.5 s"


def test_a_missing_folder_is_told_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        make_report(CPU, tmp_path / "gone" / "r.zip", command=(sys.executable, "-c", "raise SystemExit(3)"))


def test_a_folder_or_a_file_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    for out in (tmp_path, Path("/proc/x.zip")):
        with pytest.raises(UserError, match=f"cannot write {out}: .*; --out names the file to write"):
            make_report(CPU, out, command=(sys.executable, "-c", "raise SystemExit(3)"))


def test_an_interrupt_keeps_the_parts_that_are_done(monkeypatch, tmp_path):
    told, run_part = [], spark_report._run

    def run(part, start):
        if part.name == "prove":
            raise KeyboardInterrupt
        return run_part(part, start)

    monkeypatch.setattr(spark_report, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        make_report(CPU, tmp_path / "r.zip", tell=told.append, command=(sys.executable, "-c", "print('[]')"))
    with zipfile.ZipFile(tmp_path / "r.zip") as packed:
        content = json.loads(packed.read("report.json"))
    assert [part["name"] for part in content["parts"]] == ["doctor", "verify"]
    assert told[-1] == f"ended early: 2 of 4 parts are in {tmp_path / 'r.zip'}"


def unknown():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", [lambda: Path("/"), unknown])
def test_a_home_of_nothing_but_a_slash_hides_nothing(monkeypatch, home):
    monkeypatch.setattr(Path, "home", home)
    assert scrub("/opt/x/home") == "/opt/x/home" and scrub("/home/jane/x") == "~/x"


@pytest.mark.slow
def test_the_real_parts_run_on_this_machine(tmp_path):
    told = []
    parts = make_report(find_device(), tmp_path / "r.zip", quick=True, tell=told.append)
    assert [part.exit_code for part in parts] == [0, 0, 0, 0], [part.last_words for part in parts]
    assert all(part.result for part in parts)
