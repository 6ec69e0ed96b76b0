"""Single downloads: config.json before everything else, and silence of huggingface_hub."""

import huggingface_hub.utils as hub_utils
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import logging

from firesteel.errors import UserError
from firesteel.hub.client import PIECE_BYTES, adapted_hub, read_config
from firesteel.hub.fetch import fetch
from firesteel.hub.listing import list_remote
from firesteel.hub.plan import plan_pull
from tests.hub.conftest import REPOSITORY


def plan():
    return plan_pull(list_remote(REPOSITORY, "main"))


def test_config_is_read_without_writing_anything(hub, cache):
    assert read_config(plan()) == {"model_type": "gpt_oss"}
    assert list(cache.iterdir()) == [] and [asked.name for asked in hub.asked] == ["config.json"]


def test_config_in_the_cache_is_read_there(hub):
    fetch(plan(), lambda done, total: None)
    hub.asked.clear()
    assert read_config(plan()) == {"model_type": "gpt_oss"} and not hub.asked


@pytest.mark.parametrize("sent", [b'{"model_type": "gpt_osx"}', b'{"model_type": "gpt_oss"} and more'])
def test_config_with_a_wrong_checksum_is_refused(hub, stored, sent):
    stored.altered["config.json"] = sent
    with pytest.raises(UserError, match=r"config.json from .* does not have the checksum"):
        read_config(plan())


def test_config_of_an_absurd_size_is_not_fetched(hub, stored):
    stored.misstated["config.json"] = {"size": 9 << 20}
    with pytest.raises(UserError, match="has 9437184 bytes, the limit is 8388608"):
        read_config(plan())
    assert not hub.asked


def test_changes_to_the_library_are_undone():
    before, piece_bytes = logging.get_verbosity(), constants.DOWNLOAD_CHUNK_SIZE
    with adapted_hub():
        assert hub_utils.are_progress_bars_disabled() and logging.get_verbosity() == logging.ERROR
        assert constants.DOWNLOAD_CHUNK_SIZE == PIECE_BYTES
    assert not hub_utils.are_progress_bars_disabled() and logging.get_verbosity() == before
    assert constants.DOWNLOAD_CHUNK_SIZE == piece_bytes > PIECE_BYTES
