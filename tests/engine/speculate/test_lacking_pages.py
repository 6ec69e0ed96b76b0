"""Which pages a network did not store."""

import pytest

from firesteel.engine.speculate.lacking_pages import LackingPages
from firesteel.types import Request, SamplingParams, Span


def span(start, end, pages=(7, 3, 5)):
    request = Request(request_id="a", token_ids=[1] * end, params=SamplingParams())
    return Span(
        request=request,
        token_ids=request.token_ids,
        start=start,
        end=end,
        full_pages=pages,
        window_pages=pages,
        num_logits=0,
    )


@pytest.mark.parametrize(
    ("written", "read", "lacks"),
    [((5, 6), 8, True), ((5, 6), 4, False), ((5, 6), 5, True), ((0, 1), 4, True), ((8, 9), 8, False)],
)
def test_pages_with_a_token_that_was_not_stored_are_lacking(written, read, lacks):
    pages = LackingPages(4)
    pages.note(span(*written), written[1], is_stored=False)
    assert (pages.find_before(span(read, read + 1)) != []) is lacks


@pytest.mark.parametrize(("start", "lacks"), [(4, False), (5, True)])
def test_page_that_is_written_from_its_first_token_is_whole(start, lacks):
    pages = LackingPages(4)
    pages.note(span(4, 8), 8, is_stored=False)
    pages.note(span(start, 8), 8, is_stored=True)
    assert pages.find_before(span(8, 9)) == ([1] if lacks else [])
