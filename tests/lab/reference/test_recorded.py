"""The file of a recorded reference, and the answers that are read from it."""

import json

import pytest

from firesteel.atomic import write_atomically
from firesteel.errors import UserError
from firesteel.lab.reference.recorded import (
    RecordedContinuation,
    RecordedReference,
    RecordedText,
    key_of,
    read_reference,
    with_hashes,
)
from firesteel.lab.reference.reference import ReferenceFailed


def reference_of(model="gpt-oss-120b", **fields):
    continuations = tuple(
        RecordedContinuation(
            prompt=(number, 2),
            token_ids=(7, 8, 9),
            text="abc",
            logprobs=(-0.1, -0.2, -0.3),
            margins=(1.0, None, 0.25),
        )
        for number in range(6)
    )
    return RecordedReference(
        **{
            "model": model,
            "checkpoint": "",
            "time_utc": "2026-08-01T12:00:00Z",
            "firesteel": "1.0",
            "float32": False,
            "coherence": "passed",
            "probe_ids": (1, 2, 3),
            "prompts_sha256": "",
            "texts": (RecordedText(token_ids=(4, 5, 6), logprobs=(-1.5, -2.0)),),
            "continuations": continuations,
            **fields,
        }
    )


@pytest.fixture
def written(tmp_path):
    """written(change): a file whose content a function changes after it was hashed."""

    def write(change=lambda content: None, **fields):
        content = with_hashes(reference_of(**fields))
        change(content)
        path = tmp_path / "ref.json"
        write_atomically(path, content)
        return path

    return write


def test_file_gives_back_what_was_recorded(written):
    reference = read_reference(written(engine_version="0.32.0"))
    assert reference.logprobs([4, 5, 6]) == [-1.5, -2.0] and not reference.is_float32()
    assert reference.continue_greedily([[3, 2]], 2) == [[7, 8]]
    assert reference.margin([1, 2]) == 1.0 and reference.margin([1, 2, 7, 8]) == 0.25
    assert reference.margin([1, 2, 7]) is None and reference.margin([1, 2, 8]) is None
    assert reference.name == "gpt-oss-120b as recorded on 2026-08-01T12:00:00Z, 0.32.0"
    assert len(reference.prompts_sha256) == 64


def test_fewer_prompts_are_spread_over_all(written):
    reference = read_reference(written())
    assert reference.choose_prompts(3) == [[0, 2], [2, 2], [4, 2]] and len(reference.choose_prompts(24)) == 6
    assert reference.choose_texts(None) == [[4, 5, 6]]


def test_tokens_that_were_not_recorded_are_a_failure_of_the_reference(written):
    with pytest.raises(ReferenceFailed, match="does not have a text of these 2 tokens"):
        read_reference(written()).logprobs([4, 5])


def test_name_tells_that_the_recorded_server_was_not_coherent():
    assert "not coherent" in reference_of(coherence="failed").name and "coherent" not in reference_of().name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["texts"][0].update(logprobs=[-1.4, -2.0]), "changed or damaged"),
        (lambda content: content.update(format=0), "has format 0, this version of firesteel reads 1"),
        (lambda content: content.pop("sha256"), "is not a recorded reference"),
        (lambda content: content.pop("continuations"), "is not a recorded reference"),
    ],
)
def test_damaged_old_or_foreign_file_is_refused_with_the_cure(written, change, words):
    with pytest.raises(UserError, match=words) as caught:
        read_reference(written(change))
    assert "record it again with firesteel lab reference" in str(caught.value)


def test_incomplete_reference_is_refused(written):
    with pytest.raises(UserError, match="incomplete"):
        read_reference(written(texts=()))
    with pytest.raises(UserError, match="incomplete"):
        read_reference(written(texts=(RecordedText(token_ids=(4, 5, 6), logprobs=(-1.5,)),)))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"levels": []}'])
def test_file_that_is_no_reference_is_refused(tmp_path, text):
    path = tmp_path / "ref.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"ref\.json"):
        read_reference(path)


def test_file_that_was_cut_off_is_refused(written):
    path = written()
    path.write_text(path.read_text()[:-200])
    with pytest.raises(UserError, match=r"ref\.json"):
        read_reference(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.json"):
        read_reference(tmp_path / "nowhere.json")


def test_file_holds_the_metadata(written):
    content = json.loads(written().read_text())
    assert {"model", "engine_version", "time_utc", "firesteel", "prompts_sha256", "sha256"} <= set(content)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "gpt-oss-120b"),
        ("/models/models--openai--gpt-oss-20b/snapshots/ab12/", "gpt-oss-20b"),
        ("GPT-OSS-20B", "gpt-oss-20b"),
        ("kindling", "kindling"),
        ("/models/Mine/", "mine"),
    ],
)
def test_names_of_one_model_have_one_key(name, key):
    assert key_of(name) == key
