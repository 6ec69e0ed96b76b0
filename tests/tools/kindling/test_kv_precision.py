"""Records of the formats of keys and values: old ones stay until new ones are complete."""

import pytest

from firesteel.engine.cache.kv_scales import read_scales
from firesteel.exam import TEXT, read_items
from firesteel.measure.record import Record
from kindling import kv_precision

SOME = read_items(TEXT)[:1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an old record and old scales; one document is measured and calibrated on."""
    monkeypatch.setattr(kv_precision, "FOLDER", tmp_path)
    monkeypatch.setattr(kv_precision, "SCALES", tmp_path / "scales.json")
    monkeypatch.setattr(kv_precision, "read_items", lambda path: SOME)
    monkeypatch.setattr(kv_precision, "read_prompts", lambda llm, text: [[1, 2, 3]])
    for name in ("scales.json", "old.json"):
        (tmp_path / name).write_text("old")
    return tmp_path


def test_records_and_scales_replace_the_old_ones(folder):
    kv_precision.main()
    assert not (folder / "old.json").exists() and read_scales(folder / "scales.json", 8).keys
    records = [Record.load(path) for path in folder.glob("kindling*.json")]
    scales = {record.parameters["stored"]: record.config["cache"]["kv_scales"] for record in records}
    assert scales == dict.fromkeys(kv_precision.KNOBS, "") | {"fp8, calibrated scales": str(folder / "scales.json")}


def test_measurement_that_fails_keeps_the_old_ones(folder, monkeypatch):
    def fail(llm, documents):
        raise KeyboardInterrupt

    monkeypatch.setattr(kv_precision, "measure_perplexity", fail)
    with pytest.raises(KeyboardInterrupt):
        kv_precision.main()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"scales.json": "old", "old.json": "old"}
