"""Trains one small tokenizer for all tests of Kindling."""

import pytest


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
