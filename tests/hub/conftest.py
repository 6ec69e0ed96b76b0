"""A made-up cache of Hugging Face, and a stand-in of the hub that huggingface_hub is pointed at."""

import random
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from tests.hub.stand_in import point_at, running_hub

REPOSITORY = "openai/gpt-oss-20b"
SHARDS = ("model-00000-of-00001.safetensors", "model-00001-of-00001.safetensors")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; huggingface_hub reads its location from the environment at import."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def hub(cache, tmp_path, monkeypatch):
    """A hub with one repository, whose files have the names of gpt-oss-20b and random content."""
    numbers = random.Random(1)
    with running_hub() as server:
        point_at(server, monkeypatch, tmp_path)
        server.add(
            REPOSITORY,
            {
                "README.md": b"a model",
                "config.json": b'{"model_type": "gpt_oss"}',
                "generation_config.json": b"{}",
                "metal/model.bin": b"not needed",
                SHARDS[0]: numbers.randbytes(200_000),
                SHARDS[1]: numbers.randbytes(50_000),
                "model.safetensors.index.json": b'{"weight_map": {}}',
                "original/model.safetensors": b"not needed",
                "tokenizer.json": numbers.randbytes(20_000),
            },
        )
        yield server


@pytest.fixture
def stored(hub):
    """The repository on the hub."""
    return hub.repositories[REPOSITORY]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    """Neither we nor huggingface_hub pause before trying again."""
    monkeypatch.setattr("firesteel.hub.fetch.PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=lambda seconds: None))
