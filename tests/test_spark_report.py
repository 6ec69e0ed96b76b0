"""The report: every part, also those that fail, in one file without home folders."""

import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from firesteel import spark_report
from firesteel.cli import app
from firesteel.device import GIB, find_device
from firesteel.errors import UserError
from firesteel.measure.record import Record
from firesteel.spark_report import list_parts, make_report, proof_target, scrub

CPU = find_device("cpu")
GB10 = replace(CPU, name="GB10", capability=(12, 1), memory_bytes=120 * GIB)
# A fake firesteel: verify dies, bench leaves a record.
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
    """(parts, files of the zip, printed lines) of a run against the stub."""
    told, out = [], tmp_path_factory.mktemp("report") / "report.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(spark_report.__file__).parents[1]))
        parts = make_report(CPU, out, quick=True, tell=told.append, command=(sys.executable, "-c", STUB))
    with zipfile.ZipFile(out) as packed:
        files = {name: packed.read(name).decode() for name in packed.namelist()}
    return parts, files, told


def test_part_that_dies_is_reported_and_the_rest_is_kept(report):
    parts, files, told = report
    assert [(part.name, part.exit_code) for part in parts] == [
        ("doctor", 0),
        ("verify", 1),
        ("prove", 0),
        ("bench-bf16", 0),
    ]
    content = json.loads(files["report.json"])
    verify = content["parts"][1]
    assert verify["result"] is None and "Traceback in ~/secret/verify.py" in verify["last_words"]
    assert content["parts"][2]["result"] == [{"verdict": "bf16"}]
    assert any("2 of 4" in line for line in told) and any("FAILED (exit code 1)" in line for line in told)


def test_summary_lists_the_parts_in_words(report):
    text = report[1]["summary.md"]
    assert "no GPU was found" in text and "- doctor: done" in text and "1 note, 1 ok" in text
    assert "- verify: FAILED (exit code 1)" in text and "## verify (exit code 1)" in text
    assert "1 not measured, 1 read" in text


def test_records_and_plots_are_included_and_load(report, tmp_path):
    _, files, _ = report
    (name,) = [name for name in files if name.startswith("records/")]
    path = tmp_path / "record.json"
    path.write_text(files[name])
    record = Record.load(path)
    assert record.file_name == name.removeprefix("records/") and record.config["model"]["model"] == "~/models"
    assert files["bench-bf16-ops.html"] == "<html>"


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


def test_quick_runs_less_and_plots_need_their_libraries(monkeypatch, tmp_path):
    long = {part.name: part.arguments for part in list_parts(CPU, tmp_path, quick=False)}
    quick = {part.name: part.arguments for part in list_parts(CPU, tmp_path, quick=True)}
    assert "--quick" in quick["verify"] and "--quick" not in long["verify"]
    assert "--m" in quick["bench-bf16"] and "--m" not in long["bench-bf16"]
    assert "--no-plot" not in long["bench-bf16"]
    monkeypatch.setattr("firesteel.plot.LIBRARIES", {"gone": "gone"})
    benches = [part for part in list_parts(GB10, tmp_path, quick=True) if part.name.startswith(("bench", "decode"))]
    assert len(benches) == 5 and all("--no-plot" in part.arguments for part in benches)


def flag(arguments, name):
    return arguments[arguments.index(name) + 1]


def test_report_of_a_gpu_times_every_activation_and_whole_steps(tmp_path):
    """Once only bf16 activations were timed and no steps: nothing that is special to GB10."""
    parts = {part.name: part.arguments for part in list_parts(GB10, tmp_path, quick=False)}
    ops = [arguments for arguments in parts.values() if arguments[:2] == ("bench", "ops")]
    assert [flag(arguments, "--activation") for arguments in ops] == ["bf16", "mxfp8", "mxfp4"]
    decodes = [arguments for arguments in parts.values() if arguments[:2] == ("bench", "decode")]
    assert [(flag(command, "--synthetic"), "--mxfp4-layers" in command) for command in decodes] == [
        ("gpt-oss-20b", False),
        ("gpt-oss-20b", True),
        ("gpt-oss-120b", False),
        ("gpt-oss-120b", True),
    ]
    assert {flag(command, "--mxfp4-layers") for command in decodes if "--mxfp4-layers" in command} == {
        "qkv,o,lm_head"
    }
    folders = [flag(arguments, "--out") for arguments in (*ops, *decodes)]
    assert len(set(folders)) == len(folders)  # a plot would overwrite another's


@pytest.mark.parametrize(
    ("device", "quick", "left_out"),
    [
        (GB10, False, {}),
        (GB10, True, {"gpt-oss-120b": "--quick times the smaller model only"}),
        (replace(GB10, memory_bytes=24 * GIB), False, {"gpt-oss-120b": "needs 80 GiB, GB10 has 24"}),
        (CPU, False, dict.fromkeys(("gpt-oss-20b", "gpt-oss-120b"), "steps are timed on a GPU only")),
    ],
)
def test_models_whose_steps_are_not_timed_are_named(device, quick, left_out, tmp_path):
    parts = [part.name for part in list_parts(device, tmp_path, quick=quick)]
    text = spark_report.summarise(device, [], quick=quick)
    for model in ("gpt-oss-20b", "gpt-oss-120b"):
        assert (f"decode-{model}" in parts) == (model not in left_out)
        assert (f"- decode-{model}: left out" in text) == (model in left_out)
    assert all(f"- decode-{model}: left out: {why}\n" in text for model, why in left_out.items())


@pytest.mark.parametrize("device", [CPU, GB10])
def test_every_bench_is_a_valid_command(device, tmp_path):
    """An unknown flag would fail the part on the very machine that the report is for."""
    for part in list_parts(device, tmp_path, quick=True) + list_parts(device, tmp_path, quick=False):
        command, words = get_command(app), list(part.arguments)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(part.name, words)


def test_speeds_of_steps_are_in_the_summary():
    rows = [{"batch": 1, "context": 2048, "tok_s": 61.25}]
    part = spark_report.PartReport(
        name="decode-gpt-oss-20b", command="", exit_code=0, seconds=9.0, result=rows, last_words=""
    )
    text = spark_report.summarise(GB10, [part], quick=False)
    assert "- decode-gpt-oss-20b: done, 9 s; batch 1 at 2048 tokens: 61.2 tok/s" in text


def test_proofs_are_for_this_gpu_or_for_gb10():
    assert proof_target(CPU) == "sm_121a"
    assert proof_target(replace(CPU, capability=(9, 0))) == "sm_90a"
    assert proof_target(replace(CPU, capability=(7, 5))) == "sm_121a"


def test_part_that_hangs_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(spark_report, "PATIENCE_S", 0.5)
    parts = make_report(
        CPU,
        tmp_path / "r.zip",
        tell=lambda text: None,
        command=(sys.executable, "-c", "import time; time.sleep(9)"),
    )
    assert {part.exit_code for part in parts} == {124} and parts[0].last_words == "stopped after 0.5 s"


def test_missing_folder_is_an_error_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        make_report(CPU, tmp_path / "gone" / "r.zip", command=(sys.executable, "-c", "raise SystemExit(3)"))


def test_unwritable_file_is_an_error_before_anything_runs(tmp_path):
    for out in (tmp_path, Path("/proc/x.zip")):
        with pytest.raises(UserError, match=f"cannot write {out}: .*; choose another file with --out"):
            make_report(CPU, out, command=(sys.executable, "-c", "raise SystemExit(3)"))


def test_interrupt_keeps_the_finished_parts(monkeypatch, tmp_path):
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
def test_home_that_is_the_root_folder_hides_nothing(monkeypatch, home):
    monkeypatch.setattr(Path, "home", home)
    assert scrub("/opt/x/home") == "/opt/x/home" and scrub("/home/jane/x") == "~/x"


@pytest.mark.slow
def test_real_parts_run_on_this_machine(tmp_path):
    told = []
    parts = make_report(find_device(), tmp_path / "r.zip", quick=True, tell=told.append)
    assert not any(part.exit_code for part in parts), [part.last_words for part in parts]
    assert all(part.result for part in parts)
