"""The kind of a draft model, from its folder."""

import json

import pytest

from firesteel.model.drafters.errors import DrafterError
from firesteel.model.drafters.load import find_kind, load_drafter


@pytest.fixture
def write(tmp_path):
    def write_it(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write_it


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}, "eagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
    ],
    ids=str,
)
def test_published_names_are_known(write, config, kind):
    assert find_kind(write(**config)) == kind


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], [], None, 3], ids=str)
def test_other_model_is_refused(write, architectures):
    with pytest.raises(DrafterError, match=r"not a known draft model; known kinds: eagle3, dflash"):
        find_kind(write(architectures=architectures))


def test_folder_without_config_is_refused(tmp_path):
    with pytest.raises(DrafterError, match=r"config\.json"):
        find_kind(tmp_path)


def test_other_kind_than_asked_is_refused(write):
    directory = write(architectures=["DFlashDraftModel"])
    with pytest.raises(DrafterError, match=r"--speculate eagle3: .* holds a draft model for --speculate dflash"):
        load_drafter(directory, "eagle3", None, None)
