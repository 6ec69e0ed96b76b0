"""Names of files and repositories of the public models."""

import pytest

from firesteel.lab.bench.public_models import find_public_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("/models/gpt-oss-20b-mxfp4-00001-of-00002.gguf", "gpt-oss-20b"),
        ("ggml-org/gpt-oss-120b-GGUF", "gpt-oss-120b"),
        ("openai_gpt-oss-20b-bf16", "gpt-oss-20b"),
        ("gpt-oss-120b-pruned", ""),
        ("gpt-oss-20b-eagle3", ""),
        ("kindling", ""),
    ],
)
def test_public_model_is_known_by_name_and_not_a_similar_one(model, name):
    assert find_public_name(model) == name
