"""Room for the requests of a benchmark in the cache."""

import pytest

from firesteel import UserError
from firesteel.cli.bench.model import check_pages, open_model
from firesteel.config import BatchConfig, CacheConfig, Config, SpeculateConfig
from firesteel.engine.engine import Engine


@pytest.fixture
def engine(llm):
    """An engine on the shared model."""
    return Engine(
        llm.model, llm.device, BatchConfig(page_size=4), CacheConfig(kv_cache_gib=0.01), max_context=llm.max_context
    )


def test_text_that_fits_the_cache_but_not_when_rescored_is_refused(engine):
    """With four tokens per page, the fifth token needs a new page of each kind."""
    layout = engine.scheduler.tables.layout
    engine.totals.pages = layout.count_pages(4)
    check_pages(engine, 4)
    with pytest.raises(UserError, match=r"5 tokens per request need \d+ pages, the cache has \d+"):
        check_pages(engine, 5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"speculate": "eagle3", "draft_model": "no/such-head"}, "no/such-head"),
        ({"speculate": "eagle3"}, "--speculate eagle3 needs a draft model for gpt-oss-20b"),
        ({"draft_model": "no/such-head"}, "draft_model = 'no/such-head': nothing is drafted with --speculate off"),
    ],
)
def test_draft_model_beside_random_weights_is_looked_up_as_beside_others(asked, said):
    """Its name was taken for a folder, after the weights had been made."""
    with pytest.raises(UserError, match=said):
        open_model(Config(speculate=SpeculateConfig(**asked)), "gpt-oss-20b")
