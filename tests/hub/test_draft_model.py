"""The folder of a draft model."""

from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.hub import BUILT_IN, find_draft_model

OTHER = Path("/models/gpt-oss-20b")


@pytest.mark.parametrize("directory", [OTHER, BUILT_IN], ids=["other", "built in"])
@pytest.mark.parametrize("kind", ["off", "ngram"])
def test_drafts_without_a_model_take_none(kind, directory):
    assert find_draft_model(kind, "", directory) == ""


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "auto"])
def test_folder_is_taken(kind, tmp_path):
    assert find_draft_model(kind, str(tmp_path), OTHER) == str(tmp_path)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_built_in_model_has_built_in_draft_models(kind):
    folder = Path(find_draft_model(kind, "", BUILT_IN))
    assert folder.name == f"kindling_{kind}" and (folder / "config.json").is_file()


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_other_model_needs_a_name(kind):
    with pytest.raises(
        UserError, match=f"--speculate {kind} needs a draft model for gpt-oss-20b: give --draft-model"
    ):
        find_draft_model(kind, "", OTHER)


def test_without_a_name_auto_copies():
    assert find_draft_model("auto", "", BUILT_IN) == find_draft_model("auto", "", OTHER) == ""


def test_unknown_name_is_an_error():
    with pytest.raises(UserError, match="not in the local Hugging Face cache"):
        find_draft_model("eagle3", "nvidia/no-such-head", OTHER)
