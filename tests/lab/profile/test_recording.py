"""Profiles of a running server, recorded by its own profiler under load, against a stand-in for vLLM and SGLang."""

import pytest

from firesteel.errors import UserError
from firesteel.lab.profile import recording
from firesteel.lab.profile.recording import RecordingPlan, record_profile
from tests.lab.profile.profiling_server import DECODED, READ, profiling_server


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(recording, "SETTLED_S", 0.02)
    monkeypatch.setattr(recording, "POLL_S", 0.01)


def record(url, **fields):
    plan = {"seconds": 0.1, "reads_prompts": False, "batch": 2, "context": 300, **fields}
    return record_profile(RecordingPlan(url=url, **plan), lambda _: None)


@pytest.mark.parametrize(("reads_prompts", "names"), [(False, DECODED), (True, READ)])
def test_vllm_writes_to_its_own_folder_and_the_trace_with_kernels_is_taken(tmp_path, reads_prompts, names):
    (tmp_path / "earlier.json").write_text("{}")
    with profiling_server(folder=tmp_path) as (url, _):
        made = record(url, folder=tmp_path, reads_prompts=reads_prompts)
    assert made.path.name == "rank0.pt.trace.json.gz" and made.engine == "vllm"
    assert [piece.name for piece in made.slices] == names
    assert [path.name for path in made.others] == ["front.pt.trace.json.gz"]


def test_sglang_is_told_where_to_write():
    with profiling_server(owner="sglang", token_ids=False) as (url, server):
        made = record(url)
    assert server.asked == [{"output_dir": str(made.path.parent), "activities": ["CPU", "GPU"]}]
    assert [piece.name for piece in made.slices] == DECODED


def test_decoding_requests_last_longer_than_the_recording_and_prompts_have_one_token(tmp_path):
    with profiling_server(folder=tmp_path, max_context=2000) as (url, server):
        record(url, folder=tmp_path)
        assert server.tokens[-1] == 2000 - 300 - recording.SPARE_TOKENS
        for path in tmp_path.iterdir():
            path.unlink()
        record(url, folder=tmp_path, reads_prompts=True)
        assert server.tokens[-1] == 1


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("vllm", "--profiler-config"),
        ("llamacpp", "nsys profile --cuda-graph-trace=node"),
        ("firesteel", "firesteel profile --model"),
        ("", "VLLM_TORCH_PROFILER_DIR"),
    ],
)
def test_server_without_a_profiler_is_an_error_that_says_how_to_enable_it(tmp_path, owner, words):
    with profiling_server(owner=owner) as (url, _), pytest.raises(UserError, match="offers no profiler") as caught:
        record(url, folder=tmp_path)
    assert words in str(caught.value)


def test_folder_of_vllms_traces_must_be_named_and_exist(tmp_path):
    with profiling_server(folder=tmp_path) as (url, _):
        with pytest.raises(UserError, match="--traces is missing"):
            record(url)
        with pytest.raises(UserError, match="is not a folder"):
            record(url, folder=tmp_path / "gone")


def test_traces_that_appear_elsewhere_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "WRITE_S", 0.1)
    (tmp_path / "here").mkdir()
    with (
        profiling_server(folder=tmp_path) as (url, _),
        pytest.raises(UserError, match=r"no trace appeared there.*container"),
    ):
        record(url, folder=tmp_path / "here")


def test_context_without_room_to_decode_is_refused(tmp_path):
    with profiling_server(folder=tmp_path, max_context=500) as (url, _), pytest.raises(UserError, match="no room"):
        record(url, folder=tmp_path)


def test_server_that_stops_answering_is_named(tmp_path):
    with profiling_server(folder=tmp_path) as (url, _):
        pass
    with pytest.raises(UserError, match="cannot be reached"):
        record(url, folder=tmp_path)
