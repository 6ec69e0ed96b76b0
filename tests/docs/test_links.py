"""Links between pages lead somewhere, in the repository as on the site."""

import pytest

from tests.docs.markdown import PAGES, ROOT, list_anchors, list_links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    for link in list_links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in list_anchors(target), f"{link}: {target.name} has no such heading"


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in list_links(page) if link[0] != "#"]
    assert set(PAGES) - reached == set()
