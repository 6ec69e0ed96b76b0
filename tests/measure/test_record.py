"""Records: a round trip keeps everything; errors of a damaged file name the field."""

import json
import os
import re
import stat
from dataclasses import dataclass, fields

import pytest

from firesteel.config import Config, resolve
from firesteel.device import find_device
from firesteel.measure import record as module
from firesteel.measure.record import SCHEMA, Record, RecordError

CPU = find_device("cpu")


def make(**changes):
    given = {
        "name": "op linear",
        "unit": "s",
        "samples": [3.0, 1.0, 2.0, 10.0],
        "warmups": 6,
        "parameters": {"batch": 8},
        "kernels": [("linear", "triton, reference")],
        "startup_s": 1.5,
        "seed": 7,
    }
    return Record.now(CPU, Config(), **{**given, **changes})


@pytest.fixture(scope="module")
def record():
    return make()


@pytest.fixture
def content(record):
    return json.loads(json.dumps(record.as_dict()))


def load(content, folder):
    path = folder / "record.json"
    path.write_text(json.dumps(content))
    return Record.load(path)


def test_round_trip_keeps_everything(record, tmp_path):
    path = record.save(tmp_path / "deep" / "records")
    assert Record.load(path) == record
    assert os.listdir(path.parent) == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_file_holds_samples_median_spread_and_hashes(record, tmp_path):
    content = json.loads(record.save(tmp_path).read_text())
    assert content["schema"] == SCHEMA and content["samples"] == [3.0, 1.0, 2.0, 10.0]
    assert content["median"] == 2.5 and content["spread"] == 3.0
    assert content["kernels"] == {"linear": "triton, reference"} and content["parameters"] == {"batch": 8}
    assert content["config"]["batch"]["page_size"] == 64 and len(content["config_hash"]) == 64
    assert (content["warmups"], content["startup_s"], content["seed"]) == (6, 1.5, 7)
    assert content["peak_memory_bytes"] > 0 and content["surroundings"]["device"] == "CPU"


def test_file_name_is_readable_stable_and_unique(record, tmp_path):
    path = record.save(tmp_path)
    assert re.fullmatch(r"op-linear--cpu--\d{4}-\d\d-\d\dt\d{6}z--[0-9a-f]{8}\.json", path.name)
    assert record.save(tmp_path) == path and len(os.listdir(tmp_path)) == 1
    assert make(samples=[4.0]).file_name != record.file_name


def test_config_hash_follows_the_config(record):
    other = Record.now(
        CPU, resolve({"page_size": 32}, environ={}).config, name="x", unit="s", samples=[1.0], warmups=0
    )
    assert other.config_hash != record.config_hash == make(name="y").config_hash


def test_secret_settings_are_hidden(monkeypatch):
    @dataclass(frozen=True)
    class Server:
        api_key: str = "abc"
        admin_key: str = ""
        port: int = 80

    @dataclass(frozen=True)
    class Whole:
        server: Server

    shown = module._shown_config(Whole(Server()))
    assert shown == {"server": {"api_key": "(hidden)", "admin_key": "", "port": 80}}


@pytest.mark.parametrize("name", [*(field.name for field in fields(Record)), "median", "spread", "config_hash"])
def test_missing_field_is_named(content, name, tmp_path):
    del content[name]
    with pytest.raises(RecordError, match=f"missing field {name}$"):
        load(content, tmp_path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "colour"),
        (("surroundings",), "surroundings.colour"),
        (("surroundings", "gpu"), "surroundings.gpu.colour"),
    ],
)
def test_unknown_field_is_named(content, path, name, tmp_path):
    inner = content
    for key in path:
        inner = inner[key]
    inner["colour"] = "red"
    with pytest.raises(RecordError, match=f"unknown field {name}$"):
        load(content, tmp_path)


def test_missing_nested_field_is_named(content, tmp_path):
    del content["surroundings"]["gpu"]["power"]
    with pytest.raises(RecordError, match=r"missing field surroundings\.gpu\.power"):
        load(content, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", [1.0, "2"]),
        ("samples", [True]),
        ("samples", 3.0),
        ("warmups", 1.5),
        ("warmups", True),
        ("warmups", None),
        ("name", 3),
        ("seed", "7"),
        ("kernels", {"linear": 3}),
        ("kernels", []),
        ("surroundings", None),
        ("startup_s", "soon"),
        ("config", None),
    ],
)
def test_value_of_the_wrong_type_is_named(content, name, value, tmp_path):
    content[name] = value
    with pytest.raises(RecordError, match=f"{name} (cannot be|must be an object)"):
        load(content, tmp_path)


@pytest.mark.parametrize("name", ["startup_s", "seed", "peak_memory_bytes"])
def test_optional_values_may_be_null(content, name, tmp_path):
    content[name] = None
    assert getattr(load(content, tmp_path), name) is None


@pytest.mark.parametrize(("name", "value"), [("median", 2.4), ("spread", 0.0), ("config_hash", "0" * 64)])
def test_derived_value_that_disagrees_is_refused(content, name, value, tmp_path):
    content[name] = value
    with pytest.raises(RecordError, match=f"{name} is .*, but the rest of the record makes it"):
        load(content, tmp_path)


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, None, "1"])
def test_other_schema_is_refused(content, schema, tmp_path):
    content["schema"] = schema
    with pytest.raises(RecordError, match=f"schema is {schema!r}, this firesteel reads {SCHEMA}"):
        load(content, tmp_path)


@pytest.mark.parametrize("samples", [[], [float("nan")], [1.0, float("inf")]])
def test_empty_or_infinite_samples_are_refused(samples):
    with pytest.raises(RecordError, match="op linear: samples must be finite numbers"):
        make(samples=samples)


def test_unreadable_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(RecordError, match=f"cannot read the record {path}"):
        Record.load(path)
    path.write_text("{")
    with pytest.raises(RecordError, match=f"{path} is not valid JSON"):
        Record.load(path)
    path.write_text("[1]")
    with pytest.raises(RecordError, match=f"{path}: holds list, not an object"):
        Record.load(path)


def test_crash_while_writing_leaves_no_file(record, tmp_path, monkeypatch):
    def crash(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        record.save(tmp_path)
    assert os.listdir(tmp_path) == []
