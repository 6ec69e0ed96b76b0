"""Makes tools/ importable and trains one small tokenizer for all tests of Kindling."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory):
    from kindling import tokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(tokenizer.train(documents=2000, vocab_size=2048), directory)
    return directory


@pytest.fixture(scope="session")
def exam():
    from kindling.corpus import exam_items

    return exam_items()
