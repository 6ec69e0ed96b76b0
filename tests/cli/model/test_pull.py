"""The verb pull, with the real huggingface_hub against a stand-in of the hub."""

import collections
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import pytest

from firesteel.cli.model import transfer
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from tests.hub.stand_in import point_at, running_hub

Usage = collections.namedtuple("Usage", ["total", "used", "free"])
REPOSITORY = "openai/gpt-oss-20b"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(checkpoint, tmp_path, monkeypatch):
    """A hub with a small checkpoint under the name of a large one, and an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    with running_hub() as server:
        point_at(server, monkeypatch, tmp_path)
        files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
        server.add(REPOSITORY, {**files, "original/model.safetensors": b"not needed"}, revisions=("main", "v1"))
        yield server


def told(result):
    """Returns what was said on stderr, on one line."""
    return " ".join(result.stderr.split())


def test_pull_fetches_verifies_and_prints_the_folder_and_how_to_serve_it(run, hub, checkpoint):
    result = run("pull", "gpt-oss-20b")
    assert result.exit_code == 0, result.output
    folder = Path(result.stdout.strip())
    assert folder == find_checkpoint("gpt-oss-20b")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in checkpoint.iterdir()
    }
    assert "fetching openai/gpt-oss-20b (main, aaaaaaa): 4 files" in told(result)
    assert "and verified its checksums" in told(result)
    assert told(result).endswith("serve it: firesteel serve gpt-oss-20b")


def test_complete_model_is_said_to_be_complete_without_fetching(run, hub):
    run("pull", "gpt-oss-20b")
    hub.asked.clear()
    result = run("pull", REPOSITORY)
    assert result.exit_code == 0 and not hub.asked
    assert ", complete in" in told(result) and "firesteel serve gpt-oss-20b" in told(result)
    assert result.stdout.strip() == str(find_checkpoint("gpt-oss-20b"))


def test_other_revision_is_served_by_its_folder(run, hub):
    result = run("pull", "gpt-oss-20b", "--revision", "v1")
    assert result.exit_code == 0, result.output
    folder = result.stdout.strip()
    assert told(result).endswith(f"serve it: firesteel serve {folder}")
    assert hub.listed[-1][0].endswith("/revision/v1") and find_checkpoint(folder) == Path(folder)


def test_dry_run_shows_the_files_and_writes_nothing(run, hub, tmp_path, rows_of):
    result = run("pull", "gpt-oss-20b", "--dry-run")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in rows_of(result.stdout)] == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        WEIGHTS,
    ]
    assert {row[-1] for row in rows_of(result.stdout)} == {"to be fetched"}
    assert not (tmp_path / "hub").exists()


def test_dry_run_says_what_is_there_already(run, hub, rows_of):
    content = hub.repositories[REPOSITORY].files[WEIGHTS]
    run("pull", "gpt-oss-20b")
    link = find_checkpoint("gpt-oss-20b") / WEIGHTS
    blob = link.resolve()
    blob.unlink()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(content[:1000])
    states = {row[0]: row[-1] for row in rows_of(run("pull", "gpt-oss-20b", "--dry-run").stdout)}
    assert states["config.json"] == "in the cache" and states[WEIGHTS] == "to be resumed"


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_disk_that_is_too_small_is_refused_before_the_first_file(run, hub, tmp_path, monkeypatch, flags):
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, 1000))
    result = run("pull", "gpt-oss-20b", *flags)
    assert isinstance(result.exception, UserError) and "set HF_HOME to a folder on a larger" in str(
        result.exception
    )
    assert not (tmp_path / "hub").exists() and {asked.name for asked in hub.asked} == {"config.json"}


def test_file_that_is_too_large_for_http_is_refused_before_the_first_file(run, hub, monkeypatch):
    monkeypatch.setattr("firesteel.hub.plan.MOST_HTTP_BYTES", 1000)
    result = run("pull", "gpt-oss-20b")
    assert "over HTTP: choose a repository with smaller shards" in str(result.exception)
    assert {asked.name for asked in hub.asked} == {"config.json"}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (b'{"model_type": "llama"}', "model_type is 'llama', not 'gpt_oss'"),
        (b'{"model_type": "gpt_oss"}', "the experts are not MXFP4"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_model_that_could_not_run_is_not_fetched(run, hub, config, complaint, flags):
    hub.repositories[REPOSITORY].files["config.json"] = config
    result = run("pull", "gpt-oss-20b", *flags)
    assert isinstance(result.exception, UserError) and complaint in str(result.exception)
    assert "openai/gpt-oss-20b is not fetched" in str(result.exception)
    assert {asked.name for asked in hub.asked} == {"config.json"}


def test_repository_whose_weights_are_incomplete_is_an_error(run, hub):
    """Its checksums are right, but loading would fail."""
    files = hub.repositories[REPOSITORY].files
    files[WEIGHTS] = files[WEIGHTS][:-10]
    result = run("pull", "gpt-oss-20b")
    assert isinstance(result.exception, UserError) and "model.safetensors is truncated" in str(result.exception)
    assert "serve it" not in told(result)


def test_new_tag_of_a_complete_model_is_recorded_but_not_by_a_dry_run(run, hub, tmp_path):
    run("pull", "gpt-oss-20b")
    refs = tmp_path / "hub" / "models--openai--gpt-oss-20b" / "refs"
    assert run("pull", "gpt-oss-20b", "--revision", "v1", "--dry-run").exit_code == 0
    assert [path.name for path in refs.iterdir()] == ["main"]
    assert run("pull", "gpt-oss-20b", "--revision", "v1").exit_code == 0
    assert sorted(path.name for path in refs.iterdir()) == ["main", "v1"]


@pytest.mark.parametrize("name", ["./model", "/model", "~/model"])
def test_path_is_not_a_name_on_the_hub(run, hub, name):
    assert f"{name} is a path: give a name on the hub" in str(run("pull", name).exception) and not hub.listed


def test_built_in_model_needs_no_pull(run, hub):
    result = run("pull", "kindling")
    assert result.exit_code == 0 and "kindling is built in" in told(result) and not hub.listed


def test_wrong_name_has_a_suggestion(run, hub):
    result = run("pull", "gpt-oss:20b")
    assert str(result.exception).endswith("did you mean gpt-oss-20b?") and not hub.listed


def test_without_a_network_a_complete_model_is_good_with_a_warning(run, hub):
    run("pull", "gpt-oss-20b")
    hub.listing_status = 503
    result = run("pull", "gpt-oss-20b")
    assert result.exit_code == 0, result.output
    assert "warning: http" in told(result) and "whether the hub has a newer one is unknown" in told(result)
    assert result.stdout.strip() == str(find_checkpoint("gpt-oss-20b"))


@pytest.mark.parametrize("is_started", [False, True])
def test_without_a_network_an_absent_or_incomplete_model_is_an_error(run, hub, is_started):
    if is_started:
        run("pull", "gpt-oss-20b")
        (find_checkpoint("gpt-oss-20b") / WEIGHTS).unlink()
    hub.listing_status = 503
    result = run("pull", "gpt-oss-20b")
    assert isinstance(result.exception, UserError) and "failed (HTTP 503)" in str(result.exception)


def test_interrupt_exits_with_130_and_says_how_to_resume(run, hub, monkeypatch):
    @contextmanager
    def interrupting(label, held_bytes):
        def report(done, total):
            if done:
                raise KeyboardInterrupt

        yield report

    hub.stalls[WEIGHTS] = 100_000
    monkeypatch.setattr("firesteel.hub.fetch.STOP_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "transfer_progress", interrupting)
        result = run("pull", "gpt-oss-20b", "--revision", "v1")
    assert result.exit_code == 130
    assert "are kept; resume with `firesteel pull gpt-oss-20b --revision v1`" in told(result)
    hub.stalls.clear()
    hub.resume.set()
    assert run("pull", "gpt-oss-20b", "--revision", "v1").exit_code == 0


@pytest.mark.slow
def test_program_honours_the_variables_of_the_hub_and_stops_at_ctrl_c(run, hub, tmp_path, monkeypatch):
    """The mirror's address, the token and the cache come from the environment; the cache serves the next pull."""
    hub.token, hub.stalls[WEIGHTS] = "hf_secret", 100_000
    variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "firesteel", "pull", "gpt-oss-20b"]
    with subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True) as program:
        while len(list(tmp_path.glob("hub/models--*/snapshots/*/*"))) < 3:
            assert program.poll() is None, program.stderr.read()
            hub.resume.wait(0.02)
        program.send_signal(signal.SIGINT)
        said = " ".join(program.stderr.read().split())
    assert program.returncode == 130 and "Traceback" not in said
    assert "are kept; resume with `firesteel pull gpt-oss-20b`" in said
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.asked.clear()
    hub.stalls.clear()
    hub.resume.set()
    assert run("pull", "gpt-oss-20b").exit_code == 0
    assert {asked.name for asked in hub.asked} == {WEIGHTS}
