"""The sizes that drafting steps are padded to."""

import pytest

from firesteel.model.drafters.draft_sizes import DraftSize, DraftSizes


@pytest.mark.parametrize("most_requests", [1, 3, 8, 20, 500])
@pytest.mark.parametrize("is_one_pass", [True, False])
@pytest.mark.parametrize("most", [1, 3, 7, 15])
def test_every_step_has_a_listed_size_that_holds_it(most_requests, most, is_one_pass):
    sizes = DraftSizes(most, most_requests, is_one_pass=is_one_pass)
    listed = sizes.list_all()
    assert len(listed) == len(set(listed)) <= (36 if not is_one_pass else 12)
    for requests in range(1, sizes.most_requests + 1):
        for drafted in range(most + 1):
            size = sizes.find(requests, drafted)
            assert size in listed and size.requests >= requests and size.drafted >= drafted
            assert size.rows >= requests * (most + 1) and bool(drafted) == bool(size.drafted)
    assert listed[-1] == max(listed), "the largest last"


def test_sizes_of_an_eagle3_head_and_a_dflash_drafter():
    assert DraftSizes(3, 2, is_one_pass=False).list_all() == [
        DraftSize(requests, 4 * requests, drafted) for requests in (1, 2) for drafted in (0, 1, 2, 3)
    ]
    assert DraftSizes(7, 64, is_one_pass=True).find(9, 2) == DraftSize(16, 128, 7)
