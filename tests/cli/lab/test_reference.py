"""The verb `lab reference`: its file, its exit codes and what it says."""

import pytest

from firesteel.lab.reference import recording
from firesteel.lab.reference.recorded import read_reference
from firesteel.lab.reference.texts import read_prompts, read_texts
from tests.lab.conftest import serving
from tests.lab.toy_server import Toy, answers_of

__all__ = ["serving"]


@pytest.fixture
def record(run, serving, monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "read_texts", lambda encoder, count: read_texts(encoder, 1))
    monkeypatch.setattr(recording, "read_prompts", lambda encoder, count: read_prompts(encoder, 1))

    def call(toy, **environment):
        with serving(answers_of(toy)) as url:
            return run("lab", "reference", "--url", url, "--out", str(tmp_path / "new" / "ref.json"), **environment)

    return call


def test_file_is_written_with_the_name_of_the_model(record, tmp_path):
    result = record(Toy())
    assert result.exit_code == 0, result.output
    reference = read_reference(tmp_path / "new" / "ref.json")
    assert reference.model == "toy" and len(reference.texts) == len(reference.continuations) == 1
    assert "1 texts and 1 continuations" in result.output and "doubtful reference: 0 of 10" in result.output


def test_exit_code_is_3_and_no_file_is_left_if_the_server_lacks_something(record, tmp_path):
    result = record(Toy(lacks="token_ids"))
    assert result.exit_code == 3 and "not recorded: the server returns no token_ids" in result.output
    assert not (tmp_path / "new" / "ref.json").exists()


def test_key_is_that_of_the_reference(record):
    assert "401" in record(Toy(key="k")).output
    assert record(Toy(key="k"), LAB_REFERENCE_API_KEY="k").exit_code == 0


def test_server_that_cannot_be_reached_is_named(run, tmp_path):
    result = run("lab", "reference", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "ref.json"))
    assert result.exit_code == 3 and "cannot be reached" in result.output
